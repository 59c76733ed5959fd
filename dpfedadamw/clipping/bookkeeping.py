"""Clipped sums at the price of plain training: one forward and one backward pass.

Book-keeping (Bu et al. 2023): the backward pass skips the gradients of the parameters and keeps
each layer's inputs A and output gradients G. Every record's squared norm is added up on the way.
Once the factors c_j are known, Σ_j c_j g_j is one weighted product a layer, Gᵀ diag(c) A.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpfedadamw.clipping import chain
from dpfedadamw.clipping.chain import Chain, SmallChain
from dpfedadamw.clipping.forms import sum_of
from dpfedadamw.clipping.low_rank import pair_of
from dpfedadamw.clipping.people import Groups
from dpfedadamw.clipping.sites import BookKeepingError, Pass, Site, sites_of, views_of
from dpfedadamw.privacy.clipped_sum import (
    ClippedSum,
    Clipping,
    Loss,
    Weights,
    empty_sum,
    record_losses,
    refuse_mixing,
    trainable_parameters,
)
from dpfedadamw.vectors.precision import FLOAT32, computing_in, wide


@dataclass(frozen=True)
class _Known:
    """What was found when a model was looked through.

    Attributes:
        structure: Tells whether it is still made like that.
        sites: Where its parameters are used.
        parameters: Those that are trained, by name.
        chain: The model as linear layers one after another; None where it is something else.
        small: The same in numpy; None where it is too large for that, or of another loss.
    """

    structure: Structure
    sites: tuple[Site, ...]
    parameters: Mapping[str, nn.Parameter]
    chain: Chain | None
    small: SmallChain | None

    def holds(self) -> bool:
        """Whether all of it is still so."""
        pairs = [site for site in self.sites if site.pair is not None]
        # An adapter may be switched off or scaled by what no module shows.
        same = all(pair_of(site.module) == site.pair for site in pairs)
        return same and self.structure.unchanged()


class BookKeepingEngine:
    """Clipped sums from one forward and one backward pass, without changing the model.

    Layers' forwards are swapped for the duration of a call and put back.

    Attributes:
        name: "book-keeping".
        layers: How each layer's norms were found in the last call, by module name ("by size" before
            the first).

    Args:
        model: The model.
        loss: Outputs and targets to one loss a record.
        clipping: The clipping norm and its rule.
        precision: What the model's layers multiply in.
        pairs: Whether low-rank pairs are one place with their layers where possible.

    Raises:
        BookKeepingError: If the model's parameters are shared between modules.
    """

    name = "book-keeping"

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clipping: Clipping,
        precision: str = FLOAT32,
        *,
        pairs: bool = True,
    ) -> None:
        self._model = model
        self._loss = loss
        self._clipping = clipping
        self._precision = precision
        # Merged in 16 bits, a frozen weight would swallow a small pair.
        self._pairs = pairs and precision == FLOAT32
        self._known: _Known | None = None
        self.layers: Mapping[str, str] = {
            site.name: "by size" if site.kind in ("layer", "pair") else site.kind
            for site in self._sites()
        }

    def _sites(self) -> tuple[Site, ...]:
        return sites_of(self._model, pairs=self._pairs)

    def _looked_through(self) -> _Known:
        """The model's sites and parameters, searched again if the model has changed."""
        if self._known is None or not self._known.holds():
            self._known = None
            refuse_mixing(self._model)
            parameters = trainable_parameters(self._model)
            written_out = Chain.of(self._model) if self._precision == FLOAT32 else None
            small = None
            if written_out is not None:
                small = SmallChain.of(written_out, parameters, self._loss, self._clipping)
            structure, sites = Structure(self._model), self._sites()
            self._known = _Known(structure, sites, parameters, written_out, small)
        return self._known

    def explain(self) -> str:
        """One line for the run's summary."""
        counts = Counter(self.layers.values())
        layers = ", ".join(f"{count} {method}" for method, count in counts.most_common())
        return f"book-keeping: one forward and backward pass; norms of layers: {layers}"

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets [b, …]; b may be 0.

        Raises:
            ClippingError: If a layer mixes records, or the loss is not one value a record.
            BookKeepingError: If a parameter is used in a way that book-keeping cannot follow.
        """
        known = self._looked_through()
        parameters = known.parameters
        if not len(targets):
            return empty_sum(parameters)
        followed = known.chain is not None and known.chain.follows(inputs)
        if known.small is not None and followed:
            found = known.small(inputs, targets)
            if found is not None:
                self.layers = known.small.methods
                return found
        if known.chain is not None and followed:
            total = empty_sum(parameters).total
            return self._written_out(known.chain, inputs, targets, total, parameters)
        return self._kept(known, inputs, targets, None)

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """The clipped sum of people's mean gradients: see `clipped_sum.PeopleEngine`.

        Raises:
            ClippingError: As for records.
        """
        known = self._looked_through()
        if not len(targets):
            return empty_sum(known.parameters)
        followed = known.chain is not None and known.chain.follows(inputs)
        if known.small is not None and followed:
            found = known.small(inputs, targets, sizes)
            if found is not None:
                self.layers = known.small.methods
                return found
        people = Groups(sizes, inputs.device)
        if known.chain is not None and followed:
            total = empty_sum(known.parameters).total
            return self._written_out(known.chain, inputs, targets, total, known.parameters, people)
        return self._kept(known, inputs, targets, people)

    def _kept(
        self, known: _Known, inputs: Tensor, targets: Tensor, people: Groups | None
    ) -> ClippedSum:
        """The clipped sum of what each layer keeps of both passes."""
        parameters, empty = known.parameters, empty_sum(known.parameters)
        done = self._backward(known, inputs, targets, people)
        squared_norms = _squared_norms(done, empty.total.device)
        self.layers = {record.site.name: record.method for record in done.records}
        weights = self._clipping.weights(squared_norms, empty.total.dtype)
        return weights.summed(_weighted_sum(done, parameters, weights, empty.total))

    def _written_out(
        self,
        layers: Chain,
        inputs: Tensor,
        targets: Tensor,
        total: Tensor,
        parameters: Mapping[str, Tensor],
        people: Groups | None = None,
    ) -> ClippedSum:
        """The clipped sum of linear layers one after another, in a total [d] of zeros."""
        used = layers.backward(inputs, targets, self._loss)
        self.layers = layers.methods
        squared = chain.squared_norms(used) if people is None else people.squared_norms(used)
        weights = self._clipping.weights(squared, total.dtype)
        # A person's factor is shared by all of their records, so that one product adds all up.
        each = weights if people is None else people.of_records(weights)
        factors, rows = _weighed(each, total.dtype)
        if len(factors):
            chain.weighted_sum(used, factors, rows, views_of(total, parameters))
        return weights.summed(total)

    def _backward(
        self, known: _Known, inputs: Tensor, targets: Tensor, people: Groups | None
    ) -> Pass:
        """Run both passes; every trainable parameter must have handed over its gradients."""
        done, parameters = Pass(len(targets), people=people), known.parameters
        with torch.enable_grad(), done.watching(known.sites):
            with computing_in(self._precision, inputs.device):
                outputs = self._model(inputs)
            losses = record_losses(self._loss, wide(outputs), targets)
            if people is not None:
                losses = people.averaged(losses)
            if not losses.requires_grad:
                return done
            left = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, left, strict=True):
            # No site gives a gradient back. One that arrives here came by another way, is summed
            # over records, and would escape clipping.
            if gradient is not None:
                raise BookKeepingError(f"parameter {name!r} is used outside its own module")
        return done


def _squared_norms(done: Pass, device: torch.device) -> Tensor:
    """Squared norm of every record's gradient over all sites, float64 [b]."""
    parts = [record.finish() for record in done.records]
    of_short = done.short.squared_norms()
    if of_short is None:
        of_short = torch.zeros(done.gradients, dtype=torch.float64, device=device)
    result = sum_of([of_short, *(part for part in parts if part is not None)])
    forms = [record.form for record in done.records if record.form is not None]
    finite = torch.isfinite(result)
    if forms and not bool(finite.all()):
        unsure = (~finite).nonzero().flatten()
        exact = [form.exact_squared_norms(unsure) for form in forms]
        # Short gradients were squared in float64 in the first place.
        result[unsure] = sum_of([of_short[unsure], *exact])
    return result


def _weighted_sum(
    done: Pass, parameters: Mapping[str, Tensor], weights: Weights, total: Tensor
) -> Tensor:
    """Fill a total [d] of zeros with Σ_j c_j g_j over the records whose gradient is finite."""
    views = views_of(total, parameters)
    factors, rows = _weighed(weights, total.dtype)
    if not len(factors):
        return total
    for record in done.records:
        if record.form is not None:
            record.form.weighted_sum(factors, rows, record.targets(views))
            record.form = None
    done.short.weighted_sum(factors, rows, views)
    return total


def _weighed(weights: Weights, kind: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The factors [n] of records whose gradient is finite, and their places, None for all."""
    rows = None if weights.all_finite else weights.finite.nonzero().flatten()
    factors = weights.factors if rows is None else weights.factors[rows]
    return factors.to(kind), rows


class Structure:
    """A model's modules, parameters and buffers, by identity, and their modes.

    To find where all parameters of a transformer are used, and that no layer mixes records, takes
    as long as several of its layers compute. Between two batches nothing of it changes as a rule;
    this says whether it did.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = tuple(model.modules())
        # Held, so that nothing new can take the place of what is gone.
        self._seen = tuple(self._look())

    def unchanged(self) -> bool:
        """Whether modules, parameters, what is trained, and modes are what they were."""
        now = tuple(self._look())
        return len(now) == len(self._seen) and all(map(operator.is_, now, self._seen))

    def _look(self) -> Iterator[object]:
        for module in self._modules:
            own = vars(module)
            yield from own["_modules"].values()
            yield from own["_buffers"].values()
            for parameter in own["_parameters"].values():
                yield parameter
                yield parameter is not None and parameter.requires_grad
            yield own["training"]
            yield own.get("track_running_stats")
            yield "forward" in own
            yield type(module).forward
