"""Planted records: what they put into a clipped sum, through the rule that clips every record.

An audit run holds canaries in place of some training records, so that every number of the privacy
plan stays what it was. A fair coin decides whether a canary is there. Under add/remove adjacency
one that is not there is a record whose gradient is 0, which is the same as no record: the sampler
draws it at its rate, it adds nothing, and the divisor is public. Under replace-one adjacency the
other record of the pair stands in its place, with the opposite gradient.

Two kinds:

* ``gradient``: the gradient is given, ten times the clipping norm along one coordinate of the
  canary's own (a "Dirac canary", Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini & Terzis
  2023). Nothing can show more: after clipping it is C in a direction that no other canary of the
  client touches. It goes through the sampler, the clipping rule, the sum, the noise and all that
  follows; the model's backward pass is the one part that it skips.
* ``input``: the record is given, and goes through the whole engine like any other, in one batch
  with the client's own (`crafted`).

A third, ``label`` (real records with wrong labels), is retired: canaries of one client looked so
alike that 300 of them did not see a run without noise. Runs that were made with it can be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.clipped_sum import ClippedSum, ClippedSumEngine, Clipping
from dpfedadamw.privacy.noise.streams import Stream

KINDS = ("gradient", "input")
RETIRED = {"label": "300 of them did not detect a run without noise; use input"}
# Of the gradients of one client's canaries, which are held at once.
_MOST_BYTES = 1 << 30
# The auditor reads no more.
MOST_CANARIES = 100_000
# Times C: far outside, so that a canary shows whether clipping works.
MAGNITUDE = 10.0
# In the place of a class: -1 - i marks the canary i. Labels of tokens may be negative themselves
# (`task.ignore_index`), and numbers too; no target is as large as these.
_FIRST_MARK, _FIRST_OF_TOKENS, _FIRST_OF_NUMBERS = -1, -(1 << 40), -(2.0**100)
# Exact in float32, which has room for more of them than the auditor reads.
_STEP = 2.0**-23


@dataclass(frozen=True)
class CanaryOrder:
    """What an audit run is asked to plant.

    Attributes:
        count: N, at least 1.
        kind: One of :data:`KINDS`.
        audited: Identifier of the run whose spec is trained again; None where a spec is audited.
    """

    count: int
    kind: str = "gradient"
    audited: str | None = None


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """The N canaries of an audit run, those of one client side by side.

    Attributes:
        kind: One of :data:`KINDS`.
        client: Whose place each takes, ascending, int64 [N].
        row: Which of the client's records, int64 [N].
        included: The coins, bool [N].
        opposed: Whether a canary that is not included has the opposite gradient instead of none.
        coordinate: Where its gradient points, int64 [N]; of the kind "gradient".
        label: The class of the crafted record, int64 [N], or what targets the task has, [N, …]; of
            the kind "input".
    """

    kind: str
    client: NDArray[np.int64]
    row: NDArray[np.int64]
    included: NDArray[np.bool_]
    opposed: bool
    coordinate: NDArray[np.int64]
    label: NDArray[Any]

    def of_client(self, client: int) -> slice:
        """The canaries of one client."""
        first, last = np.searchsorted(self.client, [client, client + 1])
        return slice(int(first), int(last))

    @property
    def signs(self) -> NDArray[np.float64]:
        """+1 for what is included; else -1 where canaries are opposed, and 0 where not, [N]."""
        return np.where(self.included, 1.0, -1.0 if self.opposed else 0.0)

    def marked(self, client: int, labels: Tensor) -> Tensor:
        """A client's labels with marks where canaries have taken a record's place, [R_i, …]."""
        own = self.of_client(client)
        changed = labels.clone()
        rows = torch.from_numpy(self.row[own]).to(labels.device)
        numbers = torch.arange(own.start, own.stop, device=labels.device)
        places = (-1, *(1 for _ in labels.shape[1:]))
        if labels.is_floating_point():
            marks = (_FIRST_OF_NUMBERS * (1.0 + numbers.double() * _STEP)).to(labels.dtype)
        else:
            marks = (_FIRST_MARK if labels.dim() == 1 else _FIRST_OF_TOKENS) - numbers
        changed[rows] = marks.reshape(places).expand(-1, *labels.shape[1:])
        return changed


def _marked(targets: Tensor) -> tuple[Tensor, NDArray[np.int64]]:
    """Which targets [b, …] are marks, bool [b], and the numbers of their canaries."""
    first = targets if targets.dim() == 1 else targets.flatten(1)[:, 0]
    if targets.is_floating_point():
        planted = first <= _FIRST_OF_NUMBERS
        numbers = ((first[planted].double() / _FIRST_OF_NUMBERS - 1.0) / _STEP).round().long()
    else:
        highest = _FIRST_MARK if targets.dim() == 1 else _FIRST_OF_TOKENS
        planted = first <= highest
        numbers = highest - first[planted]
    found: NDArray[np.int64] = numbers.cpu().numpy()
    return planted, found


def draw_canaries(
    order: CanaryOrder,
    sizes: Sequence[int],
    parameters: int,
    opposed: bool,
    coins: Stream,
) -> Canaries:
    """Choose whose places canaries take, and toss their coins.

    Places and coordinates are public and the same for the same spec; the coins are not.

    Args:
        order: How many of which kind.
        sizes: How many records every client has.
        parameters: d.
        opposed: Whether the adjacency is replace-one.
        coins: Where the coins come from.

    Raises:
        PrivacyError: If there are fewer records, coordinates or bytes than canaries need, or the
            kind is not planted any more.
    """
    count, kind = order.count, order.kind
    if kind not in KINDS:
        raise PrivacyError(f"canaries of the kind {kind}: {RETIRED.get(kind, 'are unknown')}")
    if count > MOST_CANARIES:
        raise PrivacyError(
            f"{count} canaries take too long to judge; plant at most {MOST_CANARIES}"
        )
    if not 1 <= count <= sum(sizes):
        raise PrivacyError(
            f"{count} canaries cannot replace {sum(sizes)} training records, and adding them would "
            f"change the sampling rates of the claim; plant 1 to {sum(sizes)}"
        )
    shares = spread(count, list(sizes))
    if kind == "gradient" and max(shares) > parameters:
        raise PrivacyError(
            f"{max(shares)} canaries of one client need as many coordinates, and the model has "
            f"{parameters}; plant fewer"
        )
    if kind == "input" and max(shares) * parameters * 4 > _MOST_BYTES:
        raise PrivacyError(
            f"{max(shares)} crafted inputs of one client, with a gradient of {parameters} numbers "
            f"each, take more than {_MOST_BYTES >> 20} MiB; plant fewer, or use the kind gradient"
        )
    choice = np.random.default_rng([count, parameters])
    rows = [
        np.sort(choice.choice(size, share, replace=False))
        for size, share in zip(sizes, shares, strict=True)
    ]
    places = choice.permutation(parameters)
    client = np.repeat(np.arange(len(sizes)), shares)
    return Canaries(
        kind=kind,
        client=client.astype(np.int64),
        row=np.concatenate(rows).astype(np.int64),
        included=coins.bernoulli(0.5, count),
        opposed=opposed and kind == "gradient",
        # No two alike as long as there are enough; within a client there always are.
        coordinate=places[np.arange(count) % parameters].astype(np.int64),
        label=np.zeros(count, dtype=np.int64),
    )


def draw_canary_clients(
    order: CanaryOrder, clients: int, parameters: int, released: int, coins: Stream
) -> Canaries:
    """Choose which clients are canaries, and toss their coins.

    A canary client's whole update is given, ten times the clipping norm along a coordinate of its
    own; one that is not included uploads zeros, which adds as much as a client that is not there.

    Args:
        order: How many.
        clients: Number of clients.
        parameters: d.
        released: Coordinates that a round releases, at most d.
        coins: Where the coins come from.

    Raises:
        PrivacyError: If there are fewer clients, or coordinates, than canaries need.
    """
    most = min(clients, released)
    if not 1 <= order.count <= most:
        raise PrivacyError(
            f"{order.count} canaries cannot replace {clients} clients in a model of {parameters} "
            f"parameters, of which a round releases {released}; plant 1 to {most}"
        )
    choice = np.random.default_rng([order.count, parameters])
    none = np.zeros(order.count, dtype=np.int64)
    return Canaries(
        kind="gradient",
        client=np.sort(choice.choice(clients, order.count, replace=False)).astype(np.int64),
        row=none,
        included=coins.bernoulli(0.5, order.count),
        opposed=False,
        coordinate=choice.permutation(parameters)[: order.count].astype(np.int64),
        label=none,
    )


def spread(count: int, sizes: list[int]) -> list[int]:
    """Share a number out as evenly as sizes allow; the sum of the sizes is at least that number."""
    shares = [0] * len(sizes)
    left = count
    while left:
        open_ = [i for i, size in enumerate(sizes) if shares[i] < size]
        each, more = divmod(left, len(open_))
        for place, i in enumerate(open_):
            taken = min(sizes[i] - shares[i], each + (place < more))
            shares[i] += taken
            left -= taken
    return shares


class CanaryEngine:
    """A clipped-sum engine that knows planted records by their marks.

    All other records, and crafted ones among them, go to the engine that it stands before.

    Attributes:
        others: Σ clip(g_j) over the records that are no canaries, of all batches since
            :meth:`forget`, [d]; None if there was none.
    """

    def __init__(self, inner: ClippedSumEngine, canaries: Canaries, clipping_norm: float) -> None:
        self.others: Tensor | None = None
        self._inner = inner
        self._canaries = canaries
        self._clipping = Clipping(clipping_norm)

    @property
    def name(self) -> str:
        """That of the engine behind it."""
        return self._inner.name

    @property
    def layers(self) -> Mapping[str, str]:
        """Those of the engine behind it."""
        return self._inner.layers

    def explain(self) -> str:
        """One line for the run's summary."""
        return self._inner.explain()

    def forget(self) -> None:
        """Begin a new query."""
        self.others = None

    def __call__(self, inputs: Tensor, targets: Tensor) -> ClippedSum:
        """The clipped sum of records [b, …] with targets or marks [b, …]; b may be 0."""
        planted, marks = _marked(targets)
        real = ~planted
        if not len(marks):
            return self._noted(self._inner(inputs, targets))
        rest = self._noted(self._inner(inputs[real], targets[real]))
        if self._canaries.kind == "input":
            return self._crafted(inputs, targets, (planted, marks), rest)
        added = self._planted(marks, rest.total)
        raw = rest.raw_norms.new_zeros(len(targets))
        clipped = torch.zeros_like(raw)
        raw[real], clipped[real] = rest.raw_norms, rest.clipped_norms
        raw[~real], clipped[~real] = added.raw_norms, added.clipped_norms
        nonfinite = rest.nonfinite + added.nonfinite
        return ClippedSum(rest.total + added.total, raw, clipped, nonfinite)

    def _crafted(
        self,
        inputs: Tensor,
        targets: Tensor,
        marked: tuple[Tensor, NDArray[np.int64]],
        rest: ClippedSum,
    ) -> ClippedSum:
        """The clipped sum of a batch with crafted records in it, those that are included.

        In one call with all others, so that what one record does to others is seen.
        """
        labels = targets.clone()
        planted, marks = marked
        labels[planted] = torch.from_numpy(self._canaries.label[marks]).to(labels.device)
        there = ~planted
        there[planted] = torch.from_numpy(self._canaries.included[marks]).to(there.device)
        raw = rest.raw_norms.new_zeros(len(targets))
        clipped = torch.zeros_like(raw)
        found = rest
        if bool(there[planted].any()):
            found = self._inner(inputs[there], labels[there])
        raw[there], clipped[there] = found.raw_norms, found.clipped_norms
        return ClippedSum(found.total, raw, clipped, found.nonfinite)

    def _noted(self, clipped: ClippedSum) -> ClippedSum:
        self.others = clipped.total if self.others is None else self.others + clipped.total
        return clipped

    def _planted(self, chosen: NDArray[np.int64], like: Tensor) -> ClippedSum:
        """The clipped sum of some canaries, of which those that are not included add nothing."""
        signs = torch.from_numpy(self._canaries.signs[chosen]).to(like.device)
        there = signs != 0.0
        raw = torch.zeros(len(chosen), dtype=torch.float64, device=like.device)
        clipped = torch.zeros_like(raw)
        lengths = signs.abs() * MAGNITUDE * self._clipping.norm
        weights = self._clipping.weights(lengths.square()[there], like.dtype)
        total = torch.zeros_like(like)
        places = torch.from_numpy(self._canaries.coordinate[chosen]).to(like.device)
        added = (lengths * signs)[there].to(like.dtype) * weights.factors.to(like.dtype)
        total.index_add_(0, places[there], added)
        whole = weights.summed(total)
        raw[there], clipped[there] = whole.raw_norms, whole.clipped_norms
        return ClippedSum(total, raw, clipped, whole.nonfinite)
