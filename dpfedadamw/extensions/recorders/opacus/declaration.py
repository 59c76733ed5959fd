"""What a loop is, as its own objects say; and the loops that are refused, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import opacus
import torch
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import nn
from torch.utils.data import DataLoader, Sampler

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.recorders.evidence import Loop
from dpfedadamw.run.checkpoints import tensor_list

_RULES = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
_OTHER_FORMS = ("amsgrad", "maximize", "differentiable", "decoupled_weight_decay")


class RecorderError(DpfedadamwError):
    """A loop cannot be recorded."""


def refuse(optimizer: Any, loader: Any, model: Any) -> None:
    """Refuse what cannot be recorded, with the reason."""
    if not isinstance(optimizer, DPOptimizer):
        raise RecorderError(
            f"{type(optimizer).__name__} is not an Opacus optimiser; attach what "
            "PrivacyEngine.make_private returned"
        )
    # Not all versions of Opacus have all of them.
    kinds = " ".join(one.__name__ for one in type(optimizer).__mro__)
    if "Distributed" in kinds or "FSDP" in kinds:
        raise RecorderError(
            "distributed loops cannot be recorded: each process sees only its share of the sum and "
            "the noise, and none sees what was released; record a loop of one process"
        )
    if isinstance(optimizer, DPPerLayerOptimizer | AdaClipDPOptimizer) or not isinstance(
        optimizer.max_grad_norm, int | float
    ):
        raise RecorderError(
            "clipping per layer or by an adaptive norm cannot be recorded: the auditor judges one "
            'norm over all parameters; use clipping="flat"'
        )
    if not optimizer.noise_multiplier > 0.0:
        raise RecorderError(
            "the noise multiplier is 0: nothing is private and there is nothing to record; give "
            "make_private one above 0"
        )
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        raise RecorderError("the data loader draws no batches; attach what make_private returned")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise RecorderError("distributed models cannot be recorded; record a loop of one process")
    if not isinstance(model, nn.Module):
        raise RecorderError(
            f"{type(model).__name__} is not a module; attach the model that is trained"
        )
    if not isinstance(loader.batch_sampler, Sampler):
        raise RecorderError(
            f"the data loader takes its batches from a {type(loader.batch_sampler).__name__}, "
            "which cannot be observed; use a sampler of torch, as make_private does"
        )
    ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
    if ghost and not hasattr(model, "get_norm_sample"):
        raise RecorderError(
            "ghost clipping of an unwrapped model cannot be recorded, because only the wrapper "
            "knows the records' norms; leave out wrap_model=False, and attach what make_private "
            "returned"
        )


def declared(
    optimizer: DPOptimizer, loader: DataLoader[Any], inner: nn.Module, delta: float
) -> Loop:
    """What a loop declares of itself, read off its objects."""
    original = optimizer.original_optimizer
    rule = _RULES.get(type(original), type(original).__name__)
    forms = {name for group in original.param_groups for name in _OTHER_FORMS if group.get(name)}
    if rule == "adamw":
        # It is that form of Adam.
        forms.discard("decoupled_weight_decay")
    if forms:
        rule = f"{rule} in another form"
    named = [(name, one.numel()) for name, one in trained(optimizer, inner)]
    mode = "ghost" if isinstance(optimizer, DPOptimizerFastGradientClipping) else "per-sample"
    secure = bool(optimizer.secure_mode)
    return Loop(
        producer="opacus",
        version=str(opacus.__version__),
        mode=mode,
        generator="cryptographic (secure_mode)" if secure else "torch's default generator",
        secure=secure,
        optimizer=rule,
        records=len(loader.dataset),  # type: ignore[arg-type]  # Opacus needs one with a length
        delta=delta,
        tensors=tuple(named),
        model_tensors=tuple(tensor_list(inner, [name for name, _ in named])),
    )


def trained(optimizer: DPOptimizer, inner: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that a loop trains, by name: those that its optimiser has.

    What the optimiser leaves alone gets no noise and has to stay as it was, like frozen parameters.
    Where it has parameters of another model, as of an earlier copy, all of this one's count: they
    are what is published.
    """
    named = [(name, one) for name, one in inner.named_parameters() if one.requires_grad]
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    if not held <= {id(one) for _, one in inner.named_parameters()}:
        return named
    return [(name, one) for name, one in named if id(one) in held]


def inner_of(model: nn.Module) -> nn.Module:
    """The module that Opacus wraps."""
    inner = getattr(model, "_module", model)
    assert isinstance(inner, nn.Module)
    return inner


def accountant_of(optimizer: DPOptimizer) -> Any:
    """The accountant that the optimiser's step hook tells of each step; None if there is none."""
    for cell in getattr(optimizer.step_hook, "__closure__", None) or ():
        if hasattr(cell.cell_contents, "get_epsilon"):
            return cell.cell_contents
    return None


def history_of(accountants: Sequence[Any]) -> list[tuple[float, float, int]] | None:
    """What accountants counted: σ, q and steps of each kind; None where there is no accountant."""
    found = [list(getattr(one, "history", [])) for one in accountants]
    if not found:
        return None
    return [(float(noise), float(rate), int(steps)) for one in found for noise, rate, steps in one]


def sampling_rate(loader: DataLoader[Any]) -> float:
    """What Opacus bills: the sampler's own rate, else one over the number of batches."""
    sampler = loader.batch_sampler
    if isinstance(sampler, UniformWithReplacementSampler):
        return float(sampler.sample_rate)
    return 1.0 / max(1, len(loader))
