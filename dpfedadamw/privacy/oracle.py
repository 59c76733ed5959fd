"""An algorithm sees noised gradients and nothing else, and no more of them than were charged.

This is the one door between algorithms and data. What passes through it is a function of noised
values, and no more passes than the ledger has been charged for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy import spot_check
from dpfedadamw.privacy.clipped_sum import ClippedSum, ClippedSumEngine, cut, joined, summed
from dpfedadamw.privacy.noise.noise import NoiseAhead, add_gaussian_noise
from dpfedadamw.privacy.noise.randomness import Stream
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.sampling import People
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.profiling import part
from dpfedadamw.vectors.flat import FlatParameters, in_pieces, is_short


class Batch(Protocol):
    """The inputs of a step: a slice gives the tensor [b, …] of some of them."""

    def __getitem__(self, part: slice, /) -> Tensor:
        """Some of the inputs."""
        ...


class Inputs(Protocol):
    """A client's inputs, in memory or not: row numbers give the inputs of a step."""

    def __getitem__(self, chosen: Tensor, /) -> Batch:
        """The inputs of these rows."""
        ...


@dataclass(frozen=True)
class Charge:
    """What the ledger has been charged for one client's round, before it began.

    Attributes:
        steps: Batches that may be drawn.
        queries_per_step: Gradients that may be asked for on each.
    """

    steps: int
    queries_per_step: int


@dataclass(frozen=True, kw_only=True)
class Query:
    """One answered gradient query, before and after noise: private, for the auditor alone.

    Attributes:
        batch_size: Realised number of records, or of people where these take their place, as below.
        raw_norms: Per-record gradient norms before clipping, [b].
        clipped_norms: Per-record norms after clipping, [b].
        nonfinite: Records whose gradient was not finite.
        clean_sum: Clipped sum before noise, [d].
        noisy_sum: Clipped sum after noise, [d].
        divisor: What the noisy sum is divided by.
    """

    batch_size: int
    raw_norms: Tensor
    clipped_norms: Tensor
    nonfinite: int
    clean_sum: Tensor
    noisy_sum: Tensor
    divisor: float


class QueryObserver(Protocol):
    """Writes down for the auditor what the oracle does; nothing that it learns may be released."""

    def batch(
        self, indices: NDArray[np.int64], records: int, rows: NDArray[np.int64] | None = None, /
    ) -> None:
        """Note which of the client's records a step's batch holds."""
        ...

    def of_people(self, rows: NDArray[np.int64], records: int, /) -> None:
        """Note which of the client's records stand in a batch for the people that it holds."""
        ...

    def query(self, query: Query, /) -> None:
        """Note an answered query."""
        ...


@part("clipped sum")
def clipped_sum(
    engine: ClippedSumEngine,
    flat: FlatParameters,
    parameters: Tensor,
    batch: tuple[Batch, Tensor],
    physical_batch_size: int,
    sizes: Sequence[int] | None = None,
) -> ClippedSum:
    """The clipped sum of one step: Σ_j g_j · min(1, C/‖g_j‖₂) over a batch, before noise.

    The auditor's active probe calls this same function.

    Args:
        engine: Computes per-record clipped sums for the module in ``flat``.
        flat: The module's parameters.
        parameters: θ at which gradients are taken, [d].
        batch: Inputs of b records and labels [b]. A Poisson batch may be of any size and is never
            truncated: a larger one is cut up and its parts' sums are added.
        physical_batch_size: Most records whose gradients are formed at once.
        sizes: How many of them each person has, one after another, where people take the place of
            records; None where each stands for itself.
    """
    flat.hold(parameters)
    inputs, labels = batch
    size = len(labels)
    if sizes:
        # One person's mean is formed at once, so that a batch is cut between people alone.
        records = inputs[:]
        return joined(
            [
                summed(engine, records[part], labels[part], own)
                for part, own in cut(sizes, physical_batch_size)
            ]
        )
    groups: Callable[[Tensor], Sequence[Tensor]] | None = getattr(
        flat.module, "record_groups", None
    )
    if not size or (size <= physical_batch_size and groups is None):
        return engine(inputs[:], labels)
    sums: list[ClippedSum] = []
    places: list[Tensor] = []
    for start in range(0, size, physical_batch_size):
        part = slice(start, start + physical_batch_size)
        records, targets = inputs[part], labels[part]
        every = torch.arange(len(targets), device=records.device)
        # Rows of records that the model would rather see together; all of them by default.
        for rows in [every] if groups is None else groups(records):
            whole = len(rows) == len(targets)
            sums.append(engine(records if whole else records[rows], targets[rows]))
            places.append(start + rows)
    if groups is not None:
        _check_once(places, size)
    total = joined(sums)
    # Without privacy nothing is measured.
    if len(sums) == 1 or not len(total.raw_norms):
        return total
    order = torch.cat(places).argsort()
    return replace(
        total, raw_norms=total.raw_norms[order], clipped_norms=total.clipped_norms[order]
    )


def _check_once(places: Sequence[Tensor], size: int) -> None:
    """Refuse a model's grouping in which a record does not count exactly once."""
    if not torch.cat([*places]).sort().values.equal(torch.arange(size, device=places[0].device)):
        raise PrivacyError("model: its method record_groups must return each row exactly once")


class PrivateOracle:
    """Noised gradients of one client in one round.

    Attributes:
        noise_variance: Φ of the plan for this client.
        steps: Batches drawn so far.
        queries: Gradients answered so far.
    """

    def __init__(
        self,
        *,
        plan: PrivacyPlan,
        client: int,
        charge: Charge,
        engine: ClippedSumEngine,
        check: SpotCheck | None = None,
        flat: FlatParameters,
        inputs: Inputs,
        labels: Tensor,
        batches: Stream,
        noise: Stream,
        evidence: QueryObserver | None,
        physical_batch_size: int,
        people: tuple[People, Stream] | None = None,
    ) -> None:
        self.noise_variance = plan.noise_variance(client)
        self.steps = 0
        self.queries = 0
        self._plan = plan
        self._standard_deviation = plan.noise_standard_deviation
        self._divisor = plan.fixed_divisor(client)
        # Whom batches are drawn of where people are protected, and what draws of their records.
        self._people = people
        self._units = len(labels) if people is None else len(people[0])
        self._draws = plan.sampling.batches(self._units, batches)
        self._charge = charge
        self._engine = engine
        self._check = check
        self._flat = flat
        self._inputs = inputs
        self._labels = labels
        self._noise = noise
        self._evidence = evidence
        self._physical_batch_size = physical_batch_size
        size = flat.vector.shape[0]
        if self._standard_deviation > 0.0 and is_short(size):
            noise.expect(size, charge.steps * charge.queries_per_step)
        self._batch: tuple[Batch, Tensor] | None = None
        self._sizes: list[int] | None = None
        self._asked = 0

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Rows of the data set that batches are drawn from; None where they are not told apart."""
        found: NDArray[np.int64] | None = getattr(self._inputs, "rows", None)
        return found

    @part("sampling")
    def next_batch(self) -> None:
        """Draw the records of the next step.

        Raises:
            PrivacyError: If the round's charged steps are used up.
        """
        if self.steps >= self._charge.steps:
            raise PrivacyError(
                f"the algorithm asks for step {self.steps + 1} of a round charged for "
                f"{self._charge.steps}; the query was not made"
            )
        self.steps += 1
        self._asked = 0
        indices: NDArray[Any] = next(self._draws)
        drawn = indices
        if self._people is not None:
            of_each = self._people[0].records_of(indices, self._people[1])
            drawn = np.concatenate([indices[:0], *of_each])
            self._sizes = [len(one) for one in of_each]
        chosen = torch.from_numpy(drawn)
        # Records lie in this machine's memory: numbers of rows that come back from an accelerator
        # would wait for all that it has to do.
        selection = self._inputs[chosen]
        if self._evidence is not None:
            # What is in the batch, and not what was meant to be.
            rows: NDArray[np.int64] | None = getattr(selection, "rows", None)
            self._evidence.batch(indices, self._units, rows)
            if self._people is not None:
                self._evidence.of_people(drawn, len(self._labels))
        self._batch = (selection, self._labels[chosen.to(self._labels.device)])

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at flat parameters [d].

        (Σ_j clip(g_j) + N(0, σ²C²I)) / B with a fixed public B (DP-FedAdamW eq. (3), whose printed
        noise has C in twice: see ERRATA.md).

        Raises:
            PrivacyError: If no batch was drawn or the step's charged queries are used up.
        """
        if self._batch is None or self._asked >= self._charge.queries_per_step:
            raise PrivacyError(
                f"the algorithm asks for gradient {self._asked + 1} of a batch charged for "
                f"{self._charge.queries_per_step}; the query was not made"
            )
        self._asked += 1
        self.queries += 1
        size = len(self._batch[1]) if self._sizes is None else len(self._sizes)
        divisor = self._divisor if self._divisor is not None else float(max(1, size))
        ahead = self._draw_ahead(parameters)
        began = time.perf_counter()
        sizes = () if self._sizes is None else (self._sizes,)
        clipped = clipped_sum(
            self._engine, self._flat, parameters, self._batch, self._physical_batch_size, *sizes
        )
        if self._check is not None and size and self._check.due(time.perf_counter() - began):
            self._check_one(self._check, self._batch, clipped)
        deviation, sampler = self._standard_deviation, self._plan.gaussian_sampler
        if deviation == 0.0:
            noisy = clipped.total
        elif ahead is not None:
            noisy = ahead.add(clipped.total, deviation, parameters.dtype)
        else:
            noisy = add_gaussian_noise(
                clipped.total, deviation, self._noise, sampler, dtype=parameters.dtype
            )
        if self._evidence is not None:
            self._evidence.query(
                Query(
                    batch_size=size,
                    raw_norms=clipped.raw_norms,
                    clipped_norms=clipped.clipped_norms,
                    nonfinite=clipped.nonfinite,
                    clean_sum=clipped.total,
                    noisy_sum=noisy,
                    divisor=divisor,
                )
            )
        in_pieces(noisy, lambda part, _: noisy[part].div_(divisor))
        return noisy

    def _check_one(
        self, check: SpotCheck, batch: tuple[Batch, Tensor], clipped: ClippedSum
    ) -> None:
        rows = places = spot_check.drawn(len(clipped.raw_norms))
        sizes = None
        if self._sizes is not None:
            starts = np.cumsum([0, *self._sizes]).tolist()
            sizes = [self._sizes[place] for place in places]
            rows = [row for place in places for row in range(starts[place], starts[place + 1])]
        inputs = torch.cat([batch[0][row : row + 1] for row in rows])
        check(self._engine, inputs, batch[1][rows], clipped.raw_norms[places], sizes)

    def _draw_ahead(self, parameters: Tensor) -> NoiseAhead | None:
        if self._plan.gaussian_sampler == "on-device":
            return None
        if self._standard_deviation == 0.0 or parameters.device.type == "cpu":
            return None
        return NoiseAhead(len(parameters), self._noise, self._plan.gaussian_sampler)
