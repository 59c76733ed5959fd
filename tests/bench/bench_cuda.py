"""A local step on an accelerator: the product by either generator of noise, plain, and Opacus.

    python tests/bench/bench_cuda.py [--device cuda] [--repeats 11] [--precision bfloat16]
    python tests/bench/bench_cuda.py --tiny --device cpu      # that it runs, on any machine

ViT-Base, all of it trained, and RoBERTa-Base with low-rank pairs of rank 16, both of transformers'
configurations with random weights; nothing is fetched. Batches of 16. A turn is five local steps of
one client: of the product by its own oracle, rule and recorder, noise by AES on the processor
(while the device forms the sum) or by ChaCha20 on the device; of a plain
loop with torch's fused AdamW; of Opacus (`GradSampleModule`, `DPOptimizer`). Contenders take turns
in one process, the device is waited for at both ends of each turn, and a ratio is the median over
turns of the ratio of two neighbouring times. Memory is the device allocator's peak of a contender
that is alone on the device. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import dpfedadamw  # noqa: F401  Before torch, as in a run: it sets how long torch's threads spin.

# isort: split
import bench_step
import torch
import torch.nn.functional as F
from bench_clipping import BATCH
from bench_round import freeze_unknown
from torch import Tensor, nn

from dpfedadamw.models import registry
from dpfedadamw.models.transformers.keys import LoraSpec, PlainTuningSpec, TransformerSpec
from dpfedadamw.privacy.noise.noise import Method

STEPS = 5
CLASSES = 10
# What is trained, and the shape of a record: an image, or tokens and which of them are padding.
CONTENDED = {
    "vit-base": (PlainTuningSpec(kind="all"), (3, 224, 224), (3, 32, 32)),
    "roberta-base": (LoraSpec(rank=16, alpha=16.0), (2, 128), (2, 8)),
}
Step = Callable[[], object]
Load = tuple[nn.Module, Tensor, Tensor]


def workload(name: str, tiny: bool, device: torch.device) -> Load:
    """Model, inputs and targets on the device."""
    tuning, shape, small = CONTENDED[name]
    length = shape[-1] if name == "roberta-base" else None
    spec = TransformerSpec(name=name, weights="random", fine_tuning=tuning, length=length)
    with tempfile.TemporaryDirectory() as folder:
        if tiny:
            shape = small
            spec = registry.MODELS[name].small(spec, Path(folder))
        model = registry.build(spec, shape, CLASSES, seed=0).train()
    torch.manual_seed(1)
    inputs = registry.synthetic_records(model, torch.randn(BATCH, *shape)).to(device)
    return model.to(device), inputs, (torch.arange(BATCH) % CLASSES).to(device)


def plain(model: nn.Module, inputs: Tensor, targets: Tensor, precision: str) -> Step:
    """Torch's own loop."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-3, fused=True)

    def turn() -> None:
        for _ in range(STEPS):
            optimiser.zero_grad(set_to_none=True)
            narrow = precision == "bfloat16"
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=narrow):
                loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimiser.step()

    return turn


def opacus(model: nn.Module, inputs: Tensor, targets: Tensor, precision: str) -> Step:
    """As its users write it: gradients of single records, noise on the device."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    freeze_unknown(model)  # In its favour.
    wrapped = GradSampleModule(model, batch_first=True, loss_reduction="mean")
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    optimiser = DPOptimizer(
        torch.optim.AdamW(trained, lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )

    def turn() -> None:
        for _ in range(STEPS):
            optimiser.zero_grad(set_to_none=True)
            narrow = precision == "bfloat16"
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=narrow):
                loss = F.cross_entropy(wrapped(inputs), targets)
            loss.backward()
            optimiser.step()

    return turn


def timed(
    contenders: dict[str, Step], options: argparse.Namespace, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of each turn, the device waited for at both ends."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(options.repeats + 2):
        for name, turn in contenders.items():
            wait()
            begin = time.perf_counter()
            turn()
            wait()
            if repeat >= 2:
                times[name].append(time.perf_counter() - begin)
    return times


def peak(make: Callable[[], Step], device: torch.device) -> str:
    """The device allocator's peak of two turns of a contender that has the device to itself, MB."""
    if device.type != "cuda":
        make()()
        return "–"
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    # What others still hold is not this one's; it is nothing unless something kept a contender.
    before = torch.cuda.memory_allocated()
    turn = make()
    # Optimisers allocate what they keep in their first step.
    turn()
    turn()
    torch.cuda.synchronize()
    return f"{(torch.cuda.max_memory_allocated() - before) / 1e6:.0f}"


def makers(
    name: str, device: torch.device, options: argparse.Namespace
) -> dict[str, Callable[[], Step]]:
    """What makes each contender, with a model of its own."""
    made = partial(workload, name, options.tiny, device)
    found: dict[str, Callable[[], Step]] = {"plain": lambda: plain(*made(), options.precision)}
    for method in ("box-muller", "on-device"):
        found[f"product, noise {method}"] = partial(product, made, method, options.precision)
    if not options.no_opacus:
        found["Opacus"] = lambda: opacus(*made(), options.precision)
    return found


def product(made: Callable[[], Load], method: Method, precision: str) -> Step:
    """The product's own oracle, rule and recorder."""
    return bench_step.private_step(made(), True, method, precision)


def main() -> None:
    """Print a row for each model and contender."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-opacus", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(
            "torch sees no CUDA device here; --tiny --device cpu shows that the bench runs"
        )
    bench_step.STEPS = STEPS
    machine = torch.cuda.get_device_name() if device.type == "cuda" else "no accelerator"
    print(f"torch {torch.__version__}, {machine}, {options.precision}, batches of {BATCH}")
    print("| model | contender | ms a step | to plain | peak, MB |\n|---|---|---|---|---|")
    for name in CONTENDED:
        every = makers(name, device, options)
        held = {contender: peak(make, device) for contender, make in every.items()}
        times = timed({contender: make() for contender, make in every.items()}, options, device)
        for contender in every:
            pairs = zip(times[contender], times["plain"], strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            each = 1e3 * statistics.median(times[contender]) / STEPS
            row = f"{each:.1f} | {ratio:.2f} | {held[contender]}"
            print(f"| {name} | {contender} | {row} |", flush=True)


if __name__ == "__main__":
    main()
