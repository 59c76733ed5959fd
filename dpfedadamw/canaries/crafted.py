"""Crafted inputs: records whose gradients are large and point in directions of their own.

A canary of the kind ``input`` is a record, made from public knowledge alone: the shape and type
of the data set's records, the number of classes and the initial model. It takes the place of a
training record and goes the whole way of one: loader, forward and backward pass, clipping, sum,
noise. Of a pool of random sparse patterns with random classes, each client's are those that a
pivoted Cholesky factorisation of their clipped gradients' inner products picks first: the record
whose clipped gradient has most left after what the chosen ones span is taken away (Nasr, Hayes,
Steinke, Balle, Tramèr, Jagielski, Carlini & Terzis 2023 craft inputs by the same two wishes, one at
a time).

While the model learns, gradients turn. So at every answer each canary's gradient g_j is recomputed
by a plain backward pass of one record, which shares nothing with the engine. With c_j = g_j·min(1,
C/‖g_j‖)/C and r the released sum less that of all other records, over C:

* The adversary, who knows no coin, estimates whether c_j is in r by least squares over all canaries
  of the client: β = G⁻¹p with G = (⟨c_i, c_j⟩), p = (⟨c_j, r⟩). With a_j = 1/√(G⁻¹)_jj, which is
  the part of c_j that no other canary shares, a_j β_j has mean a_j if the canary is drawn, 0 if
  not, and variance σ².
* The auditor, who knows the coins, takes the canaries in the order "all that are in, then all that
  are out", and of each the part that those before do not span. G = LLᵀ, y = L⁻¹p: y_k has variance
  σ², all y are independent, and the mean of y_k is Σ_{j ≥ k, in and drawn} L_jk. So that of one
  that is out is 0 whatever was drawn, and that of one that is in lies between the sum of the
  negative and the sum of the positive L_jk. `audit.canaries.e_values` tests both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.canaries.engine import MAGNITUDE, Canaries
from dpfedadamw.data.datasets import Dataset
from dpfedadamw.data.stored import StoredRecords, Views
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.models.registry import loss_of, synthetic_records
from dpfedadamw.vectors.flat import FlatParameters

# Share of a pattern's numbers that are not 0, one of them for each candidate.
_DENSITIES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
# Numbers have no bounds: patterns are made larger until gradients are far outside C.
_AMPLITUDES = (1.0, 4.0, 16.0, 64.0)
_BRIGHTEST = 255
# The least own part of a canary's gradient, over C; below it rounding would matter.
_LEAST_OWN = 0.02
_JITTER = 1e-8


@dataclass(frozen=True)
class CraftedRecords(StoredRecords):
    """Stored records, of which some were replaced by canaries.

    Attributes:
        planted: Canaries as they would be stored, by the number of the stored record.
    """

    planted: Mapping[int, NDArray[Any]] = field(default_factory=dict)

    def stored(self, part: slice) -> NDArray[Any]:
        """Some records as they are stored, canaries in their places."""
        found = super().stored(part)
        places = self._places(part)
        if places:
            found = np.array(found)
            for place, row in places.items():
                found[place] = self.planted[row]
        return found

    def viewed(self, batch: Tensor, views: Views, part: slice) -> Tensor:
        """The random views of the records; canaries are seen as they are."""
        found = super().viewed(batch, views, part)
        places = list(self._places(part))
        found[places] = batch[places]
        return found

    def _places(self, part: slice) -> dict[int, int]:
        """Which of some records are canaries, with the numbers of the stored records."""
        rows = np.arange(len(self.values))[part] if self.rows is None else self.rows[part]
        return {place: row for place, row in enumerate(rows.tolist()) if row in self.planted}


@dataclass(frozen=True)
class OwnDirections:
    """What one answer says of a client's m canaries, in units of C; NaN where a direction is lost.

    Attributes:
        projections: [m] a_j β_j, of variance σ².
        contributions: [m] a_j.
        residuals: [m] y, of variance σ² each and independent.
        residual_shift: [m] L_kk: by what the canary itself moves its y.
        residual_low: [m] the least mean of y.
        residual_high: [m] the largest.
        residual_total: [m] by what the canary moves the sum of all y of those that are in.
    """

    projections: NDArray[np.float64]
    contributions: NDArray[np.float64]
    residuals: NDArray[np.float64]
    residual_shift: NDArray[np.float64]
    residual_low: NDArray[np.float64]
    residual_high: NDArray[np.float64]
    residual_total: NDArray[np.float64]


def record_gradients(flat: FlatParameters, inputs: Tensor, labels: Tensor) -> Tensor:
    """Gradients of single records at the module's parameters, [b, d], one backward pass each."""
    weights = [one for one in flat.module.parameters() if one.requires_grad]
    found = torch.zeros(len(labels), flat.layout.size, device=flat.vector.device)
    for index in range(len(labels)):
        one = slice(index, index + 1)
        loss = loss_of(flat.module)(flat.module(inputs[one]), labels[one]).sum()
        parts = torch.autograd.grad(loss, weights)
        found[index] = torch.cat([part.reshape(-1) for part in parts])
    return found


def clipped(gradients: Tensor, clipping_norm: float) -> Tensor:
    """Gradients [b, d] after clipping, over C; 0 where one is not finite."""
    norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
    factors = (clipping_norm / norms).clamp(max=1.0) / clipping_norm
    finite = torch.isfinite(norms)
    factors = torch.where(finite, factors, 0.0).to(gradients.dtype)
    return torch.where(finite[:, None], gradients, 0.0) * factors[:, None]


def directions(gradients: Tensor, released: Tensor, included: NDArray[np.bool_]) -> OwnDirections:
    """What a released sum says of some canaries.

    Args:
        gradients: Clipped gradients over C, [m, d].
        released: The released sum less that of all other records, over C, float64 [d].
        included: The coins, [m].
    """
    wide = gradients.double()
    gram = (wide @ wide.T).cpu().numpy() + _JITTER * np.eye(len(gradients))
    along = (wide @ released).cpu().numpy()
    inverse = np.linalg.inv(gram)
    own = 1.0 / np.sqrt(np.diag(inverse))
    lost = own < _LEAST_OWN
    projections, contributions = own * (inverse @ along), own.copy()
    projections[lost] = contributions[lost] = 0.0

    order = np.argsort(~included, kind="stable")
    factor = np.linalg.cholesky(gram[np.ix_(order, order)])
    residuals = np.linalg.solve(factor, along[order])
    moved = np.tril(factor) * included[order][:, None]
    shift = np.diag(factor).copy()
    kept = shift >= _LEAST_OWN
    residuals[~kept] = np.nan
    total = np.tril(factor)[:, kept & included[order]].sum(1) * included[order]
    back = np.argsort(order)
    return OwnDirections(
        projections=projections,
        contributions=contributions,
        residuals=residuals[back],
        residual_shift=(shift * included[order])[back],
        residual_low=np.minimum(moved, 0.0).sum(0)[back],
        residual_high=np.maximum(moved, 0.0).sum(0)[back],
        residual_total=total[back],
    )


def craft(
    flat: FlatParameters,
    canaries: Canaries,
    dataset: Dataset,
    clipping_norm: float,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Records and targets of all canaries, at the initial model; the same for the same spec.

    All records that a canary has at a client are this one, so that their mean gradient is its own,
    whichever of them are drawn.

    Args:
        flat: The model's parameters, initial.
        canaries: How many each client has.
        dataset: Of its training records shape and type alone are looked at.
        clipping_norm: C.

    Returns:
        The records as they would be stored, [N, …], and their targets [N, …].
    """
    choice = np.random.default_rng([len(canaries.client), flat.layout.size])
    records: list[NDArray[Any]] = []
    labels: list[NDArray[Any]] = []
    stored = dataset.train.inputs
    for count in np.unique(canaries.client, return_counts=True)[1].tolist():
        for amplitude in _AMPLITUDES:
            pool = _patterns(choice, flat, stored, 2 * count + 16, amplitude)
            wanted = dataset.made_up(choice.integers(0, dataset.kinds_made_up, len(pool)))
            inputs = replace(stored, values=pool, rows=None, stream=None)[0 : len(pool)]
            gradients = record_gradients(
                flat, inputs, torch.from_numpy(wanted).to(flat.vector.device)
            )
            norms = torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64)
            if pool.dtype != np.float32 or float(norms.median()) >= MAGNITUDE * clipping_norm:
                break
        chosen = _most_apart(clipped(gradients, clipping_norm), count)
        records.append(pool[chosen])
        labels.append(wanted[chosen])
    return np.concatenate(records), np.concatenate(labels)


def _patterns(
    choice: np.random.Generator,
    flat: FlatParameters,
    stored: StoredRecords,
    count: int,
    amplitude: float,
) -> NDArray[Any]:
    shape, kind = stored.values.shape[1:], stored.values.dtype
    if stored.preprocessing is None:
        numbers = torch.from_numpy(choice.standard_normal((count, *shape)).astype(np.float32))
        tokens: NDArray[Any] = synthetic_records(flat.module, numbers).numpy()
        return tokens.astype(kind)
    density = choice.choice(_DENSITIES, (count, *(1 for _ in shape)))
    pattern = choice.random((count, *shape)) < density
    return (pattern * (_BRIGHTEST if kind == np.uint8 else amplitude)).astype(kind)


def _most_apart(gradients: Tensor, count: int) -> NDArray[np.int64]:
    """Rows of [P, d] by a pivoted Cholesky factorisation, the one that has most left first."""
    wide = gradients.double()
    gram = (wide @ wide.T).cpu().numpy()
    left, factor = np.diag(gram).copy(), np.zeros((len(gram), count))
    chosen: list[int] = []
    for step in range(count):
        free = left.copy()
        free[chosen] = -np.inf
        best = int(np.argmax(free))
        chosen.append(best)
        column = gram[:, best] - factor[:, :step] @ factor[best, :step]
        factor[:, step] = column / np.sqrt(max(left[best], _JITTER))
        left = np.maximum(left - factor[:, step] ** 2, 0.0)
    return np.array(chosen, dtype=np.int64)


def with_records(
    clients: Sequence[ClientData], canaries: Canaries, records: NDArray[Any]
) -> list[ClientData]:
    """The clients' records with crafted ones in the places of the canaries' rows.

    Args:
        clients: Every client's records.
        canaries: Whose rows.
        records: The canaries as they would be stored, [N, …].
    """
    found = list(clients)
    for client, data in enumerate(clients):
        own, inputs = canaries.of_client(client), data.inputs
        if own.start == own.stop:
            continue
        assert isinstance(inputs, StoredRecords)
        rows = inputs.rows if inputs.rows is not None else np.arange(len(inputs))
        places, numbers = canaries.rows(own)
        planted = dict(zip(rows[places].tolist(), records[numbers], strict=True))
        fields = {one.name: getattr(inputs, one.name) for one in dataclass_fields(inputs)}
        found[client] = replace(data, inputs=CraftedRecords(**fields, planted=planted))
    return found
