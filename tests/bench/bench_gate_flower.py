"""What the gate adds to a Flower message, in processor time, apart from the shards and Flower.

    python tests/bench/bench_gate_flower.py [--shards 20] [--numbers 650] [--messages 10]

Shards are threads that answer at once with arrays of the model. Their own part is counted too, so
the figure is an upper bound: the question goes out, the answers are read, clipped, charged on the
disk and noised, and the reply is made. `bench_gate_sites` has what real processes take.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord

from dpfedadamw.extensions.gate.flower import relay
from dpfedadamw.extensions.gate.windows import Windows
from tests.dpfedadamw.extensions.gate.flower.messages import asked
from tests.dpfedadamw.extensions.gate.threads import CellThread
from tests.runs import call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--numbers", type=int, default=650)
    parser.add_argument("--messages", type=int, default=10)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["DPFEDADAMW_KEYS"] = str(place / "keys")
        seconds = measured(place, told.shards, told.numbers, told.messages)
    print(
        f"{told.shards} shards, {told.numbers:,} numbers, {told.messages} messages: median "
        f"{statistics.median(seconds):.3f} s a message, {min(seconds):.3f} to {max(seconds):.3f}"
    )


def measured(place: Path, shards: int, numbers: int, messages: int) -> list[float]:
    """Seconds of each message."""
    from safetensors.numpy import save_file

    from dpfedadamw.extensions.gate.door import Gate

    generator = np.random.default_rng(0)
    values = generator.normal(size=numbers).astype(np.float32)
    save_file({"weights": values}, place / "model.safetensors")
    made = (
        "gate", "init", place / "gate", "--unit", "record", "--shards", shards, "--model",
        place / "model.safetensors", "--clip", 1, "--epsilon", 8, "--delta", 1e-5, "--releases",
        messages, "--anchor", place / "anchor" / "head.json",
    )  # fmt: skip
    assert call(*map(str, made)) == 0

    found = []
    with Gate.open(place / "gate" / "gate.yaml") as gate:
        data = (values + 1).tobytes()
        nodes = [CellThread(place / f"{one}", lambda _: data) for one in range(shards)]
        # Threads join at once, so that none is started to see that it does.
        site = Windows(nodes, gate.model, shards, 1.0)  # type: ignore[arg-type]
        for one in range(messages):
            sent = asked(arrays=ArrayRecord({"weights": Array(values * one)}))
            before = time.process_time()
            gate.check()
            _, broadcast = relay.objects.read_arrays(sent.name, sent.contents, gate.model)
            answers = site.ask(sent.question(gate.model).to_bytes(), 600.0)
            released = gate.release(
                job="bench", request=sent.name, broadcast=broadcast, shards=answers
            )
            relay.reply_to(sent, ("arrays", released))
            found.append(time.process_time() - before)
            assert all(answer is not None for answer in answers)
    return found


if __name__ == "__main__":
    main()
