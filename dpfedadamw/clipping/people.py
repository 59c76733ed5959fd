"""Mean gradients of people from the gradients of their records, before anything is clipped.

Engines form gradients, or what they follow from, record by record. Where people are protected, the
losses of a person's records are divided by how many there are, and what belongs to one person is
added up here; from then on a person is what a record is elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from dpfedadamw.clipping.chain import Used
from dpfedadamw.clipping.embeddings import TableRows
from dpfedadamw.clipping.forms import (
    GRAM_ROUNDING,
    Factored,
    GradientForm,
    Kept,
    form_of_product,
)
from dpfedadamw.clipping.products import LinearProducts
from dpfedadamw.privacy.clipped_sum import Weights


def means(gradients: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean over each person's records of gradients [b, d], [people, d]."""
    groups = Groups(sizes, gradients.device)
    return groups.added(gradients) / torch.tensor(sizes, device=gradients.device)[:, None]


class Groups:
    """Whose each of b records is.

    Args:
        sizes: How many records each person has, one after another.
        device: Where tensors live.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self._most = max(sizes)
        self._alike = min(sizes) == self._most
        self._sizes = torch.tensor(sizes, device=device)
        self._person = torch.repeat_interleave(self._sizes)
        ends = torch.cumsum(self._sizes, 0)
        places = torch.arange(len(self._person), device=device)
        self._place = places - (ends - self._sizes)[self._person]

    def __len__(self) -> int:
        return len(self._sizes)

    def averaged(self, losses: Tensor) -> Tensor:
        """Losses [b], each divided by how many records its person has."""
        return losses / self._sizes[self._person]

    def added(self, gradients: Tensor) -> Tensor:
        """The sum over each person's records of gradients [b, …], [people, …]."""
        total = gradients.new_zeros(len(self), *gradients.shape[1:])
        return total.index_add_(0, self._person, gradients)

    def side_by_side(self, values: Tensor) -> Tensor:
        """Values [b, …, n] of each person's records as places of one: [people, most · T, n].

        Where a person has fewer records than others, zeros fill up, which add nothing to a product.
        """
        places = values.reshape(len(values), -1, values.shape[-1])
        if self._alike:
            return places.reshape(len(self), -1, values.shape[-1])
        whole = values.new_zeros(len(self), self._most, *places.shape[1:])
        whole[self._person, self._place] = places
        return whole.flatten(1, 2)

    def _products(self, rows: Tensor) -> Tensor:
        """Inner products in float64 of each person's rows of [b, n], [people, most, most].

        Where a person has fewer rows than others, their first one fills up: see `squared_norms`.
        """
        wide = (
            (rows if self._alike else rows[self._filled]).double().view(len(self), self._most, -1)
        )
        return torch.bmm(wide, wide.transpose(1, 2))

    @cached_property
    def _filled(self) -> Tensor:
        """Each person's rows, and where they are fewer than others' the first one again."""
        place = torch.arange(self._most, device=self._sizes.device)
        starts = torch.cumsum(self._sizes, 0) - self._sizes
        return (starts[:, None] + torch.where(self._there, place, 0)).flatten()

    @cached_property
    def _there(self) -> Tensor:
        """Which places of [people, most] have a row of their own."""
        return torch.arange(self._most, device=self._sizes.device) < self._sizes[:, None]

    def squared_norms(self, used: Sequence[Used]) -> Tensor:
        """Squared norms of people's mean gradients over linear layers, float64 [people].

        By Gram matrices in float64. The sum over records is then taken in the gradients' own
        precision, where they may cancel to far less than what rounding leaves of them: as in
        `forms`, what it may leave is added, so that a norm is overestimated by a little and never
        underestimated.
        """
        total = torch.zeros(len(self), dtype=torch.float64, device=self._sizes.device)
        for one in used:
            products = self._products(one.inputs)
            if one.layer.bias is not None:
                products += 1.0
            products *= self._products(one.gradients)
            if not self._alike:
                # A row that fills up is the person's own: it is left out here, and what is not
                # finite in it would count in any case.
                there = self._there[:, :, None] & self._there[:, None, :]
                products = products.masked_fill(~there, 0.0)
            total += products.sum((1, 2)).clamp_(min=0.0)
            if products.shape[1] > 1:
                norms = products.diagonal(dim1=1, dim2=2).clamp(min=0.0).sqrt().sum(1)
                total += GRAM_ROUNDING * torch.finfo(one.gradients.dtype).eps * norms.square()
        return total / self._sizes.double().square()

    def of_records(self, weights: Weights) -> Weights:
        """What each record's gradient is multiplied by: its person's factor, over their number."""
        factors = weights.factors / self._sizes
        return replace(weights, factors=factors[self._person], finite=weights.finite[self._person])

    def of(self, form: GradientForm) -> GradientForm:
        """The form of people's gradients, where that of their records' is given.

        Of a linear layer's inputs and output gradients a person has as many places as all records
        together, so that the norm is that of one longer sequence.
        """
        if isinstance(form, Factored) and isinstance(form.layer, LinearProducts):
            return form_of_product(
                form.layer,
                self.side_by_side(form.inputs),
                self.side_by_side(form.outputs),
                weight=True,
                bias=form.bias is not None,
            )
        if isinstance(form, TableRows):
            return form.of_groups(self._person, len(self))
        kept = form.kept()
        return Kept({name: self.added(one) for name, one in kept.gradients.items()}, kept.method)
