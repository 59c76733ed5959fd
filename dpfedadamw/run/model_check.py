"""What training by record will make of a model: layer by layer, and what it costs.

Nothing is trained, and no record is used but for its shape: the model answers made-up ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpfedadamw.clipping.engines import ClippedSumEngine, choose
from dpfedadamw.experiment import Experiment, prepare
from dpfedadamw.models.own.fitting import GROUP_NORM, BatchNormError
from dpfedadamw.models.registry import loss_of, synthetic_records
from dpfedadamw.spec import Spec

# Records of the batch that is timed, at most.
_MOST_RECORDS = 64
_REPETITIONS = 3
# Seconds of processor time that one measurement takes at least: some systems count them in steps of
# a sixty-fourth of a second, and a small model's gradient would take none of them.
_LEAST_SECONDS = 0.02
_WHOLE = "whole update"
_IN_WORDS = {
    "vmap": "one copy of its parameters per record (vmap)",
    "copies": "a copy a record",
    "cells": "Opacus' cells",
    "by layer": "Opacus",
    "no gradient": "no gradient",
}


@dataclass(frozen=True)
class LayerRow:
    """One layer with parameters, or one that was changed.

    Attributes:
        name: In the model.
        kind: Its class.
        parameters: How many of its own are trained.
        how: How its records' gradients are bounded, or "refused".
        note: What was changed of it, what would mend it, or "".
    """

    name: str
    kind: str
    parameters: int
    how: str
    note: str


@dataclass(frozen=True)
class ModelCheck:
    """What a model is, to training by record.

    Attributes:
        model: Its name in the spec.
        trained: Parameters that are trained.
        frozen: Parameters that are not.
        engine: "book-keeping", "opacus", "vmap" or "loop"; "whole update" where whole clients are
            protected, "none" without privacy.
        explanation: The engine, in one line, and why no faster one.
        records: Records of the batch that was timed; 0 where none was.
        milliseconds: Processor time of its clipped sum; None where none was.
        plain_milliseconds: Of a plain gradient of the same batch; None likewise.
        layers: A row a layer, in the model's order.
        refused: Why a run of the spec is refused for its model, with the mend; None where not.
    """

    model: str
    trained: int
    frozen: int
    engine: str
    explanation: str
    records: int
    milliseconds: float | None
    plain_milliseconds: float | None
    layers: tuple[LayerRow, ...]
    refused: str | None

    @property
    def ratio(self) -> float | None:
        """How many times a plain gradient a clipped sum costs; None where none was timed."""
        if self.milliseconds is None or not self.plain_milliseconds:
            return None
        return self.milliseconds / self.plain_milliseconds


def check_model(spec: Spec, engine: str = "auto") -> ModelCheck:
    """Look through a spec's model as its run would train it.

    Args:
        spec: The spec; its data are read for their shape.
        engine: The clipped-sum engine that would be asked for.

    Raises:
        DpfedadamwError: If spec, data or model are wrong for another reason than a layer over the
            batch, which is reported.
    """
    refused = None
    device = torch.device("cpu")
    try:
        experiment = prepare(spec, device)
    except BatchNormError as error:
        refused = str(error)
        mended = spec.model.replace(replace_batch_norm=GROUP_NORM)
        experiment = prepare(spec.replace(model=mended), device)
    return _looked_through(experiment, engine, refused)


def _looked_through(experiment: Experiment, engine: str, refused: str | None) -> ModelCheck:
    model, plan, spec = experiment.model.train(), experiment.plan, experiment.spec
    counts = [(one.numel(), one.requires_grad) for one in model.parameters()]
    records, own, plain = 0, None, None
    name, explanation, methods = "none", "no privacy: nothing is clipped", dict[str, str]()
    if plan.unit.name == "client":
        name = _WHOLE
        explanation = "whole updates of clients are clipped, across all layers"
    elif plan.private:
        wanted = math.ceil(plan.divisor(0))
        records = max(2, min(wanted, spec.compute.physical_batch_size, _MOST_RECORDS))
        summed = choose(
            model,
            loss_of(model),
            plan.clipping_norm,
            engine=engine,
            precision=spec.compute.precision,
            batch=records,
        )
        shape = (records, *experiment.dataset.input_shape)
        generator = torch.Generator().manual_seed(0)
        batch = synthetic_records(model, torch.randn(shape, generator=generator))
        numbers = np.arange(records) % experiment.dataset.kinds_made_up
        targets = torch.from_numpy(experiment.dataset.made_up(numbers))
        summed(batch, targets)
        own, plain = _times(model, summed, batch, targets)
        name, explanation, methods = summed.name, summed.explain(), dict(summed.layers)
    return ModelCheck(
        model=spec.model.name,
        trained=sum(size for size, trained in counts if trained),
        frozen=sum(size for size, trained in counts if not trained),
        engine=name,
        explanation=explanation,
        records=records,
        milliseconds=own,
        plain_milliseconds=plain,
        layers=tuple(_rows(model, name, methods, refused is not None)),
        refused=refused,
    )


def _times(
    model: nn.Module, summed: ClippedSumEngine, batch: Tensor, targets: Tensor
) -> tuple[float, float]:
    """Processor time of a clipped sum and of a plain gradient, in milliseconds, turn by turn."""
    trained = [one for one in model.parameters() if one.requires_grad]

    def plain() -> None:
        loss = loss_of(model)(model(batch), targets).sum()
        torch.autograd.grad(loss, trained, allow_unused=True)

    def private() -> None:
        summed(batch, targets)

    plain()
    turns = [(_timed(private), _timed(plain)) for _ in range(_REPETITIONS)]
    return statistics.median(one for one, _ in turns), statistics.median(one for _, one in turns)


def _timed(call: Callable[[], None]) -> float:
    """Milliseconds of processor time that a call takes, called until they can be counted."""
    start, calls, spent = time.process_time(), 0, 0.0
    while spent < _LEAST_SECONDS:
        call()
        calls += 1
        spent = time.process_time() - start
    return 1000.0 * spent / calls


def _rows(
    model: nn.Module, engine: str, methods: Mapping[str, str], refused: bool
) -> Iterator[LayerRow]:
    mended = {one.name: one for one in getattr(model, "mended", ())}
    for name, module in model.named_modules():
        sizes = [one.numel() for one in module.parameters(recurse=False) if one.requires_grad]
        change = mended.get(name)
        if not sizes and change is None:
            continue
        how = _how(name, engine, methods) if sizes else ""
        kind, note = type(module).__name__, ""
        if change is not None:
            kind, note = change.before, f"becomes {change.after}" if sizes else change.after
            if refused and "BatchNorm" in change.before:
                how, note = "refused", f"mixes records; group_norm: {change.after}"
        yield LayerRow(name or "(the model)", kind, sum(sizes), how, note)


def _how(name: str, engine: str, methods: Mapping[str, str]) -> str:
    """How a layer's gradients by record are found, in words."""
    if engine not in ("book-keeping", "opacus"):
        return engine
    below = f"{name}." if name else ""
    found = methods.get(name) or next(
        (
            how
            for site, how in methods.items()
            if site.startswith(below) or name.startswith(f"{site}.")
        ),
        "no gradient",
    )
    return _IN_WORDS.get(found, "book-keeping" if engine == "book-keeping" else found)
