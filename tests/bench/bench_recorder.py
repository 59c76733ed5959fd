"""What the recorder of Opacus loops costs: processor time of a step, and memory.

    python tests/bench/bench_recorder.py [--repeats 5] [--mode hooks|ghost]
    python tests/bench/bench_recorder.py --memory plain|recorded [--mode hooks|ghost]

One loop is recorded and the same one is not, step by step in turns in one process; the ratio is the
median over turns of neighbouring processor times. The batch has exactly B records. With --memory
a process of its own says its peak, to be compared with the other's. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
from bench_clipping import workload
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from dpfedadamw.extensions.recorders.opacus import Recorder

_MODEL, _BATCH, _GOAL = "GN-ResNet-18", 16, 0.15


class Loop:
    """An Opacus loop on one batch, recorded or not."""

    def __init__(self, mode: str, folder: Path | None) -> None:
        model, self.inputs, self.labels = workload(_MODEL)
        self.inputs, self.labels = self.inputs[:_BATCH], self.labels[:_BATCH]
        criterion = torch.nn.CrossEntropyLoss()
        made = PrivacyEngine(accountant="rdp").make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
            data_loader=DataLoader(TensorDataset(self.inputs, self.labels), batch_size=1),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
            criterion=criterion,
        )
        self.model, self.optimizer, loader = made[0], made[1], made[-1]
        self.criterion = made[2] if mode == "ghost" else criterion
        if folder is not None:
            self.recorder = Recorder(folder, delta=1e-5)
            self.recorder.attach(self.optimizer, loader, self.model)
        self.parameters = sum(one.numel() for one in model.parameters())

    def step(self) -> float:
        """Processor seconds of one step."""
        start = time.process_time()
        self.optimizer.zero_grad()
        self.criterion(self.model(self.inputs), self.labels).backward()
        self.optimizer.step()
        return time.process_time() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mode", default="hooks", choices=("hooks", "ghost"))
    parser.add_argument("--memory", choices=("plain", "recorded"))
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if given.memory:
            _memory(given.mode, Path(folder) / "run" if given.memory == "recorded" else None)
            return
        plain, recorded = Loop(given.mode, None), Loop(given.mode, Path(folder) / "run")
        plain.step(), recorded.step()
        pairs = [(plain.step(), recorded.step()) for _ in range(given.repeats)]
    ratio = statistics.median(two / one for one, two in pairs) - 1.0
    shown = ", ".join(f"{one:.2f}/{two:.2f}" for one, two in pairs)
    print(
        f"{_MODEL}, {given.mode}, B = {_BATCH}: +{ratio:.1%} (goal below {_GOAL:.0%}); s: {shown}"
    )


def _memory(mode: str, folder: Path | None) -> None:
    """Peak of one process that makes three steps."""
    loop = Loop(mode, folder)
    for _ in range(3):
        loop.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    kind = "plain" if folder is None else "recorded"
    size = 4.0 * loop.parameters / 2**20
    print(f"{_MODEL}, {mode}, {kind}: peak {peak:.0f} MiB; one gradient {size:.0f}")


if __name__ == "__main__":
    main()
