"""Participations whose single records are protected, computed again: batches, noise, clean sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from audit.recomputed import (
    Integers,
    RecomputedParticipation,
    RecomputedQuery,
    RecomputedUpdate,
    Singles,
)
from dpfedadamw.algorithms.base import GradientOracle
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.federation.participation import Answer, ClientData, Participation
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.privacy.noise.noise import grid_spacing, normal_numbers
from dpfedadamw.privacy.noise.randomness import RandomSource, Stream
from dpfedadamw.reexecution.observation import TappedEvidence
from dpfedadamw.reexecution.plain import PlainGradients
from dpfedadamw.reexecution.unprotected import RecomputedUnprotected


class _Noting:
    """Hands on every question to the real oracle, and keeps question and answer."""

    def __init__(self, oracle: GradientOracle, asked: list[tuple[Tensor, Tensor]]) -> None:
        self.noise_variance = oracle.noise_variance
        self._oracle, self._asked = oracle, asked

    def next_batch(self) -> None:
        """Draw the records of the next local step."""
        self._oracle.next_batch()

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at the flat parameters [d]."""
        point = parameters.detach().clone()
        gradient = self._oracle.gradient(parameters)
        self._asked.append((point, gradient.detach().clone()))
        return gradient


@dataclass(frozen=True, kw_only=True)
class RecomputedRecordLevel(RecomputedUnprotected, RecordLevel):
    """The unit as it was, which also keeps what the clients that were drawn asked and got.

    Attributes:
        asked: Of each client, where gradients were asked for, and what was handed out.
    """

    asked: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    unit: ClassVar[type[Unprotected]] = RecordLevel

    def observed(self, oracle: GradientOracle, part: Participation) -> GradientOracle:
        """The oracle, whose questions and answers are kept for a client that was drawn."""
        if part.client not in self.kept.drawn:
            return oracle
        return _Noting(oracle, self.asked.setdefault(part.client, []))

    def evidence_of_client(self) -> ClientEvidence:
        """A collector for one client, whose clean gradients may be looked at."""
        evidence = super().evidence_of_client()
        tap = self.kept.tap
        return evidence if tap is None else TappedEvidence(**vars(evidence), tap=tap)

    def commitment(self, answer: Answer) -> bytes | None:
        """To batches, points and noised gradients."""
        assert answer.result.evidence is not None
        return answer.result.evidence.commitment.digest()

    def participation(
        self, client: int, data: ClientData, gradients: PlainGradients
    ) -> RecomputedParticipation:
        """A participation that was drawn, with its second computation."""
        part, answer = self.kept.parts[client], self.kept.answers[client]
        second, noted = Second(part, data, self.kept.source), answer.result.evidence
        assert noted is not None
        return second.participation(
            answer, lambda: second.queries(self.asked[client], noted.norms(), gradients)
        )


class Second:
    """One participation's batches and noise from its streams, apart from the engine's oracle.

    Args:
        part: The client's part.
        data: Its records.
        source: Gives its streams.
    """

    def __init__(self, part: Participation, data: ClientData, source: RandomSource) -> None:
        self._part, self._data = part, data
        plan, people = part.current.plan, data.people
        self._units = len(data.labels) if people is None else len(people)
        draws = plan.sampling.batches(self._units, self._stream(source, "batches"))
        self._batches: list[Integers] = [
            np.asarray(next(draws), dtype=np.int64) for _ in range(plan.local_steps)
        ]
        # Which records stand for the people of each batch.
        self._of_each: list[list[Integers]] | None = None
        if people is not None:
            stream = self._stream(source, "records")
            self._of_each = [people.records_of(batch, stream) for batch in self._batches]
        self._views = self._stream(source, "views")
        self._noise = self._stream(source, "noise")

    def _stream(self, source: RandomSource, purpose: str) -> Stream:
        return self._part.current.stream(source, purpose, self._part.client)

    def participation(
        self,
        answer: Answer,
        queries: Callable[[], Iterator[RecomputedQuery]] = lambda: iter(()),
        update: Callable[[], RecomputedUpdate] | None = None,
    ) -> RecomputedParticipation:
        """The participation, with what computes its queries, or its update, a second time."""
        return RecomputedParticipation(
            client=self._part.client,
            batches=self._batches,
            records=self._units,
            upload=answer.message,
            queries=queries,
            update=update,
        )

    def inputs(self) -> Iterator[tuple[Integers, Tensor, Tensor]]:
        """Each step's records: what was drawn, inputs and labels."""
        held = self._data.seen_with(self._views)
        for number, drawn in enumerate(self._batches):
            rows = drawn
            if self._of_each is not None:
                rows = np.concatenate([drawn[:0], *self._of_each[number]])
            chosen = torch.from_numpy(rows).to(self._data.labels.device)
            yield drawn, held[chosen][:], self._data.labels[chosen]

    def queries(
        self,
        asked: Iterable[tuple[Tensor, Tensor]],
        norms: Iterable[Singles],
        gradients: PlainGradients,
    ) -> Iterator[RecomputedQuery]:
        """Every query of the participation, at the points where the rule asked.

        Args:
            asked: Where it asked, and what the engine handed out, [d] each.
            norms: Which norms the engine found, float32 [b] each.
            gradients: Computes sums plainly.
        """
        plan, client = self._part.current.plan, self._part.client
        deviation = plan.noise_standard_deviation
        every = iter(zip(asked, norms, strict=True))
        for number, (rows, records, labels) in enumerate(self.inputs()):
            sizes = None
            if self._of_each is not None:
                sizes = [len(one) for one in self._of_each[number]]
            for _ in range(plan.queries_per_step):
                (point, answer), taken = next(every)
                found = gradients.clipped_sum(
                    point, records, labels, plan.clipping_norm, taken, sizes
                )
                noise = normal_numbers(self._noise, len(point), plan.gaussian_sampler)
                yield RecomputedQuery(
                    records=rows,
                    gradient=answer.float().cpu().numpy(),
                    noise=noise * deviation,
                    spacing=grid_spacing(deviation),
                    divisor=plan.divisor(client),
                    clean=found.clean,
                    bound=found.bound,
                    norms=taken,
                    raw_norms=found.raw_norms,
                    norm_errors=found.norm_errors,
                    moved=partial(gradients.moved, point, records, labels, sizes),
                )
