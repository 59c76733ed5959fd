"""Runs whose steps or noise change from round to round: what they may do, what they must cost.

`ledger` reads what the header declares; the checks "promise", "accounting" and "views" ask here
what is the most that the rule could have spent. How much was spent by a rule that follows released
values depends on the records, so its ε is that of the most. More noise is post-processing of less
and fewer steps are a part of more, so the most covers every course within it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit.reading.spends import Spend
from audit.untrusted import fields

_MOST = 10_000_000


@dataclass(frozen=True)
class Decay:
    """Noise that may fall: by `factor` after `patience` rounds that speak for it, to `floor`."""

    factor: float
    patience: int
    floor: float

    def after(self, decays: int) -> float:
        """Share of the first round's noise multiplier after some decays."""
        return max(self.floor, self.factor**decays)

    def least(self, index: int) -> float:
        """Smallest share that round `index` (from 0) can have; round 0 speaks for nothing."""
        return self.after(max(0, index - 1) // self.patience)


@dataclass(frozen=True)
class Adaptation:
    """What the header declares a run may change, and how far.

    Attributes:
        most_local_steps: most steps of one round.
        step_limit: most steps of all rounds together, repeated ones included; None for no limit.
        follows_releases: whether choices heed released values.
        decay: how the noise may fall; None for one noise multiplier throughout.
    """

    most_local_steps: int
    step_limit: int | None
    follows_releases: bool
    decay: Decay | None


def read_adaptation(entry: Mapping[str, Any]) -> Adaptation | None:
    """What a header says of it; None for a run that is the same in every round.

    Raises:
        FieldError: a field is missing, of the wrong type or out of range.
    """
    if entry.get("adaptation") is None:
        return None
    section = fields.mapping(entry, "adaptation")
    decay = None
    if section.get("decay") is not None:
        part = fields.mapping(section, "decay")
        decay = Decay(
            fields.positive(part, "factor", most=1.0),
            fields.integer(part, "patience", least=1, most=_MOST),
            fields.positive(part, "floor", most=1.0),
        )
    limit = None
    if section.get("step_limit") is not None:
        limit = fields.integer(section, "step_limit", least=1, most=_MOST)
    return Adaptation(
        fields.integer(section, "most_local_steps", least=1, most=_MOST),
        limit,
        fields.flag(section, "follows_releases"),
        decay,
    )


def steps_charged(spends: Sequence[Spend]) -> int:
    """Local steps of all rounds together, those of repeated rounds included."""
    return sum({(spend.round, spend.attempt): spend.steps for spend in spends}.values())


@dataclass(frozen=True)
class Course:
    """The most that a run can spend: rounds, steps and noise as spec and header declare them.

    Attributes:
        rounds: T, the most there can be.
        local_steps: K.
        noise_multiplier: sigma, of the first round.
        adaptation: what may change; None for nothing.
    """

    rounds: int
    local_steps: int
    noise_multiplier: float
    adaptation: Adaptation | None

    @property
    def most_local_steps(self) -> int:
        """Most steps of one round."""
        return self.adaptation.most_local_steps if self.adaptation else self.local_steps

    def most_steps(self, rounds: int) -> int:
        """Most steps of a client that takes part in this many rounds."""
        total = rounds * self.most_local_steps
        limit = self.adaptation.step_limit if self.adaptation else None
        return total if limit is None else min(total, limit)

    def least_noise(self, index: int) -> float:
        """Smallest noise multiplier that round `index` can have."""
        decay = self.adaptation.decay if self.adaptation else None
        return self.noise_multiplier * (decay.least(index) if decay else 1.0)

    def noise_levels(self, rounds: int) -> dict[float, int]:
        """Smallest noise multipliers of the first rounds, and how many rounds have each."""
        if self.adaptation is None or self.adaptation.decay is None:
            return {self.noise_multiplier: rounds} if rounds else {}
        found: dict[float, int] = {}
        for index in range(rounds):
            found[self.least_noise(index)] = found.get(self.least_noise(index), 0) + 1
        return found

    def accounted(self, spends: Sequence[Spend]) -> list[tuple[Spend, float, int]]:
        """Every charge with the noise multiplier and the steps that a claim must count it at."""
        if self.adaptation is None or not self.adaptation.follows_releases:
            return [(spend, spend.noise_multiplier, spend.steps) for spend in spends]
        counted: list[tuple[Spend, float, int]] = []
        most: dict[int, int] = {}
        charged: dict[int, int] = {}
        for spend in spends:
            before = most.get(spend.client, 0)
            after = before + self.most_local_steps
            if self.adaptation.step_limit is not None:
                after = min(after, self.adaptation.step_limit)
            charged[spend.client] = charged.get(spend.client, 0) + spend.steps
            # What goes beyond the declared limits fails "promise", and costs what it costs.
            most[spend.client] = after = max(after, charged[spend.client])
            noise = min(self.least_noise(spend.round), spend.noise_multiplier)
            counted.append((spend, noise, after - before))
        return counted


def local_steps_of_equation_9(
    strong_convexity: float,
    heterogeneity: float,
    total_steps: float,
    clipping_norm: float,
    noise_energy: float,
) -> float:
    """Best number of local steps by ALI-DPFL eq. (9): mu, Gamma, T, C and sigma^2 C^2 d / B^2."""
    spread = clipping_norm * clipping_norm + noise_energy
    rest = (
        4.0 / (strong_convexity * strong_convexity)
        + 2.0 * clipping_norm * clipping_norm
        + 2.0 * heterogeneity * total_steps * strong_convexity
        + spread
    )
    return math.sqrt(1.0 + rest / (spread * (2.0 + 1.0 / total_steps)))
