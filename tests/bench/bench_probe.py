"""Processor time of the active probe, which a run is asked for once.

    python tests/bench/bench_probe.py [--only vit-tiny resnet18] [--repeats 3]

The models are those of `bench_round.py`, which are rehearsed beforehand, as after a training. Not
collected by pytest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

# isort: split
sys.path.insert(0, str(Path(__file__).parent))
from bench_round import WORKLOADS, spec_of, write_data


def seconds(name: str, repeats: int, threads: int) -> list[float]:
    """Processor time of the whole probe, the auditor's comparisons included, each time anew."""
    import dpfedadamw  # noqa: F401  Before torch, as in a run: how long its threads spin.

    # isort: split
    import torch

    from audit.probe.probing import run_probe
    from dpfedadamw.experiment import prepare
    from dpfedadamw.run import setup
    from dpfedadamw.run.training import probe_of

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_data(name, 2, folder)
        experiment = prepare(spec_of(name, 2, 3, folder), torch.device("cpu"))
        probe = probe_of(setup.start(experiment, folder / "runs"))
        assert probe is not None
        run_probe(probe)
        took = []
        for _ in range(repeats):
            before = time.process_time()
            run_probe(probe)
            took.append(time.process_time() - before)
    return took


def main() -> None:
    """Probe the models that are named, and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(WORKLOADS), default=["vit-tiny", "resnet18"]
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    print("| model | probe, s: median | least |")
    print("|---|---|---|")
    for name in chosen.only:
        took = seconds(name, chosen.repeats, chosen.threads)
        print(f"| {name} | {statistics.median(took):.2f} | {min(took):.2f} |", flush=True)


if __name__ == "__main__":
    main()
