"""The table of a paper from a sweep's tidy data: rows by columns, mean ± sd.

The largest mean of a column is marked and not judged: which rows differ is for `differences` to
say, in one family of comparisons. Runs that no audit passed, or whose signatures do not hold, are
left out and counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from audit.protection import WHY, WORDS, protects_nothing
from reports.errors import ReportError
from reports.run_rows import (
    CELL,
    DEVIATION,
    EXPECTED,
    PASSED,
    READINGS,
    SEARCH_SEEDS,
    SEED,
    SELECTED,
    SOURCE,
    TRIAL,
    Row,
    Value,
    against_majority,
)

# Digits of a printed number behind the point: of a loss, and of an accuracy in percent.
_PRINTED = (3, 2)
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One cell of the table.

    Attributes:
        values: The measure by seed.
        epsilons: The different claimed ε of its runs, rising.
        printed: What a paper prints for it, and the printed deviation; each None where it does not.
        majority_rates: The different accuracies of always giving the most frequent answer.
    """

    values: dict[Value, float]
    epsilons: tuple[float, ...]
    printed: tuple[float | None, float | None] = (None, None)
    majority_rates: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over seeds; None for fewer than two."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None


@dataclass(frozen=True)
class CrossTable:
    """A table.

    Attributes:
        measure: What is shown.
        row_axis: What the rows differ in.
        column_axis: What the columns differ in; empty for one column.
        rows: Names of the rows, in the order of the data.
        columns: Names of the columns.
        entries: What was measured, by row and column.
        left_out: Runs that do not count, by reason.
        remarks: What has to be said of how the runs' settings were chosen, a sentence each.
        source: Which paper's table the printed numbers are of; empty where there are none.
        readings: Fields whose values the paper does not state.
    """

    measure: str
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    entries: dict[tuple[str, str], Entry]
    left_out: dict[str, int]
    remarks: tuple[str, ...] = ()
    source: str = ""
    readings: str = ""

    def notes(self) -> list[str]:
        """What has to be said under the table, a sentence each."""
        seeds = {len(entry.values) for entry in self.entries.values()}
        count = f"{min(seeds)}" if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        # A single run has no spread.
        found = [f"Mean ± sample standard deviation over {count} seeds."]
        if seeds == {1}:
            found = ["One run each: the spread over seeds is unknown, so no best is marked."]
        else:
            found.append("Bold: the best mean of its column. --against ROW tests differences.")
        if any(entry.epsilons for entry in self.entries.values()):
            found.append(
                "ε is the worst case against the server (record level) or against a third party "
                "(client level). δ is a column of results.csv."
            )
        if high := self._unprotected():
            found.append(f"{WORDS['anyone']}: {high}. {WHY}")
        if self.measure == "test_accuracy":
            found += against_majority(
                (f"{row} in column {column}" if column else row, entry.mean, entry.majority_rates)
                for (row, column), entry in self.entries.items()
                if entry.majority_rates
            )
        found += self.remarks
        if any(entry.printed[0] is not None for entry in self.entries.values()):
            found.append(f"In brackets, what is printed: {self.source}.")
        if self.readings:
            found.append(f"Values that the paper does not state are ours: {self.readings}.")
        found += [f"Left out: {count} ({why})." for why, count in self.left_out.items()]
        return found

    def _unprotected(self) -> str:
        """The cells whose ε protects nobody, by column, each with its largest."""
        high: dict[str, list[str]] = {}
        for (row, column), entry in self.entries.items():
            if entry.epsilons and protects_nothing(entry.epsilons[-1]):
                high.setdefault(column, []).append(f"{row} (ε {entry.epsilons[-1]:.3g})")
        return "; ".join(
            f"{column}: {', '.join(cells)}" if column else ", ".join(cells)
            for column, cells in high.items()
        )


def tabulate(
    rows: Sequence[Row], row_axis: str, column_axis: str | None, measure: str = "test_accuracy"
) -> CrossTable:
    """Make the table.

    Args:
        rows: Tidy rows.
        row_axis: The column of the data whose values name the table's rows.
        column_axis: The column whose values name its columns, or None.
        measure: The column that is shown, of `run_rows.MEASURES`. Of an accuracy more is better.

    Raises:
        ReportError: An axis or measure is unknown, nothing is left to show, or the data vary in an
            axis that the table has not.
    """
    if not rows:
        raise ReportError("there is nothing to show: the results have no rows")
    known = list(dict.fromkeys(name for row in rows for name in row))
    for name in (row_axis, *([column_axis] if column_axis else ()), measure):
        if name not in known:
            raise ReportError(
                f"{name}: the results have no such column; they have {', '.join(known)}"
            )
    left_out: dict[str, int] = {}
    remarks: dict[str, None] = {}
    groups: dict[tuple[str, str], dict[Value, float]] = {}
    printed: dict[tuple[str, str], tuple[float | None, float | None]] = {}
    sources: dict[str, None] = {}
    readings: dict[str, None] = {}
    losses: dict[tuple[str, str], set[float]] = {}
    majority: dict[tuple[str, str], set[float]] = {}
    cells: dict[tuple[str, str, Value], Value] = {}
    edges: dict[tuple[str, Value], dict[str, None]] = {}
    for row in rows:
        value, why = row.get(measure), _objection(row)
        if why is None and not isinstance(value, int | float):
            why = f"no {measure}"
        if why is not None:
            left_out[why] = left_out.get(why, 0) + 1
            continue
        assert isinstance(value, int | float)
        where = str(row[row_axis]), str(row[column_axis]) if column_axis else ""
        again = cells.setdefault((*where, row.get(SEED)), row.get(CELL))
        if again != row.get(CELL):
            raise ReportError(
                f"{' and '.join(filter(None, where))}: several runs of seed {row.get(SEED)}; the "
                "results vary in more than rows and columns: choose with --where AXIS=VALUE"
            )
        groups.setdefault(where, {})[row.get(SEED)] = float(value)
        remarks |= dict.fromkeys(_remarks(row, measure))
        if row.get("on_the_grids_edge"):
            edges.setdefault((where[1], row["on_the_grids_edge"]), {})[where[0]] = None
        printed[where] = (
            _number(row.get(f"{EXPECTED}{measure}")),
            _number(row.get(f"{EXPECTED}{measure}{DEVIATION}")),
        )
        sources |= dict.fromkeys([str(row[SOURCE])] if row.get(SOURCE) else [])
        readings |= dict.fromkeys([str(row[READINGS])] if row.get(READINGS) else [])
        epsilon = row.get("epsilon_server_worst_case")
        epsilon = row.get("epsilon_third_party") if epsilon is None else epsilon
        if isinstance(epsilon, int | float):
            losses.setdefault(where, set()).add(float(epsilon))
        if (rate := _number(row.get("test_majority_rate"))) is not None:
            majority.setdefault(where, set()).add(rate)
    if not groups:
        raise ReportError(f"there is nothing to show: {_told(left_out)}")
    remarks |= dict.fromkeys(
        f"Warning: the best of {'; '.join(names)}{f' in column {column}' if column else ''} is at "
        f"the edge of its grid ({edge}); there may be a better one beyond."
        for (column, edge), names in edges.items()
    )
    entries = {
        where: Entry(
            values,
            tuple(sorted(losses.get(where, ()))),
            printed[where],
            tuple(majority.get(where, ())),
        )
        for where, values in groups.items()
    }
    columns = tuple(dict.fromkeys(column for _, column in entries))
    names = tuple(dict.fromkeys(row for row, _ in entries))
    return CrossTable(
        measure, row_axis, column_axis or "", names, columns, entries, left_out, tuple(remarks),
        "; ".join(sources), "; ".join(readings),
    )  # fmt: skip


def _remarks(row: Row, measure: str) -> list[str]:
    """What has to be said of how a row's settings were chosen."""
    if not row.get("tune"):
        return []
    score, found = row.get("tune_score"), []
    many = row.get("candidates")
    of = "several" if many is None else str(many)
    if row.get("tune") != "private":
        found.append(f"Each is the best of {of} candidates by {score}.")
    if row.get(SEARCH_SEEDS):
        found.append(
            f"The search used separate seeds ({row[SEARCH_SEEDS]}); none of its trials is shown."
        )
    if score == measure and row.get("tune") == "unaccounted":
        found.append(
            f"Picked by {measure}, the measure shown here, so the best of several looks better "
            "than it would on new records."
        )
    if row.get("tune") == "unaccounted" and row.get("unit") != "none":
        found.append(
            "Hyper-parameters were chosen using the private records, and no ε covers that choice."
        )
    return found


def _objection(row: Row) -> str | None:
    if row.get("audit") not in PASSED:
        return f"audit: {row.get('audit')}"
    if row.get("signatures") != "holds":
        return f"signatures: {row.get('signatures')}"
    if row.get("selected") == TRIAL:
        return "trials of a search, whose best is run again"
    if row.get("tune") not in (None, "private") and row.get("selected") != SELECTED:
        return "candidates that were not the best, or of an unfinished search"
    return None


def _number(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _told(left_out: dict[str, int]) -> str:
    return ", ".join(f"{count} ({why})" for why, count in left_out.items())


def _is_best(table: CrossTable, row: str, column: str) -> bool:
    """Whether a row has the best mean of its column, among several of which it has repetitions."""
    means = {name: entry.mean for (name, other), entry in table.entries.items() if other == column}
    best = (max if table.measure.endswith("accuracy") else min)(means.values())
    return len(means) > 1 and len(table.entries[row, column].values) > 1 and means[row] == best


def as_markdown(table: CrossTable) -> str:
    """The table as Markdown, with its notes."""
    head = [table.row_axis, *(heading(table, column) for column in table.columns)]
    lines = ["| " + " | ".join(map(piped, head)) + " |", "|---" * len(head) + "|"]
    for row in table.rows:
        cells = [_cell(table, row, column, lambda text: f"**{text}**") for column in table.columns]
        lines.append("| " + " | ".join(map(piped, [row, *cells])) + " |")
    return "\n".join([*lines, "", *table.notes()]) + "\n"


def as_latex(table: CrossTable) -> str:
    """The table as LaTeX (booktabs), with its notes as a comment."""

    def bold(text: str) -> str:
        return rf"\textbf{{{text}}}"

    head = [table.row_axis, *(heading(table, column) for column in table.columns)]
    lines = [f"% {note}" for note in table.notes()]
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines += [" & ".join(map(escaped, head)) + r" \\", r"\midrule"]
    for row in table.rows:
        cells = [_cell(table, row, column, bold, escaped) for column in table.columns]
        lines.append(" & ".join([escaped(row), *cells]) + r" \\")
    return in_symbols("\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n")


def in_symbols(text: str) -> str:
    """LaTeX with commands for the signs that not every font of it has."""
    signs = {"±": r"$\pm$", "ε": r"$\varepsilon$", "σ": r"$\sigma$"}
    for sign, command in signs.items():
        text = text.replace(sign, command)
    return text


def heading(table: CrossTable, column: str) -> str:
    """A column's name, with the ε that all its runs claim within 1 %."""
    if not column:
        return table.measure
    found = [
        value
        for (_, other), entry in table.entries.items()
        for value in entry.epsilons
        if other == column
    ]
    if not found:
        return column
    low, high = f"{min(found):.3g}", f"{max(found):.3g}"
    return f"{column} (ε {low})" if low == high else f"{column} (ε {low} to {high})"


def _cell(
    table: CrossTable,
    row: str,
    column: str,
    bold: Callable[[str], str],
    escaped: Callable[[str], str] = str,
) -> str:
    entry = table.entries.get((row, column))
    if entry is None:
        return "–"
    share = table.measure.endswith("accuracy")
    scale, digits = (100.0, 1) if share else (1.0, 3)
    text = f"{scale * entry.mean:.{digits}f}"
    if entry.deviation is not None:
        text += f" ± {scale * entry.deviation:.{digits}f}"
    text = escaped(text)
    if _is_best(table, row, column):
        text = bold(text)
    value, deviation = entry.printed
    if value is None:
        return text
    beside = "" if deviation is None else f" ± {scale * deviation:.{_PRINTED[share]}f}"
    return f"{text} [{scale * value:.{_PRINTED[share]}f}{beside}]"


def piped(text: str) -> str:
    """A text for a cell of a Markdown table."""
    return text.replace("|", r"\|")


def escaped(text: str) -> str:
    """A text for LaTeX."""
    return "".join(_LATEX.get(character, character) for character in text)
