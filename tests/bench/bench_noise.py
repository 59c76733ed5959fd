"""How much dearer release noise is than `torch.randn`, per normal number on one thread.

Run as `python tests/bench/bench_noise.py [coordinates] [repeats]`. The candidates take turns in one
process and their medians are compared, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch

from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness

LIMIT = 4.0


def measure(coordinates: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of each candidate."""
    stream = ReleaseRandomness().stream("noise", 0, 0)
    total = torch.zeros(coordinates)
    candidates: dict[str, Callable[[], object]] = {
        "torch.randn": lambda: torch.randn(coordinates),
        "release normals": lambda: stream.normal(coordinates),
        "release noise": lambda: add_gaussian_noise(total, 1.0, stream, threads=1),
        "release noise, four-draw": lambda: add_gaussian_noise(
            total, 1.0, stream, "four-draw", threads=1
        ),
        "release noise, on-device": lambda: add_gaussian_noise(total, 1.0, stream, "on-device"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(repeats + 1):
        for name, candidate in candidates.items():
            start = time.perf_counter()
            candidate()
            if turn > 0:  # the first turn warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> int:
    """Print one line a candidate; fail if default release noise is over the limit."""
    coordinates = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    torch.set_num_threads(1)
    medians = measure(coordinates, repeats)
    base = medians["torch.randn"]
    for name, value in medians.items():
        each = 1e9 * value / coordinates
        print(f"{name:26s} {each:7.2f} ns per normal   {value / base:5.2f} × torch.randn")
    return 0 if medians["release noise"] <= LIMIT * base else 1


if __name__ == "__main__":
    sys.exit(main())
