"""What the auditor found, as the report has it: checks, noise quantiles, the second moment."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import WithJsonSchema

from reports.content import findings
from reports.content.findings import Check, Library
from reports.content.parts import EMPTY, FOR_THE_PUBLIC, INTERNAL, NULL, Part, Rule, part
from reports.files import clean, integer, mapping, number, sequence
from reports.source import RunSource

Side = Literal["inside", "below", "above"]
Level = Annotated[
    float, WithJsonSchema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})
]


class Block(Part):
    """One block.

    Attributes:
        name: Name.
        size: Coordinates.
        predicted: Shift (1 − β₂^τ)Φ that noise adds.
        released: Released mean, averaged over the last round's clients.
        half_width: 99.9 % half-width of the shift.
    """

    name: str
    size: int | None
    predicted: float
    released: float
    half_width: float


class SecondMoment(Part):
    """The bias shift.

    Attributes:
        tau: Moving-average steps behind the second moment.
        blocks: Blocks in order.
    """

    tau: int | None
    blocks: tuple[Block, ...]


class NoiseQuantile(Part):
    """One quantile.

    Attributes:
        level: Probability p.
        expected: The normal law's p-quantile.
        low: Lower end of the accepted interval, in units of the charged standard deviation.
        high: Its upper end.
        verdict: Where the noise's own quantile was found.
    """

    level: Level
    expected: float
    low: float
    high: float
    verdict: Side


class Audit(Part):
    """What the auditor found.

    Attributes:
        auditor: The auditor's software.
        checks: Every check. In the public report the auditor's wording is left out and these five
            texts are null.
        second_moment: Released block means of the second moment beside the noise shift; null if
            not measured.
        noise_quantiles: Quantiles of the recorded noise, as verdicts: the noise itself is private.
            Internal only, because the intervals tell how many queries were made.
    """

    auditor: tuple[Library, ...]
    checks: tuple[Check, ...]
    second_moment: SecondMoment | None
    noise_quantiles: tuple[NoiseQuantile, ...]


_WORDED = ("claim", "measurement", "tolerance", "power", "limits")


@part(
    "audit",
    Audit,
    Rule(
        FOR_THE_PUBLIC,
        {**{f"checks[].{name}": NULL for name in _WORDED}, "noise_quantiles": EMPTY},
    ),
)
def audit(source: RunSource, audience: str) -> Audit:
    """Return what the auditor found, as far as an audience may know it."""
    return Audit(
        auditor=tuple(findings.auditor(source)),
        checks=tuple(findings.checks(source, audience)),
        second_moment=_second_moment(source) if source.private else None,
        noise_quantiles=_noise_quantiles(source) if source.private and audience == INTERNAL else (),
    )


def _second_moment(source: RunSource) -> SecondMoment | None:
    """Return released block means beside the predicted noise shift; the clean ones stay private."""
    found = findings.details(source, "second-moment")
    blocks = []
    for raw in sequence(found.get("blocks"))[:100_000]:
        block = mapping(raw)
        predicted, released, half_width = (
            number(block.get(key)) for key in ("predicted", "released", "half_width")
        )
        if predicted is not None and released is not None and half_width is not None:
            blocks.append(
                Block(
                    name=clean(block.get("name"), 200),
                    size=integer(block.get("size")),
                    predicted=predicted,
                    released=released,
                    half_width=half_width,
                )
            )
    tau = integer(found.get("tau"))
    return SecondMoment(tau=tau, blocks=tuple(blocks)) if blocks else None


def _noise_quantiles(source: RunSource) -> tuple[NoiseQuantile, ...]:
    """Return where quantiles of the noise are accepted, and whether they were found there."""
    found = mapping(findings.details(source, "noise-scale").get("quantiles"))
    names = ("levels", "expected", "low", "high", "verdicts")
    rows = []
    for values in zip(*(sequence(found.get(name))[:200] for name in names), strict=False):
        level, expected, low, high = (number(value) for value in values[:4])
        if level is None or expected is None or low is None or high is None:
            return ()
        if values[4] not in get_args(Side):
            return ()
        rows.append(
            NoiseQuantile(level=level, expected=expected, low=low, high=high, verdict=values[4])
        )
    return tuple(rows)
