"""Planted records and people: what they put into a clipped sum, through the rule that clips all.

An audit run holds canaries in place of some training records, so that every number of the privacy
plan stays what it was. A fair coin decides whether a canary is there. Under add/remove adjacency
one that is not there is a record whose gradient is 0, which is the same as no record: the sampler
draws it at its rate, it adds nothing, and the divisor is public. Under replace-one adjacency the
other record of the pair stands in its place, with the opposite gradient.

Where people are protected, a canary is a person with all of their records, and stands in the place
of one of those who are at most clients and have most records. The canary has a part at each of
these clients, and one coin for all parts. Of a drawn part as many records are in the batch as of
any other person, and their mean is clipped.

Three kinds:

* ``gradient``: the gradient is given, ten times the clipping norm along one coordinate of the
  canary's own (a "Dirac canary", Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski, Carlini & Terzis
  2023). Nothing can show more: after clipping it is C in a direction that no other canary of the
  client touches. It goes through the sampler, the clipping rule, the sum, the noise and all that
  follows; the model's backward pass is the one part that it skips.
* ``input``: the record is given, and goes through the whole engine like any other, in one batch
  with the client's own (`crafted`).
* ``secret``: of a language model, the same with a text that holds a made-up code (`secrets`).

A fourth, ``label`` (real records with wrong labels), is retired: canaries of one client looked so
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

from dpfedadamw.clipping.people import means
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.clipped_sum import ClippedSum, ClippedSumEngine, Clipping, summed
from dpfedadamw.privacy.noise.streams import Stream

KINDS = ("gradient", "input", "secret")
# Of these the record is given, and its gradient is computed.
RECORDS = ("input", "secret")
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

    People who are at several clients have a part at each. N is then the number of parts.

    Attributes:
        kind: One of :data:`KINDS`.
        client: Whose place each takes, ascending, int64 [N].
        row: Which of the client's records, int64 [N]; of people all of theirs, one part's after
            another's, [R].
        included: The coins, bool [N].
        opposed: Whether a canary that is not included has the opposite gradient instead of none.
        coordinate: Where its gradient points, int64 [N]; of the kind "gradient".
        label: The class of the planted record, int64 [N], or what targets the task has, [N, …]; of
            the kinds "input" and "secret".
        part: Whose each row is, ascending, int64 [R]; None where each canary has one.
        person: Of whom each is a part, int64 [N]; None where each stands for itself.
    """

    kind: str
    client: NDArray[np.int64]
    row: NDArray[np.int64]
    included: NDArray[np.bool_]
    opposed: bool
    coordinate: NDArray[np.int64]
    label: NDArray[Any]
    part: NDArray[np.int64] | None = None
    person: NDArray[np.int64] | None = None

    def of_client(self, client: int) -> slice:
        """The canaries of one client."""
        first, last = np.searchsorted(self.client, [client, client + 1])
        return slice(int(first), int(last))

    def rows(self, own: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The client's records that some canaries of one client are, and whose each is."""
        if self.part is None:
            return self.row[own], np.arange(own.start, own.stop)
        first, last = np.searchsorted(self.part, [own.start, own.stop])
        return self.row[first:last], self.part[first:last]

    @property
    def signs(self) -> NDArray[np.float64]:
        """+1 for what is included; else -1 where canaries are opposed, and 0 where not, [N]."""
        return np.where(self.included, 1.0, -1.0 if self.opposed else 0.0)

    def marked(self, client: int, labels: Tensor) -> Tensor:
        """A client's labels with marks where canaries have taken a record's place, [R_i, …]."""
        changed = labels.clone()
        rows, numbers = (
            torch.from_numpy(one).to(labels.device) for one in self.rows(self.of_client(client))
        )
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
    _check_order(order)
    if not 1 <= count <= sum(sizes):
        raise PrivacyError(
            f"{count} canaries cannot replace {sum(sizes)} training records, and adding them would "
            f"change the sampling rates of the claim; plant 1 to {sum(sizes)}"
        )
    shares = spread(count, list(sizes))
    _check_share(kind, max(shares), parameters)
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


def draw_canary_people(
    order: CanaryOrder,
    people: NDArray[np.int64],
    owner: NDArray[np.int64],
    parameters: int,
    opposed: bool,
    coins: Stream,
) -> Canaries:
    """Choose which people are canaries, and toss their coins.

    They take the places of those who are at most clients, and of these of those who have most
    records: what one person may do at most is done by such people.

    Args:
        order: How many of which kind.
        people: Whom each training record is about, [n].
        owner: The client of each, [n].
        parameters: d.
        opposed: Whether the adjacency is replace-one.
        coins: Where the coins come from.

    Raises:
        PrivacyError: If there are fewer people, coordinates or bytes than canaries need, or the
            kind is not planted any more.
    """
    count, kind = order.count, order.kind
    _check_order(order)
    names, number, records = np.unique(people, return_inverse=True, return_counts=True)
    if not 1 <= count <= len(names):
        raise PrivacyError(
            f"{count} canaries cannot replace {len(names)} people with training records; plant 1 "
            f"to {len(names)}"
        )
    pairs = np.unique(np.stack([number.ravel(), owner]), axis=1)
    choice = np.random.default_rng([count, parameters])
    shuffled = choice.permutation(len(names))
    at = np.bincount(pairs[0])
    chosen = shuffled[np.lexsort((-records[shuffled], -at[shuffled]))][:count]
    of_person = np.full(len(names), -1)
    of_person[chosen] = np.arange(count)

    rows = np.flatnonzero(of_person[number.ravel()] >= 0)
    places = np.zeros(len(owner), np.int64)
    by_client = np.argsort(owner, kind="stable")
    starts = np.cumsum(np.bincount(owner)) - np.bincount(owner)
    places[by_client] = np.arange(len(owner)) - starts[owner[by_client]]
    person = of_person[number.ravel()[rows]]
    sorted_rows = np.lexsort((rows, person, owner[rows]))
    rows, person = rows[sorted_rows], person[sorted_rows]
    (client, of_part), part = np.unique(
        np.stack([owner[rows], person]), axis=1, return_inverse=True
    )
    _check_share(kind, int(np.bincount(client).max()), parameters)
    tossed = coins.bernoulli(0.5, count)
    coordinates = choice.permutation(parameters)
    return Canaries(
        kind=kind,
        client=client.astype(np.int64),
        row=places[rows],
        included=tossed[of_part],
        opposed=opposed and kind == "gradient",
        coordinate=coordinates[np.arange(len(client)) % parameters].astype(np.int64),
        label=np.zeros(len(client), dtype=np.int64),
        part=part.ravel().astype(np.int64),
        person=of_part.astype(np.int64),
    )


def _check_order(order: CanaryOrder) -> None:
    if order.kind not in KINDS:
        why = RETIRED.get(order.kind, "are unknown")
        raise PrivacyError(f"canaries of the kind {order.kind}: {why}")
    if order.count > MOST_CANARIES:
        raise PrivacyError(
            f"{order.count} canaries take too long to judge; plant at most {MOST_CANARIES}"
        )


def _check_share(kind: str, most: int, parameters: int) -> None:
    """Refuse more canaries of one client than there are coordinates, or bytes."""
    if kind == "gradient" and most > parameters:
        raise PrivacyError(
            f"{most} canaries of one client need as many coordinates, and the model has "
            f"{parameters}; plant fewer"
        )
    if kind in RECORDS and most * parameters * 4 > _MOST_BYTES:
        raise PrivacyError(
            f"{most} planted records of one client, with a gradient of {parameters} numbers "
            f"each, take more than {_MOST_BYTES >> 20} MiB; plant fewer, or use the kind gradient"
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


class _Units:
    """What a batch holds: its records, or people with some records each, one after another."""

    def __init__(self, targets: Tensor, sizes: Sequence[int] | None) -> None:
        each = torch.ones(len(targets), dtype=torch.int64) if sizes is None else torch.tensor(sizes)
        self._sizes = each.to(targets.device)
        self._people = sizes is not None
        self._unit = torch.repeat_interleave(self._sizes)
        self.first = torch.cumsum(self._sizes, 0) - self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def rows(self, chosen: Tensor) -> Tensor:
        """The rows of those that are chosen, bool [b]."""
        return chosen[self._unit]

    def whose(self, chosen: Tensor) -> Tensor:
        """Which of the chosen each of their rows belongs to."""
        return torch.repeat_interleave(self._sizes[chosen])

    def of_some(self, chosen: Tensor) -> list[int] | None:
        """How many records each of the chosen people has; None of records."""
        sizes: list[int] = self._sizes[chosen].tolist()
        return sizes if self._people else None


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
        return self._sum(inputs, targets, None)

    def of_people(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> ClippedSum:
        """The clipped sum of people with these numbers of records, of whom each has one mark."""
        return self._sum(inputs, targets, sizes)

    def _sum(self, inputs: Tensor, targets: Tensor, sizes: Sequence[int] | None) -> ClippedSum:
        units = _Units(targets, sizes)
        planted, marks = _marked(targets[units.first])
        real = ~planted
        if not len(marks):
            return self._noted(summed(self._inner, inputs, targets, sizes))
        rest = self._noted(self._of_some(inputs, targets, units, real))
        if self._canaries.kind in RECORDS:
            return self._crafted(inputs, targets, units, (planted, marks), rest)
        added = self._planted(marks, rest.total, units.of_some(planted))
        raw = rest.raw_norms.new_zeros(len(units))
        clipped = torch.zeros_like(raw)
        raw[real], clipped[real] = rest.raw_norms, rest.clipped_norms
        raw[~real], clipped[~real] = added.raw_norms, added.clipped_norms
        nonfinite = rest.nonfinite + added.nonfinite
        return ClippedSum(rest.total + added.total, raw, clipped, nonfinite)

    def _of_some(
        self, inputs: Tensor, targets: Tensor, units: _Units, chosen: Tensor
    ) -> ClippedSum:
        """The clipped sum of some of a batch's records or people, bool [units]."""
        rows = units.rows(chosen)
        sizes = units.of_some(chosen)
        # Of nobody, the engine for records says what the sum is.
        return summed(self._inner, inputs[rows], targets[rows], sizes or None)

    def _crafted(
        self,
        inputs: Tensor,
        targets: Tensor,
        units: _Units,
        marked: tuple[Tensor, NDArray[np.int64]],
        rest: ClippedSum,
    ) -> ClippedSum:
        """The clipped sum of a batch with crafted records in it, those that are included.

        In one call with all others, so that what one record does to others is seen.
        """
        labels = targets.clone()
        planted, marks = marked
        rows = units.rows(planted)
        classes = torch.from_numpy(self._canaries.label[marks]).to(labels.device)
        labels[rows] = classes[units.whose(planted)]
        there = ~planted
        there[planted] = torch.from_numpy(self._canaries.included[marks]).to(there.device)
        raw = rest.raw_norms.new_zeros(len(units))
        clipped = torch.zeros_like(raw)
        found = rest
        if bool(there[planted].any()):
            found = self._of_some(inputs, labels, units, there)
        raw[there], clipped[there] = found.raw_norms, found.clipped_norms
        return ClippedSum(found.total, raw, clipped, found.nonfinite)

    def _noted(self, clipped: ClippedSum) -> ClippedSum:
        self.others = clipped.total if self.others is None else self.others + clipped.total
        return clipped

    def _planted(
        self, chosen: NDArray[np.int64], like: Tensor, sizes: Sequence[int] | None
    ) -> ClippedSum:
        """The clipped sum of some canaries, of which those that are not included add nothing."""
        signs = torch.from_numpy(self._canaries.signs[chosen]).to(like.device)
        there = signs != 0.0
        raw = torch.zeros(len(chosen), dtype=torch.float64, device=like.device)
        clipped = torch.zeros_like(raw)
        lengths = signs.abs() * MAGNITUDE * self._clipping.norm
        if sizes is not None:
            # Each record of a person has this gradient.
            whose = torch.repeat_interleave(torch.tensor(sizes, device=like.device))
            lengths = means(lengths[whose][:, None], sizes)[:, 0]
        weights = self._clipping.weights(lengths.square()[there], like.dtype)
        total = torch.zeros_like(like)
        places = torch.from_numpy(self._canaries.coordinate[chosen]).to(like.device)
        added = (lengths * signs)[there].to(like.dtype) * weights.factors.to(like.dtype)
        total.index_add_(0, places[there], added)
        whole = weights.summed(total)
        raw[there], clipped[there] = whole.raw_norms, whole.clipped_norms
        return ClippedSum(total, raw, clipped, whole.nonfinite)
