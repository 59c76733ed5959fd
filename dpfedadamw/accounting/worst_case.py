"""The most that a run can spend, known before it begins, whatever its rules adapt to on the way.

Most runs take K steps a round under one noise multiplier. Some choose steps or noise from round to
round by what was released before. How much such a run spent then depends on the records, if only
through releases, so the ε of what happened to be spent is not a guarantee. What holds is the ε of
the most that could have been spent: a hard limit on steps, or the noise of the fastest decay. More
noise is post-processing of less, and fewer steps are a part of more, so any course that keeps
within the limits is covered, step by step, by the worst one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition

__all__ = ["Adaptation", "NoiseDecay", "SpendingBound"]

# Noise levels that are composed one by one; more of them are grouped.
_LEVELS = 24


@dataclass(frozen=True)
class NoiseDecay:
    """Noise that may fall by a factor once in a number of rounds, down to a floor.

    Attributes:
        factor: β in (0, 1], what one decay multiplies the noise multiplier by.
        patience: Rounds that must speak for it before each decay, at least 1.
        floor: Least noise multiplier over the first round's, in (0, 1].
    """

    factor: float
    patience: int
    floor: float

    def least(self, round_index: int) -> float:
        """Smallest multiple of the first round's noise multiplier that a round can have.

        The first round says nothing of the one before it, so the earliest decay comes after
        1 + patience rounds.
        """
        decays = max(0, round_index - 1) // self.patience
        return max(self.floor, self.factor**decays)

    def levels(self, rounds: int) -> list[tuple[float, int]]:
        """Smallest multiples that so many rounds can have, falling, and in how many rounds each.

        Many levels are grouped: a group's rounds count at its smallest multiple, which can only
        cost more.
        """
        decays = max(0, rounds - 2) // self.patience
        if self.factor < 1.0:
            # After so many decays nothing falls any more; a margin of 1 is rounding's.
            lasting = math.log(self.floor) / math.log(self.factor)
            decays = min(decays, 1 + math.ceil(min(lasting, float(decays))))
        else:
            decays = 0
        multiples = np.maximum(self.floor, self.factor ** np.arange(decays + 1, dtype=np.float64))
        counts = np.full(decays + 1, self.patience, dtype=np.int64)
        counts[0] += 1
        counts[-1] = rounds - int(counts[:-1].sum())
        # The last two may both be the floor.
        many = len(np.unique(multiples)) > _LEVELS
        groups = _groups(multiples) if many else np.arange(decays + 1)
        found: dict[float, int] = {}
        for group in np.unique(groups):
            inside = groups == group
            # Python's own power, as `least` takes it, so that a level is the round's multiple.
            last = int(np.flatnonzero(inside)[-1])
            least = max(self.floor, self.factor**last)
            found[least] = found.get(least, 0) + int(counts[inside].sum())
        return list(found.items())


@lru_cache(maxsize=16)
def _course(decay: NoiseDecay, rounds: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The round before which each group of levels ends, and its smallest multiple."""
    levels = decay.levels(rounds)
    ends = accumulate(count for _, count in levels)
    return tuple(ends), tuple(least for least, _ in levels)


def _groups(multiples: NDArray[np.float64]) -> NDArray[np.int64]:
    """The group of each of many falling multiples, at most `_LEVELS` of them.

    What a step costs grows about as 1/σ², and levels of a geometric decay lie as densely in 1/σ²
    as 1/σ² is small; groups of equal width in 1/σ then add least.
    """
    inverse = 1.0 / multiples
    width = (inverse[-1] - inverse[0]) / _LEVELS
    # The last group ends with the smallest multiple, at which most rounds of a long run are.
    found: NDArray[np.int64] = np.ceil((inverse - inverse[0]) / width - 1e-9).astype(np.int64)
    return found


@dataclass(frozen=True)
class Adaptation:
    """What a run may change from round to round, and how far.

    Attributes:
        most_local_steps: Most steps of one round.
        step_limit: Most steps of all rounds together, those of repeated rounds included; None
            where rounds and local steps are fixed.
        follows_releases: Whether the choice heeds values released earlier in the run. Where it
            does not, the course is public from the start, and what was spent is what holds.
        decay: How the noise may fall; None for one noise multiplier throughout.
    """

    most_local_steps: int
    step_limit: int | None
    follows_releases: bool
    decay: NoiseDecay | None


@dataclass(frozen=True)
class SpendingBound:
    """Rounds, steps and noise of a run, as far as they bound what it can spend.

    Attributes:
        rounds: T, the most there can be.
        local_steps: K; of the first round where steps adapt.
        noise_multiplier: σ; of the first round where noise adapts.
        adaptation: What may change; None for a run that is the same in every round.
        clients_per_person: At how many clients the records of one person may be; 1 where records
            are protected, or clients.
        queries: Queries outside the rounds, in which every record takes part.
    """

    rounds: int
    local_steps: int
    noise_multiplier: float
    adaptation: Adaptation | None = None
    clients_per_person: int = 1
    queries: tuple[Composition, ...] = ()

    @property
    def most_local_steps(self) -> int:
        """Most steps of one round."""
        return self.adaptation.most_local_steps if self.adaptation else self.local_steps

    @property
    def most_steps(self) -> int:
        """Most steps of a client that takes part in every round."""
        total = self.rounds * self.most_local_steps
        limit = self.adaptation.step_limit if self.adaptation else None
        return total if limit is None else min(total, limit)

    @property
    def least_noise_multiplier(self) -> float:
        """Smallest noise multiplier of any round."""
        return self.noise_multiplier_of(self.rounds - 1)

    def noise_multiplier_of(self, round_index: int) -> float:
        """Smallest noise multiplier that a round can have."""
        decay = self.adaptation.decay if self.adaptation else None
        return self.noise_multiplier * (decay.least(round_index) if decay else 1.0)

    def counted_noise_multiplier(self, round_index: int) -> float:
        """The noise multiplier at which a round counts: the least of its group of levels."""
        decay = self.adaptation.decay if self.adaptation else None
        if decay is None:
            return self.noise_multiplier
        ends, multiples = _course(decay, self.rounds)
        return (
            self.noise_multiplier * multiples[min(bisect_right(ends, round_index), len(ends) - 1)]
        )

    def everything(self, per_round: Composition) -> tuple[Composition, ...]:
        """The most that a client in every round can spend.

        Args:
            per_round: what one participation of the most steps costs it, at the first noise.
        """
        return (*self.of_rounds(per_round), *self.queries)

    def of_rounds(self, per_round: Composition) -> tuple[Composition, ...]:
        """The same without the queries outside the rounds.

        Args:
            per_round: as for `everything`.
        """
        limit = self.adaptation.step_limit if self.adaptation else None
        kinds = self.each_round(per_round)
        if limit is None:
            return tuple(replace(part, steps=part.steps * rounds) for part, rounds in kinds)
        ((part, rounds),) = kinds
        return (replace(part, steps=min(part.steps * rounds, limit)),)

    def of_person(self, per_round: Composition) -> tuple[Composition, ...]:
        """The most that one person can be charged, all of whose clients are in every round.

        Args:
            per_round: as for `everything`.
        """
        times = self.clients_per_person
        return tuple(replace(part, steps=part.steps * times) for part in self.everything(per_round))

    def each_round(self, per_round: Composition) -> tuple[tuple[Composition, int], ...]:
        """The most that one round can spend, and in how many rounds it is that.

        A limit on steps is not in it: it holds for all rounds together.

        Args:
            per_round: as for `everything`.
        """
        decay = self.adaptation.decay if self.adaptation else None
        levels = [(1.0, self.rounds)] if decay is None else decay.levels(self.rounds)
        return tuple(
            (replace(per_round, noise_multiplier=self.noise_multiplier * least), rounds)
            for least, rounds in levels
        )

    def accounted(self, entries: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The ledger's entries with each spend as it must be counted for a claim to hold.

        Where the course followed releases, that is the most which the client could have been
        charged for the rounds it took part in; who takes part does not depend on the records.
        """
        if self.adaptation is None or not self.adaptation.follows_releases:
            return list(entries)
        counted: list[Mapping[str, Any]] = []
        spent: dict[int, int] = {}
        for entry in entries:
            if entry["kind"] != "spend":
                counted.append(entry)
                continue
            before = spent.get(entry["client"], 0)
            after = before + self.most_local_steps
            if self.adaptation.step_limit is not None:
                after = min(after, self.adaptation.step_limit)
            spent[entry["client"]] = after
            noise = self.counted_noise_multiplier(entry["round"])
            counted.append({**entry, "steps": after - before, "noise_multiplier": noise})
        return counted

    def check(self, round_index: int, steps: int, noise_multiplier: float, spent: int) -> None:
        """Refuse a round that goes beyond what the claim covers, before it is charged.

        Args:
            round_index: t, from 0.
            steps: Local steps that the round would take.
            noise_multiplier: σ that it would have.
            spent: Steps charged so far, those of repeated rounds included.

        Raises:
            PrivacyError: If it does; nothing has been drawn then.
        """
        limit = self.adaptation.step_limit if self.adaptation else None
        if not 1 <= steps <= self.most_local_steps or (limit is not None and spent + steps > limit):
            raise PrivacyError(
                f"round {round_index + 1} asks for {steps} local steps after {spent}, beyond the "
                f"most that is accounted for ({self.most_local_steps} a round, "
                f"{'no' if limit is None else limit} in all); no query was made"
            )
        least = self.noise_multiplier_of(round_index)
        if noise_multiplier < least * (1.0 - 1e-12):
            raise PrivacyError(
                f"round {round_index + 1} asks for noise multiplier {noise_multiplier:.6g}, below "
                f"the {least:.6g} that is accounted for; no query was made"
            )
