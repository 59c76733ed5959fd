"""Time and memory of the clipped sum of a causal model with low-rank pairs, against others.

    python tests/bench/bench_language.py [--repeats 5] [--threads 2] [--batch 8] [--places 128]
        [--vocabulary 49152] [--layers 30] [--processor] [--one NAME]

The model has the shape of SmolLM2-135M and random weights. `plain` is the gradient that a loop with
peft and the causal model's own loss takes, without clipping; `hooks` and `ghost` are Opacus' two
ways; `whole` is this package's with the scores of all tokens at once, and `again` with layers that
are computed a second time (`model.gradient_checkpointing`). Contenders take turns in one
process, and a ratio is the median over turns of two neighbouring times, the processor's with
--processor. With --one a contender
takes two turns by itself and tells the largest resident memory. Not collected by pytest.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import dpfedadamw  # noqa: F401  Before torch, as in a run: it sets how long torch's threads spin.

# isort: split
import torch
from bench_clipping import clock_of, interleaved, ratio
from torch import Tensor, nn

from dpfedadamw.clipping.engines import choose
from dpfedadamw.models.registry import loss_of
from dpfedadamw.models.transformers import language
from dpfedadamw.models.transformers.keys import AnyTransformerSpec, LoraSpec
from dpfedadamw.spec.task_section import LanguageTask
from dpfedadamw.tasks import Task

NAMES = ("plain", "hooks", "ghost", "whole", "ours", "again")


def model_of(options: argparse.Namespace, again: bool) -> language.LanguageModel:
    configuration = {
        "model_type": "llama", "vocab_size": options.vocabulary, "hidden_size": 576,
        "intermediate_size": 1536, "num_hidden_layers": options.layers, "num_attention_heads": 9,
        "num_key_value_heads": 3, "max_position_embeddings": 2048, "tie_word_embeddings": True,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(configuration))
        spec = AnyTransformerSpec(
            name="transformers", weights="random", source=folder, length=options.places,
            fine_tuning=LoraSpec(rank=8, alpha=16.0, dropout=0.0), gradient_checkpointing=again,
        )  # fmt: skip
        model = language.build(spec, (2, options.places))
    model.record_task = Task(LanguageTask(sequences=1))  # type: ignore[assignment]
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            # As after some steps: with B at zero the gradient of A would be.
            nn.init.normal_(parameter, std=0.02)
    return model.train()


def batch_of(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    records = torch.full((options.batch, 2, options.places), 2, dtype=torch.int32)
    records[:, 0] = torch.randint(3, options.vocabulary, (options.batch, options.places))
    targets = records[:, 0].long().roll(-1, 1)
    targets[:, -1] = -100
    return records, targets


def contender(name: str, options: argparse.Namespace) -> Callable[[], object]:
    model = model_of(options, name == "again")
    records, targets = batch_of(options)
    trained = [one for one in model.parameters() if one.requires_grad]
    if name == "plain":
        network, labels = model.network, records[:, 0].long()

        def step() -> None:
            loss = network(input_ids=labels, labels=labels, use_cache=False).loss
            torch.autograd.grad(loss, trained)

        return step
    if name == "ghost":
        return ghost(model, records, targets)
    model.in_pieces = name in ("ours", "again")
    engine = choose(model, loss_of(model), 1.0, engine="opacus" if name == "hooks" else "auto")
    return lambda: engine(records, targets)


def ghost(model: language.LanguageModel, records: Tensor, targets: Tensor) -> Callable[[], object]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    model.in_pieces = False
    wrapped = GradSampleModuleFastGradientClipping(
        model, max_grad_norm=1.0, use_ghost_clipping=True, loss_reduction="sum"
    )

    class Optimiser:
        zero_grad = staticmethod(wrapped.zero_grad)

    def step() -> None:
        losses = model.record_task.loss(wrapped(records), targets)
        DPTensorFastGradientClipping(wrapped, Optimiser(), losses, loss_reduction="sum").backward()
        wrapped.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, value in (("repeats", 5), ("threads", 2), ("batch", 8), ("places", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--vocabulary", type=int, default=49_152)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--one", choices=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    if options.one:
        step = contender(options.one, options)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        step()
        step()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{options.one}: {most:.0f} MiB at most, {before:.0f} MiB of them before the step")
        return
    contenders = {name: contender(name, options) for name in NAMES}
    times = interleaved(contenders, options.repeats, clock_of(options.processor))
    for name in NAMES:
        middle = sorted(times[name])[len(times[name]) // 2]
        print(f"{name:6} {middle:7.2f} s, {ratio(times, name, 'plain'):5.2f} times plain")


if __name__ == "__main__":
    main()
