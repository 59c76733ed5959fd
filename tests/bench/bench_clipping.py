"""Time of a clipped sum against a plain forward and backward pass, and against Opacus.

    python tests/bench/bench_clipping.py [--repeats 15] [--threads 2] [--no-opacus] [--no-memory]
        [--processor]

All contenders of a model take turns in one process, so that a busy machine slows each of them, and
a ratio is the median over turns of the ratio of two neighbouring times; with --processor, times are
the processor's, of all threads together, which leave out waiting for a core. Memory is that of a
round of the product (`bench_round.py`). Not collected by pytest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import dpfedadamw  # noqa: F401  Before torch, as in a run: it sets how long torch's threads spin.

# isort: split
import bench_round
import torch
import torch.nn.functional as F
from models import LowRankEncoder, VisionTransformer
from torch import Tensor, nn

from dpfedadamw.clipping.engines import choose
from dpfedadamw.models.networks.resnet import ResNet18
from dpfedadamw.vectors.flat import FlatParameters

BATCH = 16
TARGETS = {  # against plain training at most, against Opacus at least
    "GN-ResNet-18": (1.35, 2.0),
    "ViT-Tiny": (1.35, 1.35),
    "LoRA encoder": (1.00, 1.05),
}
MEMORY_TARGET_MB = 1200


def record_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def workload(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    targets = torch.randint(0, 2, (BATCH,))
    if name == "LoRA encoder":
        return LowRankEncoder().train(), torch.randint(0, 8000, (BATCH, 128)), targets
    model: nn.Module = ResNet18() if name == "GN-ResNet-18" else VisionTransformer()
    return model.train(), torch.randn(BATCH, 3, 32, 32), targets


def plain(name: str) -> Callable[[], object]:
    model, inputs, targets = workload(name)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(model(inputs), targets).backward()

    return step


def ours(name: str) -> Callable[[], object]:
    model, inputs, targets = workload(name)
    FlatParameters(model)
    engine = choose(model, record_loss, 1.0)
    engine(inputs, targets)
    assert engine.name == "book-keeping", engine.explain()
    return lambda: engine(inputs, targets)


def opacus_modes(name: str) -> dict[str, Callable[[], object]]:
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    def prepared() -> tuple[nn.Module, Tensor, Tensor]:
        model, inputs, targets = workload(name)
        for bare in ("class_token", "position"):  # Opacus does not know them: in its favour
            if hasattr(model, bare):
                getattr(model, bare).requires_grad_(False)
        return model, inputs, targets

    def kept() -> Callable[[], object]:
        model, inputs, targets = prepared()
        wrapped = GradSampleModule(model, batch_first=True, loss_reduction="mean")
        optimizer = DPOptimizer(
            torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=1.0,
            expected_batch_size=BATCH,
        )

        def step() -> None:
            F.cross_entropy(wrapped(inputs), targets).backward()
            optimizer.clip_and_accumulate()
            optimizer.zero_grad(set_to_none=True)

        return step

    def twice(ghost: bool) -> Callable[[], object]:
        model, inputs, targets = prepared()
        wrapped = GradSampleModuleFastGradientClipping(
            model,
            batch_first=True,
            loss_reduction="mean",
            max_grad_norm=1.0,
            use_ghost_clipping=ghost,
        )
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.0),
            noise_multiplier=0.0,
            max_grad_norm=1.0,
            expected_batch_size=BATCH,
        )
        loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

        def step() -> None:
            loss(wrapped(inputs), targets).backward()
            optimizer.zero_grad(set_to_none=True)

        return step

    modes = {
        "Opacus, gradients kept": kept,
        "Opacus, ghost": lambda: twice(True),
        "Opacus, fast clipping": lambda: twice(False),
    }
    return {label: build() for label, build in modes.items()}


def interleaved(
    steps: dict[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {label: [] for label in steps}
    for turn in range(repeats + 2):
        for label, step in steps.items():
            begin = clock()
            step()
            if turn >= 2:
                times[label].append(clock() - begin)
    return times


def clock_of(processor: bool) -> Callable[[], float]:
    return time.process_time if processor else time.perf_counter


def ratio(times: dict[str, list[float]], over: str, under: str) -> float:
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=list(TARGETS))
    parser.add_argument("--no-opacus", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--processor", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'model':14} {'contender':24} {'median ms':>9} {'to plain':>8} {'target':>7}")
    for name in options.models:
        steps = {"plain": plain(name), "book-keeping": ours(name)}
        if not options.no_opacus:
            steps.update(opacus_modes(name))
        times = interleaved(steps, options.repeats, clock_of(options.processor))
        most, least = TARGETS[name]
        for label in steps:
            milliseconds = 1e3 * statistics.median(times[label])
            target = f"≤ {most:.2f}" if label == "book-keeping" else ""
            to_plain = ratio(times, label, "plain")
            print(f"{name:14} {label:24} {milliseconds:9.1f} {to_plain:8.2f} {target:>7}")
        rivals = [label for label in steps if label.startswith("Opacus")]
        if rivals:
            best = min(rivals, key=lambda label: ratio(times, label, "plain"))
            faster = ratio(times, best, "book-keeping")
            print(f"{name:14} faster than {best}: {faster:.2f} times (target ≥ {least:.2f})")
    if not options.no_memory:
        # What clipped sums alone take is less than what a round of the product takes.
        contenders = dict.fromkeys(("product", "plain", "opacus", "ghost"), sys.executable)
        _, peaks = bench_round.measure("resnet18", 5, 1, options.threads, contenders)
        told = ", ".join(f"{one} {peak:.0f}" for one, peak in peaks.items())
        print(
            f"peak resident memory of a ResNet's round, MB: {told} (product < {MEMORY_TARGET_MB})"
        )


if __name__ == "__main__":
    main()
