"""One row of a sweep's table held against every other: differences, their intervals, verdicts.

A difference is paired: of each seed that both rows have, and then their mean with Student's
interval. Whether a difference is told apart from none is decided for all rows and columns of the
table together (Holm 1979), and only between runs that claim the same ε. Where the row does not win,
it is said how large a true lead would have had to be for these seeds to tell it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import optimize, stats

from dpfedadamw.extensions.sweeps.cross_table import (
    CrossTable,
    Entry,
    escaped,
    heading,
    in_symbols,
    piped,
)
from reports import paired
from reports.errors import ReportError

# Runs are at one ε within what `compare` takes for equal.
_EQUAL = 0.01
_FEWEST = 2
# How often a true difference is to be told apart before it counts as one that would be seen.
_POWER = 0.8
# Quantiles of a scatter that its power is averaged over: to a thousandth of the factor below.
_QUANTILES = 2000


@dataclass(frozen=True)
class Difference:
    """What the row in question has more than another.

    Attributes:
        mean: Mean over common seeds, in units of the measure.
        low, high: Interval of the mean at 95 %; None for fewer than two common seeds.
        seeds: How many seeds both have.
        verdict: "wins", "ties" or "loses"; "other ε" where the claims differ.
        detectable: The true difference, of any sign, that as many seeds that scatter as these do
            tell apart four times in five, among as many comparisons; None for fewer than two
            common seeds, and where nothing is judged.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    verdict: str
    detectable: float | None


@dataclass(frozen=True)
class DifferenceTable:
    """Differences of one row to the others.

    Attributes:
        table: The table that they are of.
        row: The row in question.
        differences: By the other row and the column.
        family: How many comparisons are corrected together.
    """

    table: CrossTable
    row: str
    differences: dict[tuple[str, str], Difference]
    family: int

    def counts(self) -> dict[str, int]:
        """How often each verdict was given."""
        verdicts = [each.verdict for each in self.differences.values()]
        return {name: verdicts.count(name) for name in ("wins", "ties", "loses", "other ε")}

    def notes(self) -> list[str]:
        """What has to be said under the table, a sentence each."""
        counts = ", ".join(f"{name} {many}" for name, many in self.counts().items() if many)
        seeds = {each.seeds for each in self.differences.values()}
        count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        unit = ", in points" if _is_share(self.table) else ""
        found = [
            f"The row at the head of the table minus each other row{unit}: mean over {count} "
            "common seeds, and Student's interval of that mean alone at 95 %.",
            "It wins or loses where a paired t-test distinguishes the two, "
            f"{paired.PERCENT} for all rows and columns together (Holm's correction). Otherwise it "
            "ties: these seeds do not decide, which does not mean that the two are equal.",
            f"In all: {counts}. {self.family} comparisons are corrected together.",
        ]
        found += self._left_open()
        if self.counts()["other ε"]:
            found.append(
                "Other ε: the two claims differ by more than 1 %, or one row has none, so they are "
                "not judged."
            )
        left_out = [f"Left out: {many} ({why})." for why, many in self.table.left_out.items()]
        return [*found, *self.table.remarks, *left_out]

    def _left_open(self) -> list[str]:
        """What true difference would have been told, where the row does not win."""
        each = self.differences.values()
        seen = [one.detectable for one in each if one.verdict != "wins" and one.detectable]
        if not seen:
            return []
        scale, digits = _scale(self.table)
        low, high = (f"{scale * value:.{digits}f}" for value in (min(seen), max(seen)))
        size = low if low == high else f"{low} to {high}"
        unit = " points" if _is_share(self.table) else ""
        return [
            "Where it does not win, seeds with this spread would have shown a true lead of "
            f"{size}{unit} (it depends on the row) four times in five."
        ]


def against(table: CrossTable, row: str) -> DifferenceTable:
    """Hold a row against every other.

    Args:
        table: The table.
        row: The row's name.

    Raises:
        ReportError: No row has that name, it is the only one, or it shares no seed with another.
    """
    if row not in table.rows:
        raise ReportError(f"{row}: no such row; rows are {', '.join(table.rows)}")
    if len(table.rows) == 1:
        raise ReportError(f"{row}: is the only row, so there is nothing to compare it with")
    sign = -1.0 if not _is_share(table) else 1.0
    pairs = {
        (other, column): (own, entry)
        for (other, column), entry in table.entries.items()
        if other != row and (own := table.entries.get((row, column))) is not None
    }
    each_of = {
        where: each
        for where, (own, entry) in pairs.items()
        if (each := paired.differences(own.values, entry.values))
    }
    if not each_of:
        raise ReportError(f"{row}: has no seed of a column in common with another row")
    chances = {
        where: paired.chance(each) for where, each in each_of.items() if _same_loss(*pairs[where])
    }
    apart = paired.holm(chances)
    found: dict[tuple[str, str], Difference] = {}
    for where, each in each_of.items():
        mean = statistics.fmean(each)
        verdict = "ties"
        if where not in chances:
            verdict = "other ε"
        elif where in apart:
            verdict = "wins" if sign * mean > 0 else "loses"
        low, high = paired.interval(each) or (None, None)
        seen = _detectable(each, len(chances)) if where in chances else None
        found[where] = Difference(mean, low, high, len(each), verdict, seen)
    return DifferenceTable(table, row, found, len(chances))


def _detectable(each: list[float], comparisons: int) -> float | None:
    """The true mean that Holm's first level of so many tells from 0 with a power of 80 %."""
    if len(each) < _FEWEST:
        return None
    return statistics.stdev(each) * _deviations(len(each), paired.LEVEL / comparisons)


@cache
def _deviations(seeds: int, level: float) -> float:
    """That mean in standard deviations of a difference, for a two-sided paired t-test.

    The power is a normal one averaged over the law of the scatter that is measured: SciPy's
    noncentral t is not to be relied on where a few seeds meet a strict level.
    """
    degrees = seeds - 1
    limit = stats.t.ppf(1 - level / 2, degrees)
    quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    needed = limit * np.sqrt(stats.chi2.ppf(quantiles, degrees) / degrees)

    def missing(mean: float) -> float:
        shift = mean * seeds**0.5
        told = stats.norm.sf(needed - shift) + stats.norm.cdf(-needed - shift)
        return float(told.mean()) - _POWER

    return float(optimize.brentq(missing, 0.0, 2.0 * limit))


def _same_loss(one: Entry, other: Entry) -> bool:
    """Whether all runs of both claim one ε, or none does."""
    both = [*one.epsilons, *other.epsilons]
    if not both:
        return True
    return bool(one.epsilons and other.epsilons) and max(both) <= (1 + _EQUAL) * min(both)


def _is_share(table: CrossTable) -> bool:
    return table.measure.endswith("accuracy")


def _scale(table: CrossTable) -> tuple[float, int]:
    """The factor to what is printed, and its digits: an accuracy is in points."""
    return (100.0, 1) if _is_share(table) else (1.0, 3)


def as_markdown(found: DifferenceTable) -> str:
    """The table as Markdown, with its notes."""
    table = found.table
    head = [f"{found.row} against", *(heading(table, column) for column in table.columns)]
    lines = ["| " + " | ".join(map(piped, head)) + " |", "|---" * len(head) + "|"]
    for row in _others(found):
        cells = [_cell(found, row, column, lambda text: f"**{text}**") for column in table.columns]
        lines.append("| " + " | ".join(map(piped, [row, *cells])) + " |")
    return "\n".join([*lines, "", *found.notes()]) + "\n"


def as_latex(found: DifferenceTable) -> str:
    """The table as LaTeX (booktabs), with its notes as a comment."""
    table = found.table
    head = [f"{found.row} against", *(heading(table, column) for column in table.columns)]
    lines = [f"% {note}" for note in found.notes()]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines += [" & ".join(map(escaped, head)) + r" \\", r"\midrule"]
    for row in _others(found):
        cells = [
            _cell(found, row, column, lambda text: rf"\textbf{{{text}}}")
            for column in table.columns
        ]
        lines.append(" & ".join([escaped(row), *cells]) + r" \\")
    return in_symbols("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n")


def _others(found: DifferenceTable) -> list[str]:
    return [row for row in found.table.rows if row != found.row]


def _cell(found: DifferenceTable, row: str, column: str, bold: Callable[[str], str]) -> str:
    one = found.differences.get((row, column))
    if one is None:
        return "–"
    scale, digits = _scale(found.table)
    text = f"{scale * one.mean:+.{digits}f}"
    if one.low is not None and one.high is not None:
        text += f" [{scale * one.low:+.{digits}f}, {scale * one.high:+.{digits}f}]"
    return f"{text} {bold(one.verdict) if one.verdict in ('wins', 'loses') else one.verdict}"
