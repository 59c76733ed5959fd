"""A federation of very many clients on one machine: time and memory by part of a run.

    python tests/bench/bench_scale.py [--clients 10000] [--rounds 50] [--per-round 100]
        [--records 20] [--workers 2] [--unit record|client] [--keep FOLDER]

Makes a data set of grey pictures of 8x8 in ten classes, so many records for each client, trains a
softmax regression on it by DP-FedAdamW (or, where whole clients are protected, by DP-FedSAM),
audits the run and writes the signed report, all by one command. Prints where the time of the
process that leads went (`--profile`), and wall time, processor time and memory of all processes
together. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

SPEC = """
version: 1
name: scale
data: {{dataset: arrays, path: {path}, clients: {clients}, partition: {{kind: iid}}}}
model: {{name: mlp, hidden: []}}
algorithm: {{name: {algorithm}, learning_rate: 0.05}}
federation: {{rounds: {rounds}, clients_per_round: {per_round}, local_steps: 5, workers: {workers}}}
privacy: {privacy}
randomness: {{mode: reproducible, seed: 1}}
"""
RECORD = (
    "{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-6, "
    "sampling: {kind: poisson, expected_batch_size: 5}}"
)
CLIENT = "{unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-6}"


def main() -> None:
    """Make the data, run, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--per-round", type=int, default=100)
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--workers", default="2")
    parser.add_argument("--unit", choices=("record", "client"), default="record")
    parser.add_argument("--keep", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_records(folder / "records.npz", chosen.clients * chosen.records)
        spec = folder / "spec.yaml"
        spec.write_text(
            SPEC.format(
                path=folder / "records.npz",
                clients=chosen.clients,
                algorithm="dp-fedadamw" if chosen.unit == "record" else "dp-fedsam",
                rounds=chosen.rounds,
                per_round=chosen.per_round,
                workers=chosen.workers,
                privacy=RECORD if chosen.unit == "record" else CLIENT,
            )
        )
        os.environ["DPFEDADAMW_KEYS"] = str(folder / "keys")
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        began = time.perf_counter()
        command = [sys.executable, "-m", "dpfedadamw", "run", str(spec), "--profile"]
        process = subprocess.Popen([*command, "--out", str(folder / "runs")])
        watch = Watch(process.pid)
        code = process.wait()
        seconds = time.perf_counter() - began
        watch.over.set()
        size = sum(f.stat().st_size for f in (folder / "runs").rglob("*") if f.is_file())
        print(
            f"clients {chosen.clients}  rounds {chosen.rounds}  exit {code}  wall {seconds:.0f} s  "
            f"processor {watch.processor:.0f} s  "
            f"memory of all processes {watch.most / 2**20:.0f} MiB  run {size / 2**20:.1f} MiB"
        )


def write_records(path: Path, records: int) -> None:
    """Pictures of ten classes, each a pattern of its class with noise."""
    generator = np.random.default_rng(7)
    patterns = generator.integers(0, 256, (10, 8, 8))
    parts = {}
    for part, count in (("train", records), ("test", 2_000)):
        labels = generator.integers(0, 10, count)
        noise = generator.normal(0.0, 60.0, (count, 8, 8)).astype(np.float32)
        parts[f"x_{part}"] = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
        parts[f"y_{part}"] = labels
    np.savez(path, **parts)


class Watch:
    """Looks five times a second at the memory of a process and all below it.

    A page that several processes share counts once: each has its part of it (PSS).

    Args:
        process: Its number.

    Attributes:
        most: The most bytes that were seen.
        over: Set when there is nothing more to see.
    """

    def __init__(self, process: int) -> None:
        self.most = 0
        self._used: dict[int, int] = {}
        self._process = process
        self.over = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self.over.wait(0.2):
            family = _family(self._process)
            self.most = max(self.most, sum(map(_proportional, family)))
            for process in family:
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                    self._used[process] = int(fields[11]) + int(fields[12])

    @property
    def processor(self) -> float:
        """Seconds of processor time of all of them, as they were last seen."""
        return sum(self._used.values()) / os.sysconf("SC_CLK_TCK")


def _family(process: int) -> list[int]:
    found = [process]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            for child in task.read_text().split():
                found += _family(int(child))
    return found


def _proportional(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        # It has ended.
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    main()
