"""What queries cost is described in full, or refused: noise, rate, steps, queries and adjacency.

A `Composition` is what every accountant here takes: `rdp` and `pld` turn it into ε and δ,
`accounting` says what the number means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpfedadamw.errors import PrivacyError

__all__ = [
    "SAMPLINGS",
    "SMALLEST_DELTA",
    "Composition",
    "Compositions",
    "adjacency_of",
    "check_delta",
    "covers",
    "merge",
    "mu_gdp",
]

SAMPLINGS = ("poisson", "full", "fixed-size", "shuffled")
_REPLACE_ONE = ("fixed-size", "shuffled")
# Below this the rounding errors of the privacy loss distributions' Fourier transforms show.
SMALLEST_DELTA = 1e-10


def adjacency_of(sampling: str) -> str:
    """Return the neighbouring data sets under which a sampler is accounted."""
    return "replace-one" if sampling in _REPLACE_ONE else "add-remove"


@dataclass(frozen=True)
class Composition:
    """Like steps on one data set: each draws a batch and answers queries on it with noise.

    Attributes:
        noise_multiplier: σ, noise over the clipping norm, above 0.
        sampling_rate: q in (0, 1], the chance of a record to be in a batch that is counted.
        steps: batches counted, at least 1: all that were drawn, or for "shuffled" as many as one
            record can be in.
        queries_per_step: answers on each batch, at least 1; jointly they are one Gaussian of
            multiplier σ/√queries, subsampled once, because they share their batch.
        sampling: "poisson" or "full" (add-remove), "fixed-size" or "shuffled" (replace-one, where
            the sensitivity is 2C).
    """

    noise_multiplier: float
    sampling_rate: float
    steps: int
    queries_per_step: int = 1
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        """Refuse what describes no mechanism."""
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise PrivacyError(
                f"the noise multiplier must be a positive number, not {self.noise_multiplier}; "
                "without noise there is no privacy to account"
            )
        if not 0 < self.sampling_rate <= 1:
            raise PrivacyError(f"a sampling rate must be in (0, 1], not {self.sampling_rate}")
        if self.steps < 1 or self.queries_per_step < 1:
            raise PrivacyError(
                f"a composition has at least one step and one query per step, not {self.steps} and "
                f"{self.queries_per_step}"
            )
        if self.sampling not in SAMPLINGS:
            raise PrivacyError(
                f"no accountant covers sampling '{self.sampling}'; it is one of "
                + ", ".join(f"'{name}'" for name in SAMPLINGS)
            )
        if self.sampling in ("full", "shuffled") and self.sampling_rate != 1:
            raise PrivacyError(
                f"{self.sampling} batches have the sampling rate 1: nothing is amplified"
            )

    @property
    def adjacency(self) -> str:
        """Neighbouring data sets this composition is accounted for."""
        return adjacency_of(self.sampling)

    @property
    def sensitivity(self) -> float:
        """How far one neighbour moves a clipped sum, in units of C: a replaced record counts twice.

        It takes one vector of norm C out and puts another one in.
        """
        return 2.0 if self.adjacency == "replace-one" else 1.0

    @property
    def step_noise_multiplier(self) -> float:
        """The multiplier of the one Gaussian that a step's queries amount to, σ/√queries."""
        return self.noise_multiplier / math.sqrt(self.queries_per_step)

    @property
    def noise_over_sensitivity(self) -> float:
        """A step's noise over how far one neighbour moves it: what one Gaussian's ε depends on."""
        return self.step_noise_multiplier / self.sensitivity

    @property
    def key(self) -> tuple[float, float, str]:
        """What one step is, apart from how many there are."""
        return self.step_noise_multiplier, self.sampling_rate, self.sampling


Compositions = Composition | Sequence[Composition]


def merge(composition: Compositions) -> tuple[Composition, ...]:
    """Add up like compositions and put them into one order, so that equal costs compare equal.

    Raises:
        PrivacyError: if there are none, or they are accounted under different adjacencies.
    """
    parts = (composition,) if isinstance(composition, Composition) else tuple(composition)
    if not parts:
        raise PrivacyError("there is nothing to account: no step was taken")
    if len({part.adjacency for part in parts}) > 1:
        raise PrivacyError("compositions under different adjacencies cannot be added up")
    merged: dict[tuple[float, float, str], Composition] = {}
    for part in parts:
        seen = merged.get(part.key)
        merged[part.key] = part if seen is None else replace(part, steps=part.steps + seen.steps)
    return tuple(merged[key] for key in sorted(merged))


def covers(most: Compositions, own: Compositions) -> bool:
    """Whether one composition has for every step of another a step that costs as much or more.

    So it is where, sampler by sampler and up to any noise multiplier, it has at least as many steps
    of at most that noise, and no step of the other draws at a larger rate.
    """
    whole, parts = merge(most), merge(own)
    return all(
        _covers(
            tuple(part for part in whole if part.sampling == kind),
            tuple(part for part in parts if part.sampling == kind),
        )
        for kind in {part.sampling for part in parts}
    )


def _covers(whole: tuple[Composition, ...], parts: tuple[Composition, ...]) -> bool:
    """As `covers`, of steps that one sampler draws; some on the right."""
    rate = min((part.sampling_rate for part in whole), default=0.0)
    if any(part.sampling_rate > rate for part in parts):
        return False

    def within(found: tuple[Composition, ...], noise: float) -> int:
        return sum(part.steps for part in found if part.step_noise_multiplier <= noise)

    return all(
        within(parts, part.step_noise_multiplier) <= within(whole, part.step_noise_multiplier)
        for part in parts
    )


def mu_gdp(composition: Composition) -> float:
    """Return μ of the central limit approximation in Gaussian differential privacy. Never a claim.

    For Poisson batches under add-remove.

    q·√(steps·(e^{1/σ²} - 1)) (Bu, Dong, Long & Su 2020) is an asymptotic value that can lie below
    the truth; it is information for comparison with papers that print it.
    """
    exponent = composition.step_noise_multiplier**-2
    if exponent > 700:
        return math.inf
    return composition.sampling_rate * math.sqrt(composition.steps * math.expm1(exponent))


def check_delta(delta: float) -> None:
    """Refuse a δ outside [1e-10, 1).

    Raises:
        PrivacyError: if δ is out of range.
    """
    if not SMALLEST_DELTA <= delta < 1:
        raise PrivacyError(
            f"delta must be in [{SMALLEST_DELTA:g}, 1), not {delta}; it should be well below one "
            "over the number of records"
        )
