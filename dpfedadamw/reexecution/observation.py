"""Looking on while rounds are run again: what a run does not keep can be measured in passing.

An observer sees private values. It changes none, and copies what it wants to keep: most of what it
is shown is overwritten by the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpfedadamw.algorithms.base import (
    Broadcast,
    GradientOracle,
    LocalRule,
    Observer,
    SecondMoment,
    Upload,
)
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.federation.participation import Answer, Participation, Round
from dpfedadamw.privacy.oracle import Query


class RoundObserver:
    """Sees what goes on in rounds that are run again; every hook does nothing by itself.

    Clients come one after the other: `begins`, then `answered` for each query, `moments` where the
    rule has some to show, `trained`, `took_part`.
    """

    def begins(self, broadcast: Broadcast) -> None:
        """A client begins its local steps."""

    def answered(self, noised: Tensor, clean: Tensor) -> None:
        """A gradient is handed to the rule.

        Args:
            noised: The mean gradient as the rule gets it, [d].
            clean: The same before noise, [d]; the very tensor where gradients are not noised.
        """

    def moments(self, seen: SecondMoment) -> None:
        """The rule shows its moments after the last local step."""

    def trained(self, upload: Upload) -> None:
        """The local steps are taken: what the rule gives, before anything of it is changed."""

    def took_part(self, part: Participation, answer: Answer) -> None:
        """A client's part is over."""

    def closes(self, current: Round) -> None:
        """A round is over."""


@dataclass(frozen=True)
class RoundObservers(RoundObserver):
    """Several that look on at once.

    Attributes:
        every: Told one after the other.
    """

    every: tuple[RoundObserver, ...]

    def begins(self, broadcast: Broadcast) -> None:
        """Tell each."""
        for one in self.every:
            one.begins(broadcast)

    def answered(self, noised: Tensor, clean: Tensor) -> None:
        """Tell each."""
        for one in self.every:
            one.answered(noised, clean)

    def moments(self, seen: SecondMoment) -> None:
        """Tell each."""
        for one in self.every:
            one.moments(seen)

    def trained(self, upload: Upload) -> None:
        """Tell each."""
        for one in self.every:
            one.trained(upload)

    def took_part(self, part: Participation, answer: Answer) -> None:
        """Tell each."""
        for one in self.every:
            one.took_part(part, answer)

    def closes(self, current: Round) -> None:
        """Tell each."""
        for one in self.every:
            one.closes(current)


@dataclass
class Tap:
    """Where a round's unit, its local rule and its observer meet.

    Attributes:
        observer: Who looks on.
        clean: The last query's mean gradient before noise, [d]; None where none is added.
    """

    observer: RoundObserver
    clean: Tensor | None = None


@dataclass(kw_only=True)
class TappedEvidence(ClientEvidence):
    """A client's evidence, which also lets the clean gradient of each query be seen.

    Attributes:
        tap: Where it is seen.
    """

    tap: Tap

    def query(self, query: Query) -> None:
        """As in the run; the clean sum is divided as the noised one will be."""
        self.tap.clean = query.clean_sum / query.divisor
        super().query(query)


@dataclass(frozen=True)
class ObservedRule:
    """A local rule whose gradients, moments and outcome are seen.

    Attributes:
        rule: The rule.
        tap: Where they are seen.
    """

    rule: LocalRule
    tap: Tap

    @property
    def queries_per_step(self) -> int:
        """The rule's own."""
        return self.rule.queries_per_step

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take the rule's local steps."""
        self.tap.observer.begins(broadcast)
        upload = self.rule.run(
            broadcast, _ObservedOracle(oracle, self.tap), _Both(observer, self.tap)
        )
        self.tap.observer.trained(upload)
        return upload


class _ObservedOracle:
    def __init__(self, oracle: GradientOracle, tap: Tap) -> None:
        self.noise_variance = oracle.noise_variance
        self._oracle, self._tap = oracle, tap

    def next_batch(self) -> None:
        """Draw the records of the next local step."""
        self._oracle.next_batch()

    def gradient(self, parameters: Tensor) -> Tensor:
        """The oracle's answer."""
        self._tap.clean = None
        noised = self._oracle.gradient(parameters)
        clean, self._tap.clean = self._tap.clean, None
        self._tap.observer.answered(noised, noised if clean is None else clean)
        return noised


class _Both:
    """Shows moments to an observer, and to the code that notes them in the run."""

    def __init__(self, observer: Observer, tap: Tap) -> None:
        self._observer, self._tap = observer, tap

    def second_moment(self, look: Callable[[], Any]) -> None:
        """Show the moments to the observer, and to the code that notes them in the run."""
        seen = look()
        self._tap.observer.moments(seen)
        self._observer.second_moment(lambda: seen)
