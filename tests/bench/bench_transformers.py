"""Memory and time of one private step of published transformers, against a plain step.

    python tests/bench/bench_transformers.py [--only NAME] [--fine-tuning lora] [--batch 16]

Weights are random and of full size, built from the published configurations. Every contender has a
process of its own, whose largest resident memory counts; the second of two steps is timed. The
plain step has torch's ordinary dropout and AdamW. With --export a model is also written, read back
and compared. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfedadamw.clipping.engines import choose
from dpfedadamw.models import registry
from dpfedadamw.models.networks.dropout import RecordDropout
from dpfedadamw.models.transformers.keys import LoraSpec, PlainTuningSpec, TransformerSpec
from dpfedadamw.privacy.noise.noise import add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.vectors.flat import BLOCK_KINDS, FlatParameters, blocks_of

NAMES = ("vit-base", "swin-tiny", "swin-base", "roberta-base")
LENGTH = 128


def spec_of(name: str, kind: str) -> TransformerSpec:
    length = LENGTH if name == "roberta-base" else None
    return TransformerSpec(
        name=name,
        weights="random",
        fine_tuning=LoraSpec() if kind == "lora" else PlainTuningSpec(kind=kind),
        length=length,
    )


def workload(name: str, kind: str, batch: int) -> tuple[nn.Module, Tensor, Tensor]:
    shape = (2, LENGTH) if name == "roberta-base" else (3, 224, 224)
    model = registry.build(spec_of(name, kind), shape, 10, seed=0).train()
    torch.manual_seed(1)
    records = registry.synthetic_records(model, torch.randn(batch, *shape))
    return model, records, torch.arange(batch) % 10


def record_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def plain(name: str, kind: str, batch: int) -> dict[str, object]:
    model, records, targets = workload(name, kind, batch)
    for module in list(model.modules()):
        for key, child in list(module.named_children()):
            if isinstance(child, RecordDropout):
                module._modules[key] = nn.Dropout(child.p)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(2):
        started = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(model(records), targets).backward()
        optimiser.step()
        seconds = time.perf_counter() - started
    return {"seconds": seconds}


def private(name: str, kind: str, batch: int) -> dict[str, object]:
    model, records, targets = workload(name, kind, batch)
    flat = FlatParameters(model)
    engine = choose(model, record_loss, 0.1)
    # The noised sum as a gradient, handed to the same optimiser as the plain step's.
    whole = nn.Parameter(flat.vector)
    optimiser = torch.optim.AdamW([whole], lr=1e-4)
    stream = ReleaseRandomness().stream("noise", 0, 0)
    for _ in range(2):
        started = time.perf_counter()
        total = engine(records, targets).total
        whole.grad = add_gaussian_noise(total, 0.1, stream).float().div_(batch)
        optimiser.step()
        whole.grad = None
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "engine": engine.explain(), "trained": flat.layout.size}


def blocks(name: str, kind: str, batch: int) -> dict[str, object]:
    model, _, _ = workload(name, kind, 1)
    started = time.perf_counter()
    found = {one: len(blocks_of(model, one).names) for one in BLOCK_KINDS}
    return {"seconds": time.perf_counter() - started, "blocks": found}


def export(name: str, kind: str, batch: int) -> dict[str, object]:
    from transformers import AutoModelForImageClassification, AutoModelForSequenceClassification

    from dpfedadamw.models.transformers import export

    model, records, _ = workload(name, kind, 2)
    loader = AutoModelForImageClassification
    if name == "roberta-base":
        loader = AutoModelForSequenceClassification
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        started = time.perf_counter()
        form, _ = export.write(spec_of(name, kind), model.eval(), Path(folder))
        if form == "adapters":
            from peft import PeftModel

            base = loader.from_pretrained(f"{folder}/base", num_labels=10)
            read = PeftModel.from_pretrained(base, folder)
        else:
            read = loader.from_pretrained(folder)
        seconds = time.perf_counter() - started
        found = read.eval()(**model._arguments(records)).logits
        difference = float((found - model(records)).abs().max())
    return {"seconds": seconds, "largest_difference": difference}


CONTENDERS = {"plain": plain, "private": private, "blocks": blocks, "export": export}


def measure(contender: str, name: str, kind: str, batch: int) -> dict[str, object]:
    command = [sys.executable, __file__, "--child", contender, "--only", name]
    command += ["--fine-tuning", kind, "--batch", str(batch)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", choices=NAMES)
    parser.add_argument("--fine-tuning", choices=("lora", "all", "head"), default="lora")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--child", choices=list(CONTENDERS))
    options = parser.parse_args()
    kind, batch = options.fine_tuning, options.batch
    if options.child:
        found = CONTENDERS[options.child](options.only, kind, batch)
        found["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(found))
        return
    for name in NAMES if options.only is None else (options.only,):
        by = {one: measure(one, name, kind, batch) for one in ("plain", "private", "blocks")}
        ratio = by["private"]["mib"] / by["plain"]["mib"]
        print(
            f"{name} {kind} batch {batch}: trained {by['private']['trained']:,}; "
            f"plain {by['plain']['seconds']:.1f} s {by['plain']['mib']:.0f} MiB; "
            f"private {by['private']['seconds']:.1f} s {by['private']['mib']:.0f} MiB; "
            f"memory x {ratio:.3f}"
        )
        print(f"  {by['private']['engine']}")
        print(f"  blocks {by['blocks']['blocks']} in {by['blocks']['seconds']:.1f} s")
        if options.export:
            found = measure("export", name, kind, batch)
            print(
                f"  written and read in {found['seconds']:.1f} s, {found['mib']:.0f} MiB; largest "
                f"difference of scores {found['largest_difference']:.1e}"
            )


if __name__ == "__main__":
    main()
