"""Rounds run again: what every unit keeps of them, and the unit that protects nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from audit.recomputed import RecomputedParticipation, RecomputedRelease
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.participation import Answer, ClientData, Participation, Round
from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.reexecution.history import ReexecutionError
from dpfedadamw.reexecution.observation import Tap
from dpfedadamw.reexecution.plain import PlainGradients


@dataclass(kw_only=True)
class Kept:
    """What is kept of a round.

    Attributes:
        experiment: What is run.
        source: Streams, as often as they are asked for.
        drawn: The clients whose participations are computed a second time.
        cohort: Everybody whom the round's own stream draws, once it has.
        parts: Part of each client that was drawn.
        answers: What it came to.
        commitments: Of every client that was computed, in their order.
        closed: The round, once it is over.
        tap: Through which somebody looks on; None where nobody does.
    """

    experiment: Experiment
    source: RandomSource
    drawn: frozenset[int]
    cohort: Sequence[int] = ()
    parts: dict[int, Participation] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)
    commitments: list[bytes] = field(default_factory=list)
    closed: Round | None = None
    tap: Tap | None = None


@dataclass(frozen=True, kw_only=True)
class RecomputedUnprotected(Unprotected):
    """The unit as it was, which also keeps what its round came to.

    Attributes:
        kept: What it keeps.
        unit: The unit that it is else.
    """

    kept: Kept
    unit: ClassVar[type[Unprotected]] = Unprotected

    @classmethod
    def begin(cls, setup: UnitSetup, drawn: frozenset[int], tap: Tap | None) -> Self:
        """The unit for one round, whose evidence goes to a folder of its own."""
        kept = Kept(
            experiment=setup.experiment,
            source=setup.randomness,
            drawn=drawn,
            tap=tap,
        )
        return cls(**vars(cls.unit.open(setup)), kept=kept)

    def took_part(self, part: Participation, answer: Answer) -> None:
        """Keep the commitment of every client, and all of those that were drawn."""
        commitment = self.commitment(answer)
        if commitment is not None:
            self.kept.commitments.append(commitment)
        if part.client in self.kept.drawn:
            self.kept.parts[part.client], self.kept.answers[part.client] = part, answer
        if self.kept.tap is not None:
            self.kept.tap.observer.took_part(part, answer)

    def close(self, current: Round) -> Mapping[str, object]:
        """As in the run; keep the round."""
        self.kept.closed = current
        if self.kept.tap is not None:
            self.kept.tap.observer.closes(current)
        return super().close(current)

    def commitment(self, _answer: Answer) -> bytes | None:
        """What binds the trainer to a participation; None where nothing does."""
        return None

    @property
    def current(self) -> Round:
        """The round, once it is closed."""
        assert self.kept.closed is not None
        return self.kept.closed

    def release(self, _whole: bool) -> RecomputedRelease | None:
        """What the server releases with noise of its own; None where that is nothing.

        Args:
            whole: Whether all of the round's clients were computed.
        """
        return None

    def participation(
        self, _client: int, _data: ClientData, _gradients: PlainGradients
    ) -> RecomputedParticipation:
        """A participation that was drawn, with its second computation.

        Args:
            client: Its client.
            data: Its records.
            gradients: Computes sums plainly.

        Raises:
            ReexecutionError: If no value was noised that could be computed again.
        """
        raise ReexecutionError("the run claims no privacy, so there is nothing to recompute")
