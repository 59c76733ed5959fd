"""Where an ε stands among published ones, and what that is worth. Each number has its source."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

from pydantic import WithJsonSchema

from reports import formatting
from reports.content.attacker import percent_in_words, posterior
from reports.content.parts import Part

Band = Literal["strong", "reasonable", "weak", "none"]
Mark = Annotated[float, WithJsonSchema({"type": "number", "exclusiveMinimum": 0})]
# Name of each band, and the ε where it ends; the last ends where the drawn scale does.
BANDS: Final = (("strong", 1.0), ("reasonable", 10.0), ("weak to none", 100.0))
# From here on a coin's guess may become one of 99 %.
_NEARLY_CERTAIN: Final = math.log(99.0)
# From here on even a hunch of 1 % may become one of 99.9 %: odds of 999 from odds of 1/99.
_NO_LIMIT: Final = math.log(999.0 * 99.0)


class Deployment(Part):
    """A published use of differential privacy.

    Attributes:
        name: What it is, and what one ε of it protects.
        low: Its smallest ε.
        high: Its largest.
    """

    name: str
    low: Mark
    high: Mark


class Scale(Part):
    """Where an ε stands among published ones.

    Attributes:
        band: "strong" up to 1, "reasonable" up to 10, "weak" above; "none" without a finite ε.
        weak: Whether ε, read as a limit, is weak: it lets an even guess become one of 99 %.
        statement: The same in words.
        deployments: Published uses, for comparison.
        sources: Where bands and uses are published.
    """

    band: Band
    weak: bool
    statement: str
    deployments: tuple[Deployment, ...]
    sources: str


_DEPLOYMENTS: Final = (
    Deployment(name="Apple’s telemetry, a user’s day", low=2.0, high=16.0),
    Deployment(name="Gboard’s Spanish next words, a device", low=8.9, high=8.9),
)
_SOURCES: Final = (
    "Bands: Ponomareva et al. 2023, How to DP-fy ML. Apple: list of uses at desfontain.es; Gboard: "
    "Google Research, Advances in private training for production on-device language models. They "
    "protect {theirs}, so equal numbers do not promise the same. In NIST SP 800-226, ε is the top "
    "of a pyramid: worth only as much as the security and the collection of data that carry it."
)
_THEIRS: Final = {
    "client": "a user’s day or a device, here it is a client with all its records",
    "person": "a user’s day or a device, here it is a person with all of their records",
}
_THEIRS_ELSE: Final = "all that a user’s day or a device contributes, this run one record"
_WORDS: Final[dict[Band, str]] = {
    "strong": "ε = {epsilon} lies in the band that is called strong (up to 1).",
    "reasonable": "ε = {epsilon} lies in the band that is called reasonable (above 1, up to 10).",
    "weak": "ε = {epsilon} is weak: it lies in the band that is called weak to none (above 10).",
    "none": "There is no finite ε, and so no place on the scale: nothing is promised.",
}
_WEAK_READING: Final = (
    " Read as a limit it is weak: an even guess may become one of {guess}. That attackers reach "
    "less in practice is likely, and nobody has proved it for this run."
)


def place(epsilon: float | None, unit: str) -> Scale:
    """Return where an ε stands.

    Args:
        epsilon: ε ≥ 0; None where there is no finite one.
        unit: What is protected: "record", "person" or "client".
    """
    band = _band(epsilon)
    weak = epsilon is None or is_weak(epsilon)
    statement = _WORDS[band].format(epsilon=formatting.epsilon(epsilon))
    if weak and epsilon is not None:
        statement += _WEAK_READING.format(guess=percent_in_words(posterior(0.5, epsilon)))
    return Scale(
        band=band,
        weak=weak,
        statement=statement,
        deployments=_DEPLOYMENTS,
        sources=_SOURCES.format(theirs=_THEIRS.get(unit, _THEIRS_ELSE)),
    )


def protects(epsilon: float | None) -> str:
    """Return in a word whether a limit protects; one that is not told this audience may be any."""
    if epsilon is None or not is_weak(epsilon):
        return "Yes"
    return "Hardly" if excludes_nothing(epsilon) else "Weakly"


def is_weak(epsilon: float) -> bool:
    """Whether a limit lets an even guess become one of 99 %."""
    return epsilon > _NEARLY_CERTAIN


def excludes_nothing(epsilon: float) -> bool:
    """Whether a limit lets a hunch of 1 % become one of 99.9 %."""
    return epsilon > _NO_LIMIT


def _band(epsilon: float | None) -> Band:
    if epsilon is None:
        return "none"
    if epsilon <= BANDS[0][1]:
        return "strong"
    return "reasonable" if epsilon <= BANDS[1][1] else "weak"


def fraction(epsilon: float) -> float:
    """Return the place of an ε on the drawn scale: 0 at 0.1 and below, 1 at 100 and above."""
    return min(1.0, max(0.0, (math.log10(max(epsilon, 1e-9)) + 1.0) / 3.0))
