"""What a release costs a gate besides its shards, by the ledger's length; by hand.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_gate_ledger [RELEASES [FOLDER]]

One gate with two shards of a softmax regression (650 numbers) releases again and again, without a
refusal. Each line has the median of the last 50 releases up to there: processor time, and time by
the clock, most of which is waiting for the disk (two lines and four signed heads are synced).
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dpfedadamw.extensions.gate import book, settings, spending
from dpfedadamw.extensions.gate.door import Gate

SEEN = (100, 1_000, 10_000)
LAST = 50


def begun(folder: Path, releases: int) -> Gate:
    """A gate whose budget is for so many releases."""
    wanted = {
        "unit": "record",
        "shards": 2,
        "clip": 1.0,
        "noise_multiplier": spending.noise_for(releases, 2.0, 1e-6),
        "budget": {"epsilon": 2.0, "delta": 1e-6},
        "model": {"weight": "float32[64, 10]", "bias": "float32[10]"},
        "ledger": "ledger",
        "anchor": "elsewhere/head.json",
    }
    path = folder / "gate.yaml"
    path.write_text(settings.write(wanted), encoding="utf-8")
    book.begin(settings.read(path), book.load_key(make=True))
    return Gate.open(path)


def released(gate: Gate, number: int) -> tuple[float, float]:
    """Processor time and time by the clock of one round: a check, and a release."""
    sent = {name: np.zeros(form.shape, form.dtype) for name, form in gate.model.items()}
    clock, processor = time.perf_counter(), time.process_time()
    gate.check()
    gate.release(job="job", request=str(number), broadcast=sent, shards=[sent] * gate.shards)
    return time.process_time() - processor, time.perf_counter() - clock


def main() -> None:
    """Release, and print a line at each length."""
    releases = int(sys.argv[1]) if len(sys.argv) > 1 else max(SEEN)
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        gate, taken = begun(Path(folder), releases), []
        for number in range(1, releases + 1):
            taken.append(released(gate, number))
            if number in SEEN:
                processor, clock = np.median(taken[-LAST:], axis=0) * 1e3
                print(f"{number:>6} releases: {processor:.1f} ms, {clock:.1f} ms by the clock")


if __name__ == "__main__":
    main()
