"""What a participation costs more when Flower's simulation runs it, in processor time.

    python tests/bench/bench_flower.py [--model resnet18] [--repeats 5]

Both are done in this one process, in turns: the participation as a run's own process computes it,
and all that is done for it besides when another process does: broadcast and upload become Flower's
arrays and bytes again, what the client noted is written down and read. What Flower and Ray do
with a message between the two processes is theirs, and is not measured here.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import prepare
from dpfedadamw.federation.arrivals import expected
from dpfedadamw.federation.flower.records import arrays_of, asked_of, config_of, message_of
from dpfedadamw.federation.recorded import answered, recorded
from dpfedadamw.federation.stations import Asked
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.rundir import write_arrays

SPEC = """
version: 1
name: overhead
data: {{dataset: arrays, path: {data}, clients: 2, partition: {{kind: iid}}}}
model: {model}
algorithm: {{name: dp-fedadamw, learning_rate: 0.001}}
federation: {{rounds: {rounds}, clients_per_round: 2, local_steps: 5}}
privacy: {{unit: record, clipping_norm: 1.0, noise_multiplier: 1.0, delta: 1.0e-5,
  sampling: {{kind: poisson, expected_batch_size: 16}}}}
randomness: {{mode: reproducible}}
"""
# Models, and the shape of the random images that they are trained on.
MODELS = {
    "mlp": ("{name: mlp, hidden: []}", (8, 8, 1)),
    "cnn": ("{name: cnn}", (28, 28, 1)),
    "resnet18": ("{name: resnet18}", (32, 32, 3)),
}


class Measuring:
    """Runs clients in this process, and hands each on as if another had run it."""

    def __init__(self, inner, worker, folder):
        self._inner, self._worker, self._folder = inner, worker, folder
        self.computing: list[float] = []
        self.handing: list[float] = []

    def answers(self, parts):
        given = self._inner.answers(parts)
        likeness = expected(self._worker, parts[0].current)
        started = time.process_time()
        broadcast = arrays_of(parts[0].current.message)
        # Once for all clients of a round.
        written = (time.process_time() - started) / len(parts)
        for part in parts:
            started = time.process_time()
            answer = next(given)
            computed = time.process_time()
            self._hand_on(part, broadcast, answer, likeness)
            self.computing.append(computed - started)
            self.handing.append(written + time.process_time() - computed)
            yield answer

    def close(self):
        self._inner.close()

    def _hand_on(self, part, broadcast, answer, likeness):
        unit, path = self._worker.unit, self._folder / "noted.npz"
        message_of(broadcast)
        asked_of(config_of(Asked.of(part)))
        upload = message_of(arrays_of(answer.message), likeness.size)
        likeness.check(upload, "a client")
        write_arrays(path, recorded(answer))
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        assert answered(upload, arrays, unit.evidence_of_client(), torch.device("cpu"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="resnet18", choices=sorted(MODELS))
    options.add_argument("--repeats", type=int, default=5, help="rounds of two clients")
    given = options.parse_args()
    model, shape = MODELS[given.model]
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (400, *shape), dtype=np.uint8)
    labels = draws.integers(0, 10, 400)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        parts = {"x_train": images, "y_train": labels, "x_test": images[:20], "y_test": labels[:20]}
        np.savez(folder / "data.npz", **parts)
        text = SPEC.format(model=model, rounds=given.repeats, data=folder / "data.npz")
        training = engine_setup.start(prepare(specs.loads(text), torch.device("cpu")), folder)
        federation = training.federation
        measuring = Measuring(federation.runner, federation.worker, folder)
        training.federation = dataclasses.replace(federation, elsewhere=measuring)
        with training.lock:
            engine_run.train(training)
    ratios = [b / a for a, b in zip(measuring.computing, measuring.handing, strict=True)]
    print(
        f"{given.model}: a participation {statistics.median(measuring.computing):.3f} s, handing "
        f"it on {statistics.median(measuring.handing):.3f} s, {statistics.median(ratios):.1%} of it"
    )


if __name__ == "__main__":
    main()
