"""Participations whose single records are protected, computed again: batches, noise, clean sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from dpfedadamw.algorithms.base import GradientOracle
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.participation import Answer, ClientData, Participation, Round
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import UnitSetup
from dpfedadamw.privacy.noise.noise import grid_spacing
from dpfedadamw.privacy.noise.randomness import RandomSource, Stream
from dpfedadamw.reexecution.plain import PlainGradients
from dpfedadamw.reexecution.results import (
    Integers,
    ParticipationAgain,
    QueryAgain,
    ReleaseAgain,
    Singles,
)

# How many Box-Muller normals make one number of the noise.
DRAWS = {"box-muller": 1, "four-draw": 4}


@dataclass
class Seen:
    """What the rules of the clients that were drawn asked, and what the engine answered.

    Attributes:
        drawn: The clients.
        points: Of each client, where gradients were asked for.
        gradients: What was handed out.
        parts: Each client's part.
        answers: What it came to.
    """

    drawn: frozenset[int]
    points: dict[int, list[Tensor]] = field(default_factory=dict)
    gradients: dict[int, list[Tensor]] = field(default_factory=dict)
    parts: dict[int, Participation] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    commitments: list[bytes] = field(default_factory=list)
    before: list[Tensor] = field(default_factory=list)

    def observed(self, oracle: GradientOracle, client: int, round_index: int) -> GradientOracle:
        """An oracle whose questions and answers are kept, for a client that was drawn."""
        del round_index
        if client not in self.drawn:
            return oracle
        points, gradients = (
            self.points.setdefault(client, []),
            self.gradients.setdefault(client, []),
        )
        return _Noting(oracle, points, gradients)


class _Noting:
    """Hands on every question to the real oracle, and keeps question and answer."""

    def __init__(
        self, oracle: GradientOracle, points: list[Tensor], gradients: list[Tensor]
    ) -> None:
        self.noise_variance = oracle.noise_variance
        self._oracle, self._points, self._gradients = oracle, points, gradients

    def next_batch(self) -> None:
        """Draw the records of the next local step."""
        self._oracle.next_batch()

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at the flat parameters [d]."""
        self._points.append(parameters.detach().clone())
        gradient = self._oracle.gradient(parameters)
        self._gradients.append(gradient.detach().clone())
        return gradient


@dataclass(frozen=True, kw_only=True)
class RecordLevelAgain(RecordLevel):
    """The unit as it was, which also keeps what the clients that were drawn asked and got.

    Attributes:
        seen: What was kept.
    """

    seen: Seen

    @classmethod
    def begin(
        cls,
        setup: UnitSetup,
        drawn: frozenset[int],
        _experiment: Experiment,
        _again: RandomSource,
    ) -> Self:
        """The unit for one round, whose evidence goes to a folder of its own."""
        seen = Seen(drawn)
        return cls(evidence=RecordLevel.open(setup).evidence, observer=seen, seen=seen)

    def took_part(self, part: Participation, answer: Answer) -> None:
        """Keep the commitment of every client, and all of those that were drawn."""
        assert answer.result.evidence is not None
        self.seen.commitments.append(answer.result.evidence.commitment.digest())
        if part.client in self.seen.drawn:
            self.seen.parts[part.client], self.seen.answers[part.client] = part, answer

    def close(self, current: Round) -> Mapping[str, object]:
        """As in the run; keep where the round began."""
        self.seen.before.append(current.broadcast.parameters)
        return super().close(current)

    def commitments(self) -> list[bytes]:
        """Of every client that was computed, in their order."""
        return self.seen.commitments

    def before(self) -> Tensor:
        """The parameters [d] before the round."""
        return self.seen.before[0]

    def release(self) -> ReleaseAgain | None:
        """What the server releases is the clients' uploads."""
        return None

    def participation(
        self, client: int, data: ClientData, source: RandomSource, gradients: PlainGradients
    ) -> ParticipationAgain:
        """A participation that was drawn, with its second computation.

        Args:
            client: Its client.
            data: Its records.
            source: Streams of which none was opened yet.
            gradients: Computes sums plainly.
        """
        part, answer = self.seen.parts[client], self.seen.answers[client]
        second, noted = Second(part, data, source), answer.result.evidence
        assert noted is not None
        return ParticipationAgain(
            client=client,
            batches=second.batches(),
            records=len(data.labels),
            learning_rate=part.current.broadcast.learning_rate,
            earlier_steps=part.current.broadcast.earlier_steps,
            broadcast=part.current.message,
            upload=answer.message,
            memory_before=packed(part.memory),
            memory_after=packed(answer.result.upload.memory),
            queries=lambda: second.queries(
                self.seen.points[client], self.seen.gradients[client], noted.raw_norms, gradients
            ),
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
        plan = part.current.plan
        draws = plan.sampling.batches(len(data.labels), self._stream(source, "batches"))
        self._batches: list[Integers] = [
            np.asarray(next(draws), dtype=np.int64) for _ in range(plan.local_steps)
        ]
        self._views = self._stream(source, "views")
        self._noise = self._stream(source, "noise")

    def _stream(self, source: RandomSource, purpose: str) -> Stream:
        return self._part.current.stream(source, purpose, self._part.client)

    def batches(self) -> list[Integers]:
        """The records of each step."""
        return self._batches

    def inputs(self) -> Iterator[tuple[Integers, Tensor, Tensor]]:
        """Each step's records: rows, inputs and labels."""
        held = self._data.seen_with(self._views)
        for rows in self._batches:
            chosen = torch.from_numpy(rows).to(self._data.labels.device)
            yield rows, held[chosen][:], self._data.labels[chosen]

    def queries(
        self,
        points: list[Tensor],
        answers: list[Tensor],
        norms: list[Singles],
        gradients: PlainGradients,
    ) -> Iterator[QueryAgain]:
        """Every query of the participation, at the points where the rule asked.

        Args:
            points: Where it asked, [d] each.
            answers: What the engine handed out, [d] each.
            norms: Which norms the engine found, float32 [b] each.
            gradients: Computes sums plainly.
        """
        plan, client = self._part.current.plan, self._part.client
        deviation = plan.noise_standard_deviation
        number = 0
        for rows, records, labels in self.inputs():
            for _ in range(plan.queries_per_step):
                point, answer = points[number], answers[number]
                found = gradients.clipped_sum(
                    point, records, labels, plan.clipping_norm, norms[number]
                )
                noise = self._noise.normal(len(point), DRAWS[plan.gaussian_sampler])
                yield QueryAgain(
                    records=rows,
                    point=point.float().cpu().numpy(),
                    gradient=answer.float().cpu().numpy(),
                    noise=noise * deviation,
                    spacing=grid_spacing(deviation),
                    divisor=plan.divisor(client),
                    clean=found.clean,
                    bound=found.bound,
                    norms=norms[number],
                    raw_norms=found.raw_norms,
                    norm_errors=found.norm_errors,
                )
                number += 1


def packed(tensors: Mapping[str, Tensor]) -> bytes:
    """Named tensors, serialised as evidence has them."""
    return save({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
