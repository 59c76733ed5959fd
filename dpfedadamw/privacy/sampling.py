"""Each sampler draws by the law that it is accounted for; what no accountant covers is refused.

Sampler and accountant are one choice. Each sampler here says at what rate it uses a record, draws
the batches, and knows the adjacency under which it is accounted; `composition_of` turns it into
what the accountants understand, or refuses, with the reason, what no accountant covers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.cohorts import FixedClients, PoissonClients
from dpfedadamw.privacy.composition import Composition

if TYPE_CHECKING:
    from dpfedadamw.privacy.noise.streams import Stream

__all__ = [
    "REFUSALS",
    "FixedClients",
    "FixedSizeSampling",
    "FullBatch",
    "People",
    "PoissonClients",
    "PoissonSampling",
    "Sampling",
    "ShuffledEpochs",
    "check_pairing",
    "composition_of",
    "from_ledger",
]

Indices = NDArray[np.int64]


class Sampling(Protocol):
    """What every sampler of records offers."""

    event_kind: ClassVar[str]
    adjacency: ClassVar[tuple[str, ...]]

    def rate(self, records: int) -> float:
        """The rate to account with: a record's chance to be in a counted batch, in (0, 1]."""
        ...

    def charged_steps(self, records: int, local_steps: int) -> int:
        """How many of a participation's steps are counted against one record."""
        ...

    def normaliser(self, records: int) -> float:
        """The fixed public number a step's noisy sum is divided by."""
        ...

    def draw(self, records: int, stream: Stream) -> Indices:
        """Draw the indices of one step's batch."""
        ...

    def batches(self, records: int, stream: Stream) -> Iterator[Indices]:
        """Draw batch after batch, without end."""
        ...


class _IndependentDraws(ABC):
    """Samplers whose steps do not depend on one another."""

    def charged_steps(self, records: int, local_steps: int) -> int:
        """Return all steps: a record may be in each."""
        del records
        return local_steps

    @abstractmethod
    def draw(self, records: int, stream: Stream) -> Indices:
        """Draw the indices of one step's batch."""

    def batches(self, records: int, stream: Stream) -> Iterator[Indices]:
        """Draw batch after batch, without end."""
        while True:
            yield self.draw(records, stream)


@dataclass(frozen=True)
class PoissonSampling(_IndependentDraws):
    """Every record independently with probability q; the sampler of DP-SGD.

    Attributes:
        expected_batch_size: B, above 0.
        stated_rate: q in (0, 1], a public constant for all clients; None where it is B over a size.
        reference_size: The public size R of q = B/R, for all clients; None where R is a client's
            own number of records, which is then public metadata.
    """

    expected_batch_size: float
    stated_rate: float | None = None
    reference_size: float | None = None
    event_kind: ClassVar[str] = "poisson"
    adjacency: ClassVar[tuple[str, ...]] = ("add-remove",)

    def __post_init__(self) -> None:
        """Refuse an impossible batch size."""
        _positive("expected batch size", self.expected_batch_size)

    @property
    def constant_rate(self) -> float | None:
        """Q where it is the same whatever a client's size is; None where it follows from that."""
        if self.stated_rate is None and self.reference_size is not None:
            return self.expected_batch_size / self.reference_size
        return self.stated_rate

    def rate(self, records: int) -> float:
        """Return q: as stated, or B/R.

        Raises:
            PrivacyError: if B exceeds the number of records where q is B/R.
        """
        if self.constant_rate is not None:
            return self.constant_rate
        if self.expected_batch_size > records:
            raise PrivacyError(
                f"an expected batch size of {self.expected_batch_size:g} from {records} records "
                f"needs a sampling rate above 1; use at most {records}"
            )
        return self.expected_batch_size / records

    def normaliser(self, records: int) -> float:
        """Return B, which does not depend on the records, so that it reveals nothing of them."""
        del records
        return self.expected_batch_size

    def draw(self, records: int, stream: Stream) -> Indices:
        """Draw a batch, in ascending order.

        It may be empty and is never truncated: dropping, redrawing or capping would make one
        record's presence depend on the others and void the accounting.
        """
        return np.flatnonzero(stream.bernoulli(self.rate(records), records)).astype(np.int64)


@dataclass(frozen=True)
class People:
    """Whom a client's records are about: batches are drawn of people, then of each one's records.

    Attributes:
        persons: Person of each record, [n]: 0, 1, 2, …, each of whom has one or more.
        most: m, most records of a drawn person that a batch holds, at least 1.
    """

    persons: Indices
    most: int

    @cached_property
    def _records(self) -> list[Indices]:
        ends = np.cumsum(np.bincount(self.persons))
        return np.split(np.argsort(self.persons, kind="stable"), ends[:-1])

    def __len__(self) -> int:
        return len(self._records)

    def among(self, rows: Indices) -> People:
        """The people of some of the records, in their order, numbered as they are met."""
        own = self.persons[rows]
        first, inverse = np.unique(own, return_index=True, return_inverse=True)[1:]
        return People(np.argsort(np.argsort(first))[inverse.ravel()], self.most)

    def records_of(self, drawn: Indices, stream: Stream) -> list[Indices]:
        """Draw records of each of some people: all that a person has, or m of them, uniformly.

        How many are drawn depends on the person's own records alone, and changes no sensitivity:
        whatever a person brings, it is one mean, clipped to C.
        """
        own = [self._records[person] for person in drawn]
        return [
            one if len(one) <= self.most else one[stream.choice(len(one), self.most)] for one in own
        ]


@dataclass(frozen=True)
class FullBatch(_IndependentDraws):
    """All records in every step: no amplification, a plain Gaussian mechanism."""

    event_kind: ClassVar[str] = "full"
    adjacency: ClassVar[tuple[str, ...]] = ("add-remove",)

    def rate(self, records: int) -> float:
        """Return 1."""
        del records
        return 1.0

    def normaliser(self, records: int) -> float:
        """Return the number of records, which is public metadata."""
        return float(records)

    def draw(self, records: int, stream: Stream) -> Indices:
        """Return all indices."""
        del stream
        return np.arange(records, dtype=np.int64)


@dataclass(frozen=True)
class FixedSizeSampling(_IndependentDraws):
    """B distinct records, every subset of that size equally likely, drawn afresh in each step.

    Attributes:
        batch_size: B, from 1 to the number of records.
    """

    batch_size: int
    event_kind: ClassVar[str] = "fixed-size"
    adjacency: ClassVar[tuple[str, ...]] = ("replace-one",)

    def __post_init__(self) -> None:
        """Refuse an impossible batch size."""
        _positive("batch size", self.batch_size)

    def rate(self, records: int) -> float:
        """Return B/R.

        Raises:
            PrivacyError: if B exceeds the number of records.
        """
        if self.batch_size > records:
            raise PrivacyError(
                f"a batch of {self.batch_size} cannot be drawn from {records} records"
            )
        return self.batch_size / records

    def normaliser(self, records: int) -> float:
        """Return B."""
        del records
        return float(self.batch_size)

    def draw(self, records: int, stream: Stream) -> Indices:
        """Draw B distinct indices."""
        self.rate(records)
        return stream.choice(records, self.batch_size)


@dataclass(frozen=True)
class ShuffledEpochs:
    """Consecutive batches of a random order, a new order each epoch. No amplification is claimed.

    Every participation begins a new epoch, so one that ends in mid-epoch is counted as if it had
    been a whole one for each record. Within an epoch a record is in exactly one batch; which one is
    drawn without regard to what the record holds, so under replace-one the mechanism is a mixture
    of plain Gaussian queries, and costs at most what they do (joint convexity).

    Attributes:
        batch_size: B, at least 1; the last batch of an epoch may be smaller.
    """

    batch_size: int
    event_kind: ClassVar[str] = "shuffled"
    adjacency: ClassVar[tuple[str, ...]] = ("replace-one",)

    def __post_init__(self) -> None:
        """Refuse an impossible batch size."""
        _positive("batch size", self.batch_size)

    def rate(self, records: int) -> float:
        """Return 1: the batches that are counted are those that the record is in."""
        del records
        return 1.0

    def charged_steps(self, records: int, local_steps: int) -> int:
        """Return in how many of a participation's steps one record can be, ⌈K/⌈R/B⌉⌉."""
        return -(-local_steps // self.steps_per_epoch(records))

    def normaliser(self, records: int) -> float:
        """Return B, or the number of records where that is smaller."""
        return float(min(self.batch_size, records))

    def steps_per_epoch(self, records: int) -> int:
        """Return how many batches use every record once."""
        return -(-records // self.batch_size)

    def draw(self, records: int, stream: Stream) -> Indices:
        """Draw the first batch of a new epoch; use `batches` for whole epochs."""
        return stream.permutation(records)[: self.batch_size]

    def batches(self, records: int, stream: Stream) -> Iterator[Indices]:
        """Draw batch after batch, epoch after epoch, without end."""
        while True:
            order = stream.permutation(records)
            for start in range(0, records, self.batch_size):
                yield order[start : start + self.batch_size]


def composition_of(
    sampling: Sampling,
    adjacency: str,
    records: int,
    noise_multiplier: float,
    local_steps: int,
    rounds: int = 1,
    queries_per_step: int = 1,
) -> Composition:
    """Return what a number of participations costs one record: the one way to account a sampler.

    Args:
        sampling: how the records of a step are drawn.
        adjacency: "add-remove" or "replace-one".
        records: R of the client.
        noise_multiplier: σ, noise over the clipping norm, above 0.
        local_steps: K, batches drawn in one participation.
        rounds: participations.
        queries_per_step: noised answers computed on each batch.

    Raises:
        PrivacyError: if no accountant covers the combination; the text says why and what does.
    """
    check_pairing(sampling, adjacency)
    return Composition(
        noise_multiplier,
        sampling.rate(records),
        rounds * sampling.charged_steps(records, local_steps),
        queries_per_step,
        sampling.event_kind,
    )


def from_ledger(kind: str, batch_size: float) -> Sampling:
    """Return the sampler that a ledger's words stand for.

    Args:
        kind: an event kind.
        batch_size: B, expected or exact.

    Raises:
        PrivacyError: if no sampler of record-level privacy is called that.
    """
    if kind == PoissonSampling.event_kind:
        return PoissonSampling(batch_size)
    if kind == FixedSizeSampling.event_kind:
        return FixedSizeSampling(int(batch_size))
    if kind == ShuffledEpochs.event_kind:
        return ShuffledEpochs(int(batch_size))
    raise PrivacyError(f"no accountant covers sampling '{kind}'")


def check_pairing(sampling: Sampling, adjacency: str) -> None:
    """Refuse a sampler under an adjacency for which it has no accounting.

    Raises:
        PrivacyError: with the reason and the way out.
    """
    if adjacency not in ("add-remove", "replace-one"):
        raise PrivacyError(f"the adjacency is 'add-remove' or 'replace-one', not {adjacency!r}")
    if adjacency not in sampling.adjacency:
        raise PrivacyError(REFUSALS[sampling.event_kind])


REFUSALS = {
    "full": (
        "full batches are accounted under add-remove adjacency only; set adjacency: add-remove, or "
        "sampling.kind: fixed with all records of the smallest client"
    ),
    "poisson": (
        "Poisson sampling is accounted under add-remove adjacency only: the batch's size varies "
        "with who is there; set adjacency: add-remove, or sampling.kind: fixed"
    ),
    "fixed-size": (
        "fixed-size batches are accounted under replace-one adjacency only: adding a record "
        "changes who else is drawn; set adjacency: replace-one, or sampling.kind: poisson"
    ),
    "shuffled": (
        "shuffled epochs are accounted under replace-one adjacency only: adding a record moves "
        "all batch boundaries; set adjacency: replace-one, or sampling.kind: poisson"
    ),
}


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise PrivacyError(f"the {name} must be a positive number, not {value}")
