"""A run ends before its ε would exceed what its spec allows.

Its spec allows `federation.max_epsilon`. A run that was cut off and taken up again also keeps to
`privacy.target_epsilon`: its σ is solved for so many rounds, and one of them was charged twice.

Before each round the ε of all that is charged and of one round more, at its worst for the client
for which it is worst, is held against the limit. Nothing of it depends on the records, nor on what
was released: where the course follows releases, spends count as the most that they could have been.

Where S of N clients are drawn, how often they took part does matter, because the server's ε counts
it; so the number of rounds reveals something about it. The claim against a third party allows for
that: it averages over participation as over a public coin. Where clients are drawn independently,
how many took part must stay secret. The run then ends where one with every client in every round
would: this follows from the spec, and from how often the run was resumed. So does a run in which a
person may be at several clients: whose histories add up for somebody is not gone into.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from dpfedadamw.accounting.calibration import largest_count
from dpfedadamw.accounting.registry import leading
from dpfedadamw.accounting.worst_case import SpendingBound
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition, Compositions
from dpfedadamw.privacy.sampling import Sampling

Entries = Sequence[Mapping[str, Any]]
# Below this share of the steps that fit, the grids on which losses are rounded cannot matter.
_CERTAIN = 0.9


def fits(composition: Compositions, limit: float, delta: float) -> bool:
    """Whether compositions cost no more than a limit, by the accountant whose ε is claimed."""
    return leading()[0].epsilon(composition, delta) <= limit


@lru_cache(maxsize=256)
def rounds_that_fit(
    bound: SpendingBound, per_round: Composition, limit: float, delta: float
) -> int:
    """How many of a run's rounds fit a limit if one client is in each of them; 0 if none does.

    Where a person may be at several clients, all of these are in each of them.
    """

    def spent(rounds: int) -> float:
        everything = replace(bound, rounds=rounds).of_person(per_round)
        return leading()[0].epsilon(everything, delta)

    try:
        return largest_count(spent, limit, "round", bound.rounds)
    except PrivacyError:
        return 0


def too_low(limit: float) -> PrivacyError:
    """What is said of a limit that not even one round keeps to."""
    return PrivacyError(
        f"federation.max_epsilon: a single round already costs more than {limit:g}; raise it, or "
        "the noise"
    )


class Watch(Protocol):
    """Says before each round whether it fits the limit."""

    def allows(self, entries: Entries, index: int, /) -> bool:
        """Whether a round keeps to the limit for any participants.

        Args:
            entries: The ledger so far; it only grows from call to call.
            index: The round, from 0.
        """
        ...


@dataclass(frozen=True)
class OnceResumed:
    """Says it only of a run that was cut off: the spec is solved for what is charged once.

    Attributes:
        watch: Says it of any run.
    """

    watch: Watch

    def allows(self, entries: Entries, index: int) -> bool:
        """Whether a round keeps to the limit, or none was charged in vain so far."""
        cut_off = any(entry["kind"] == "resume" for entry in entries)
        return not cut_off or self.watch.allows(entries, index)


@dataclass(frozen=True)
class Each:
    """Says it of several limits.

    Attributes:
        watches: One or more, each of one limit.
    """

    watches: tuple[Watch, ...]

    def allows(self, entries: Entries, index: int) -> bool:
        """Whether a round keeps to all of them."""
        return all(one.allows(entries, index) for one in self.watches)


@dataclass(frozen=True)
class Rounds:
    """Counts rounds and attempts alone: the end follows from the spec, not from who takes part.

    Attributes:
        bound: Rounds, steps and noise of the run.
        per_round: The most a round costs, for any participants.
        limit: ε that must not be exceeded.
        delta: δ.
        charged_each: Whether the ledger has one spend for each round that was begun, for any
            participants.
    """

    bound: SpendingBound
    per_round: Composition
    limit: float
    delta: float
    charged_each: bool = False

    def allows(self, entries: Entries, index: int) -> bool:
        """Whether the rounds before and this one fit, with those that were begun again."""
        begun = index + 1 + repeated(entries)
        if self.charged_each:
            begun = 1 + sum(1 for entry in entries if entry["kind"] == "spend")
        bound = replace(self.bound, rounds=max(begun, self.bound.rounds))
        return begun <= rounds_that_fit(bound, self.per_round, self.limit, self.delta)


def repeated(entries: Entries) -> int:
    """How many more rounds were begun, at most, than the ledger's last ones were numbered.

    Whenever a run was cut off, one may have been begun in vain, and finished ones run again.
    """
    over = again = 0
    for entry in entries:
        if entry["kind"] == "round":
            over = entry["round"] + 1
        elif entry["kind"] == "resume":
            again += 1 + max(0, over - entry["round"])
            over = entry["round"]
    return again


class Participations:
    """Counts a ledger's spends by client as it grows.

    Args:
        bound: Rounds, steps and noise of the run.
        per_round: What one participation costs each client's records at most, by client.
        sampling: How records are drawn.
        records: R of each client.
        limit: ε that no client may exceed.
        delta: δ.
    """

    def __init__(
        self,
        bound: SpendingBound,
        per_round: Sequence[Composition],
        sampling: Sampling,
        records: Sequence[int],
        limit: float,
        delta: float,
    ) -> None:
        self._bound, self._per_round, self._sampling = bound, per_round, sampling
        self._records, self._limit, self._delta = records, limit, delta
        self._read = 0
        self._steps: list[dict[float, int]] = [{} for _ in per_round]
        self._fitting: list[Composition] = []
        self._exceeding: list[Composition] = []

    def allows(self, entries: Entries, index: int) -> bool:
        """Whether every client could take part in a round and stay within the limit."""
        for entry in entries[self._read :]:
            if entry["kind"] == "spend":
                self._count(entry)
        self._read = len(entries)
        return all(self._fits(client, index) for client in self._foremost())

    def _count(self, entry: Mapping[str, Any]) -> None:
        client, steps, noise = entry["client"], entry["steps"], entry["noise_multiplier"]
        if self._bound.adaptation is not None and self._bound.adaptation.follows_releases:
            steps = self._bound.most_local_steps
            noise = self._bound.counted_noise_multiplier(entry["round"])
        counted = self._sampling.charged_steps(self._records[client], steps)
        own = self._steps[client]
        own[noise] = own.get(noise, 0) + counted

    def _foremost(self) -> list[int]:
        """Clients of which none costs less than another: fewer records, or more steps."""
        found: dict[tuple[tuple[float, int], ...], int] = {}
        for client in sorted(range(len(self._records)), key=self._records.__getitem__):
            found.setdefault(tuple(sorted(self._steps[client].items())), client)
        kept: list[int] = []
        for client in sorted(found.values(), key=self._records.__getitem__):
            if not any(self._covers(other, client) for other in kept):
                kept.append(client)
        return kept

    def _covers(self, one: int, other: int) -> bool:
        """Whether a client of no more records was charged at least what another one was."""
        mine = self._steps[one]
        return all(mine.get(noise, 0) >= steps for noise, steps in self._steps[other].items())

    def _fits(self, client: int, index: int) -> bool:
        step = self._per_round[client]
        noise = self._bound.counted_noise_multiplier(index)
        after = dict(self._steps[client])
        after[noise] = after.get(noise, 0) + step.steps
        total, least = sum(after.values()), min(after)
        limit = self._bound.adaptation.step_limit if self._bound.adaptation else None
        if limit is not None:
            total = min(total, limit)
        # All steps under the least noise cost at least as much; mostly there is no other.
        if self._known_to_fit(replace(step, noise_multiplier=least, steps=total)):
            return True
        if len(after) == 1:
            return self._keeps_to_it(replace(step, noise_multiplier=least, steps=total))
        parts = [
            replace(step, noise_multiplier=noise, steps=steps) for noise, steps in after.items()
        ]
        return self._keeps_to_it(*parts)

    def _keeps_to_it(self, *parts: Composition) -> bool:
        """Whether steps, with the queries outside the rounds, keep to the limit."""
        return fits((*parts, *self._bound.queries), self._limit, self._delta)

    def _known_to_fit(self, wanted: Composition) -> bool:
        """Whether steps fit well, as far as that follows from what was worked out before.

        What is worked out is half as much again, so that it holds for many rounds to come.
        """
        if any(
            _at_most(wanted, one) and wanted.steps <= _CERTAIN * one.steps for one in self._fitting
        ):
            return True
        ahead = replace(wanted, steps=math.ceil(1.5 * wanted.steps))
        if any(_at_most(one, ahead) and one.steps <= ahead.steps for one in self._exceeding):
            return False
        # Near the limit the very composition is asked about that the claim would state.
        fitting = self._keeps_to_it(ahead)
        (self._fitting if fitting else self._exceeding).append(ahead)
        return fitting


def _at_most(one: Composition, other: Composition) -> bool:
    """Whether a step of one costs at most what a step of the other does."""
    return (
        one.sampling_rate <= other.sampling_rate
        and one.step_noise_multiplier >= other.step_noise_multiplier
    )
