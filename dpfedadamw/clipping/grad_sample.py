"""Clipped sums by Opacus' GradSampleModule: every record's gradient in full, layer by layer.

For layers that book-keeping does not know: recurrent ones above all, which Opacus computes by cells
of its own whose steps are linear layers. What is run is a second module tree over the same
parameters, so that the model itself is never changed.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpfedadamw.clipping.bookkeeping import Structure
from dpfedadamw.clipping.people import means
from dpfedadamw.clipping.rehearsal import GradSampleError
from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    Clipping,
    Loss,
    cut,
    empty_sum,
    record_losses,
    refuse_mixing,
    trainable_parameters,
)
from dpfedadamw.vectors.precision import FLOAT32

# Entries of per-record gradients that are held at once: 256 MiB in float32.
_CHUNK_ENTRIES = 2**26


@dataclass(frozen=True)
class _Twin:
    """The model's module tree once more, over the same parameters, with Opacus' hooks.

    Attributes:
        structure: Tells whether the model is still made as it was.
        module: What is run.
        parameters: Those that are trained, by name.
        padding: Weights of embeddings, each with its row that is never trained.
    """

    structure: Structure
    module: Any
    parameters: Mapping[str, nn.Parameter]
    padding: Sequence[tuple[Tensor, int]] = ()


class GradSampleEngine:
    """Per-record gradients of all layers by Opacus, a chunk of records at a time.

    Attributes:
        name: "opacus".
        layers: How each layer's gradients are formed, by module name.

    Args:
        model: The model.
        loss: Outputs and targets to one loss a record.
        clipping: The clipping norm and its rule.
        precision: float32 alone.

    Raises:
        GradSampleError: If the model cannot be wrapped.
    """

    name = "opacus"

    def __init__(
        self, model: nn.Module, loss: Loss, clipping: Clipping, precision: str = FLOAT32
    ) -> None:
        if precision != FLOAT32:
            raise GradSampleError(f"the engine opacus computes in float32, not in {precision}")
        self._model = model
        self._loss = loss
        self._clipping = clipping
        self._twin = _twin_of(model)
        self.layers: Mapping[str, str] = dict(_methods(self._twin.module))

    def explain(self) -> str:
        """One line for the run's summary."""
        recurrent = [name for name, method in self.layers.items() if method == _CELLS]
        cells = f"; recurrent layers as Opacus' cells: {', '.join(recurrent)}" if recurrent else ""
        return f"opacus: every record's gradient is formed in full, layer by layer{cells}"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0.

        Raises:
            ClippingError: If a layer mixes records, or the loss is not one value a record.
            GradSampleError: If a parameter has no gradient by record.
        """
        return self._summed(inputs, targets, [1] * len(targets), people=False)

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """The clipped sum of people's mean gradients: see `clipped_sum.PeopleEngine`."""
        return self._summed(inputs, targets, sizes, people=True)

    def _summed(
        self, inputs: Tensor, targets: Tensor, sizes: Sequence[int], people: bool
    ) -> ClippedSum:
        if not self._twin.structure.unchanged():
            self._twin = _twin_of(self._model)
        refuse_mixing(self._model)
        parameters = self._twin.parameters
        empty = empty_sum(parameters)
        if not len(targets):
            return empty
        total = empty.total
        chunk = max(1, _CHUNK_ENTRIES // len(total))
        squared_norms = []
        for part, own in cut(sizes, chunk):
            flat = self._gradients(parameters, inputs[part], targets[part])
            if people:
                flat = means(flat, own)
            squared_norms.append(torch.stack([row.double().square().sum() for row in flat]))
            weights = self._clipping.weights(squared_norms[-1], total.dtype)
            # 0 · NaN is NaN: a record that is not finite is left out, not multiplied by zero.
            chosen = flat if weights.all_finite else flat[weights.finite]
            total += weights.factors[weights.finite].to(flat.dtype) @ chosen
        return self._clipping.weights(torch.cat(squared_norms), total.dtype).summed(total)

    def _gradients(
        self, parameters: Mapping[str, nn.Parameter], inputs: Tensor, targets: Tensor
    ) -> Tensor:
        """The gradient of every record, [b, d]."""
        try:
            with torch.enable_grad(), warnings.catch_warnings():
                # Of layers whose inputs need no gradient; theirs are not asked for.
                warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
                losses = record_losses(self._loss, self._twin.module(inputs), targets)
                left: tuple[Tensor | None, ...] = (None,) * len(parameters)
                if losses.requires_grad:
                    left = torch.autograd.grad(
                        losses.sum(), list(parameters.values()), allow_unused=True
                    )
            for parameter, row in self._twin.padding:
                # Opacus' rule forgets it, and torch's gradient of it is zero.
                if isinstance(found := getattr(parameter, "grad_sample", None), Tensor):
                    found[:, row] = 0.0
            rows = []
            for (name, parameter), whole in zip(parameters.items(), left, strict=True):
                found = getattr(parameter, "grad_sample", None)
                if found is None and whole is not None:
                    raise GradSampleError(f"parameter {name!r} has no gradient by record in Opacus")
                if found is None:
                    found = parameter.new_zeros(len(targets), parameter.numel())
                if not isinstance(found, Tensor) or len(found) != len(targets):
                    raise GradSampleError(f"parameter {name!r} has gradients of another batch size")
                rows.append(found.detach().reshape(len(targets), -1))
            return torch.cat(rows, dim=1)
        finally:
            for parameter in parameters.values():
                parameter.grad_sample = None  # type: ignore[attr-defined]  # set by Opacus
                parameter._forward_counter = 0  # type: ignore[attr-defined]  # likewise


_CELLS, _BY_LAYER, _BY_FUNCTORCH = "cells", "by layer", "vmap"


def recurrent_layers(model: nn.Module) -> list[str]:
    """Names of a model's recurrent layers, which have no book-keeping and no rule under vmap."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]


def _twin_of(model: nn.Module) -> _Twin:
    from opacus.grad_sample import GradSampleModule

    parameters = trainable_parameters(model)
    shared: dict[int, object] = {id(one): one for one in (*model.parameters(), *model.buffers())}
    try:
        tree = _with_cells(copy.deepcopy(model, shared))
        for module in tree.modules():
            # Opacus looks on in training alone; layers with parameters of their own do the same in
            # both modes, once dropout is out.
            if any(one.requires_grad for one in module.parameters(recurse=False)):
                module.training = True
        wrapped = GradSampleModule(tree, batch_first=True, loss_reduction="sum", strict=False)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise GradSampleError(f"Opacus cannot wrap this model ({reason})") from error
    return _Twin(Structure(model), wrapped, parameters, _padding(tree))


def _padding(tree: nn.Module) -> list[tuple[Tensor, int]]:
    """The row of padding of each trained embedding.

    Raises:
        GradSampleError: If the row is trained in another layer, or Opacus' rule of embeddings is
            not the layer's.
    """
    holders = Counter(
        id(one) for module in tree.modules() for one in module.parameters(recurse=False)
    )
    found = []
    for module in tree.modules():
        if not isinstance(module, nn.Embedding) or not module.weight.requires_grad:
            continue
        if module.max_norm is not None or module.scale_grad_by_freq:
            raise GradSampleError("an embedding with max_norm or scale_grad_by_freq")
        if module.padding_idx is not None:
            if holders[id(module.weight)] > 1:
                raise GradSampleError("an embedding with padding_idx whose weight has two layers")
            found.append((module.weight, module.padding_idx))
    return found


def _with_cells(tree: nn.Module) -> nn.Module:
    """The tree with recurrent layers as Opacus' cells, which hold the same parameters."""
    for name, module in list(tree.named_modules()):
        if isinstance(module, nn.RNNBase):
            cells = _cells(module)
            if not name:
                return cells
            parent, _, own = name.rpartition(".")
            setattr(tree.get_submodule(parent), own, cells)
    return tree


def _cells(layer: nn.RNNBase) -> nn.Module:
    from opacus.layers import DPGRU, DPLSTM, DPRNN

    kinds: dict[type[nn.Module], Any] = {nn.LSTM: DPLSTM, nn.GRU: DPGRU, nn.RNN: DPRNN}
    if type(layer) not in kinds or layer.proj_size:
        raise GradSampleError(f"{type(layer).__name__} with a projection or of another kind")
    more = {"nonlinearity": layer.nonlinearity} if isinstance(layer, nn.RNN) else {}
    made: nn.Module = kinds[type(layer)](
        layer.input_size,
        layer.hidden_size,
        num_layers=layer.num_layers,
        bias=layer.bias,
        batch_first=layer.batch_first,
        dropout=0.0,
        bidirectional=layer.bidirectional,
        **more,
    )
    if layer.dropout and layer.training:
        raise GradSampleError("dropout between recurrent layers")
    for index, cell in enumerate(cast("list[nn.Module]", made.cells)):
        step, backwards = divmod(index, 2 if layer.bidirectional else 1)
        suffix = f"_l{step}{'_reverse' if backwards else ''}"
        for matrix in ("ih", "hh"):
            linear = getattr(cell, matrix)
            for kind in ("weight", "bias") if layer.bias else ("weight",):
                setattr(linear, kind, getattr(layer, f"{kind}_{matrix}{suffix}"))
    # What torch's layers have to make their weights one piece of memory; cells need it not.
    vars(made)["flatten_parameters"] = _nothing
    return made


def _nothing() -> None:
    """Do nothing."""


def _methods(wrapped: Any) -> Iterator[tuple[str, str]]:
    """How the gradients of each layer with parameters are formed."""
    from opacus.layers.dp_rnn import DPRNNBase

    inside: tuple[str, ...] = ()
    for name, module in wrapped._module.named_modules():
        if inside and name.startswith(inside):
            continue
        if isinstance(module, DPRNNBase):
            inside += (f"{name}." if name else "",)
            yield name, _CELLS
        elif any(one.requires_grad for one in module.parameters(recurse=False)):
            known = type(module) in wrapped.GRAD_SAMPLERS
            yield name, _BY_LAYER if known else _BY_FUNCTORCH
