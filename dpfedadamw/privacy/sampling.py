"""Samplers: how the records of a step, and the clients of a round, are drawn.

Sampler and accountant are one choice. Each sampler here says at what rate it uses a record, draws
the batches, and knows the adjacency under which it is accounted; `accounting_event` turns it into
the event the accountants understand, or refuses, with the reason, what no accountant covers.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import dp_accounting
import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.cohorts import FixedClients, PoissonClients
from dpfedadamw.privacy.streams import Stream

__all__ = [
    "FixedClients",
    "FixedSizeSampling",
    "FullBatch",
    "PoissonClients",
    "PoissonSampling",
    "Sampling",
    "ShuffledEpochs",
    "accounting_event",
]

Indices = NDArray[np.int64]


class Sampling(Protocol):
    """What every sampler of records offers."""

    event_kind: ClassVar[str]
    adjacency: ClassVar[tuple[str, ...]]

    def rate(self, records: int) -> float:
        """Probability with which one record is in one step's batch, in (0, 1]."""
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

    @abstractmethod
    def draw(self, records: int, stream: Stream) -> Indices:
        """Draw the indices of one step's batch."""

    def batches(self, records: int, stream: Stream) -> Iterator[Indices]:
        """Draw batch after batch, without end."""
        while True:
            yield self.draw(records, stream)


@dataclass(frozen=True)
class PoissonSampling(_IndependentDraws):
    """Every record independently with probability q = B/R; the sampler of DP-SGD.

    Attributes:
        expected_batch_size: B, above 0 and at most the number of records.
    """

    expected_batch_size: float
    event_kind: ClassVar[str] = "poisson"
    adjacency: ClassVar[tuple[str, ...]] = ("add-remove",)

    def __post_init__(self) -> None:
        """Refuse an impossible batch size."""
        _positive("expected batch size", self.expected_batch_size)

    def rate(self, records: int) -> float:
        """Return q = B/R.

        Raises:
            PrivacyError: if B exceeds the number of records.
        """
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
class FullBatch(_IndependentDraws):
    """All records in every step: no amplification, a plain Gaussian mechanism."""

    event_kind: ClassVar[str] = "full"
    adjacency: ClassVar[tuple[str, ...]] = ("add-remove", "replace-one")

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
    """B distinct records, every subset of that size equally likely, anew in each step.

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
        """Return the share of the records in one step; not a sampling rate to account with."""
        return min(1.0, self.batch_size / records)

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


def accounting_event(
    sampling: Sampling,
    unit: str,
    adjacency: str,
    noise_multiplier: float,
    queries_per_step: int,
    steps: int,
    records: int,
) -> dp_accounting.DpEvent:
    """Return the event that stands for `steps` noised steps under one sampler.

    Queries on one batch are jointly one Gaussian of multiplier σ/√queries, subsampled once. Under
    replace-one the sensitivity is 2C and the event carries noise over sensitivity, σ/2, which is
    what dp-accounting's RDP accountant wants there; its PLD accountant for replace-one takes noise
    over C and doubles by itself, so it must not be given this event.

    Args:
        sampling: how the members of a step are drawn.
        unit: "record" or "client": whose presence is hidden, and so what `records` counts.
        adjacency: "add-remove" or "replace-one".
        noise_multiplier: σ, noise over the clipping norm, above 0.
        queries_per_step: noised answers computed on each batch, at least 1.
        steps: batches drawn, at least 1.
        records: records of the client, or clients for the unit "client".

    Raises:
        PrivacyError: if no accountant covers the combination.
    """
    if unit not in ("record", "client"):
        raise PrivacyError(
            f"the privacy unit is 'record' or 'client', and '{unit}' has no accounting"
        )
    if adjacency not in ("add-remove", "replace-one"):
        raise PrivacyError(f"the adjacency is 'add-remove' or 'replace-one', not '{adjacency}'")
    _positive("noise multiplier", noise_multiplier)
    _positive("number of queries per step", queries_per_step)
    _positive("number of steps", steps)
    _positive(f"number of {unit}s", records)
    if adjacency not in sampling.adjacency:
        raise PrivacyError(_REFUSALS[sampling.event_kind])
    halved = 0.5 if adjacency == "replace-one" else 1.0
    gaussian = dp_accounting.GaussianDpEvent(
        float(halved * noise_multiplier / math.sqrt(queries_per_step))
    )
    event: dp_accounting.DpEvent = gaussian
    if isinstance(sampling, PoissonSampling):
        event = dp_accounting.PoissonSampledDpEvent(sampling.rate(records), gaussian)
    elif isinstance(sampling, FixedSizeSampling):
        sampling.rate(records)
        event = dp_accounting.SampledWithoutReplacementDpEvent(
            records, sampling.batch_size, gaussian
        )
    elif isinstance(sampling, ShuffledEpochs):
        steps = -(-steps // sampling.steps_per_epoch(records))
    elif not isinstance(sampling, FullBatch):
        raise PrivacyError(f"no accountant covers the sampler {type(sampling).__name__}")
    return dp_accounting.SelfComposedDpEvent(event, steps)


_REFUSALS = {
    "poisson": (
        "Poisson sampling is accounted under add-remove adjacency only: under replace-one the two "
        "accountants disagree on what they cover; set adjacency: add-remove"
    ),
    "fixed-size": (
        "fixed-size batches are accounted under replace-one adjacency only: adding a record "
        "changes who else is drawn; set sampling: poisson or adjacency: replace-one"
    ),
    "shuffled": (
        "shuffled epochs are accounted under replace-one adjacency only, without amplification: "
        "adding a record moves all batch boundaries; set sampling: poisson"
    ),
}


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise PrivacyError(f"the {name} must be a positive number, not {value}")
