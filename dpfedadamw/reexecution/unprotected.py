"""Rounds of a run that protects nothing, run again: there is nothing to compute a second time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.participation import ClientData, Round
from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.reexecution.plain import PlainGradients
from dpfedadamw.reexecution.results import ParticipationAgain, ReexecutionError, ReleaseAgain


@dataclass(frozen=True, kw_only=True)
class UnprotectedAgain(Unprotected):
    """The unit as it was, which also keeps where its round began.

    Attributes:
        closed: The round.
    """

    closed: list[Round] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        _setup: UnitSetup,
        _drawn: frozenset[int],
        _experiment: Experiment,
        _again: RandomSource,
    ) -> Self:
        """The unit for one round."""
        return cls()

    def close(self, current: Round) -> Mapping[str, object]:
        """As in the run; keep the round."""
        self.closed.append(current)
        return super().close(current)

    def commitments(self) -> list[bytes]:
        """None: nothing was committed to."""
        return []

    def before(self) -> Tensor:
        """The parameters [d] before the round."""
        return self.closed[0].broadcast.parameters

    def release(self) -> ReleaseAgain | None:
        """Nothing is released with noise."""
        return None

    def participation(
        self, _client: int, _data: ClientData, _source: RandomSource, _gradients: PlainGradients
    ) -> ParticipationAgain:
        """Refused: no value was noised that could be computed again.

        Raises:
            ReexecutionError: Always.
        """
        raise ReexecutionError("the run claims no privacy: there is nothing to compute again")
