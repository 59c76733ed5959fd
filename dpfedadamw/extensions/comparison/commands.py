"""``compare``: several runs side by side, ranked only where that means something."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import Audience, JsonOption
from dpfedadamw.cli.terminal import (
    EXIT_WRONG_INPUT,
    err,
    out,
    print_document,
    print_json,
    refuse,
    status,
)
from dpfedadamw.loading import loading

if TYPE_CHECKING:
    from reports.extensions.comparison import Comparison, Group


class TowardsName(StrEnum):
    """Against whom ε must agree at record level."""

    server = "server"
    third_party = "third-party"


class SortName(StrEnum):
    """By what the rows of a group are ordered."""

    rank = "rank"
    epsilon = "epsilon"
    bytes = "bytes"
    name = "name"


def compare(
    run_dirs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="Runs' folders.")],
    audience: Annotated[
        Audience,
        typer.Option(help="internal, or public, which does not reveal how often anyone took part."),
    ] = Audience.internal,
    towards: Annotated[
        TowardsName,
        typer.Option(
            help="Against whom ε must agree at record level: server (a client in every round) or "
            "third-party."
        ),
    ] = TowardsName.server,
    tolerance: Annotated[
        float,
        typer.Option(metavar="PERCENT", help="Largest difference of ε that counts as equal."),
    ] = 1.0,
    sort: Annotated[
        SortName, typer.Option(help="Order of a group's rows; ranks do not change.")
    ] = SortName.rank,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Draw the comparison: FILE.pdf, .svg or .png."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one line per spec.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX tables.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Set runs side by side: accuracy, ε, bytes, audit and signatures, ranked where comparable.

    Runs are ranked together only if unit, adjacency, δ, ε, its reader, data, partition, test set
    and randomness agree; otherwise the reason is printed. Runs of one spec count as repetitions:
    mean ± standard deviation. Runs without a passed audit or a valid signature are shown without a
    rank.
    """
    if sum((as_csv, as_markdown, as_latex, as_json)) > 1:
        refuse("--csv, --markdown, --latex, --json: give one of them")
    with loading("reports.extensions.comparison"):
        import reports.extensions.comparison as comparison
        from reports.errors import ReportError
        from reports.extensions.comparison import data, tables
        from reports.extensions.comparison.terms import Towards

    if output is not None:
        _check_output(output)
    machine = as_csv or as_markdown or as_latex or as_json
    with status("reading runs and checking signatures", quiet=machine):
        try:
            whom = Towards(towards.value)
            found = comparison.compare(run_dirs, audience.value, whom, tolerance / 100)
        except ReportError as error:
            _refuse_all(error)
    found = tables.sorted_by(found, sort.value)
    if output is not None:
        _draw(found, output, private=audience is Audience.internal)
    for wanted, write in (
        (as_csv, tables.as_csv),
        (as_markdown, tables.as_markdown),
        (as_latex, tables.as_latex),
    ):
        if wanted:
            print_document(write(found))
            return
    if as_json:
        print_json(data.as_dict(found))
        return
    for group in found.groups:
        out.print(_group(group))
    for text in tables.closing(found):
        out.print(Text(text, style="dim"))


def file_comparison(
    run_dirs: list[Path],
    folder: Path,
    audience: Audience,
    auditor_key: str | None,
    timestamp: str | None,
    as_json: bool,
) -> None:
    """Write the report on several runs, signed as the auditor, and say where it is."""
    import reports.extensions.comparison as comparison
    from dpfedadamw.filing import after_training
    from reports.errors import ReportError
    from reports.extensions.comparison import report as comparison_report

    with status("reading runs, checking signatures, writing the report", quiet=as_json):
        try:
            found = comparison.compare(run_dirs, audience.value)
            key = after_training.load_key("auditor", auditor_key, [])
            authority = after_training.authority(timestamp)
            files: dict[str, Path] = {}
            unstamped = after_training.stamped(
                lambda by: files.update(comparison_report.write(found, folder, key, by)), authority
            )
        except ReportError as error:
            _refuse_all(error)
    if unstamped is not None:
        refuse(f"error: {unstamped}; the comparison is signed, but without a timestamp")
    if as_json:
        print_json({kind: str(path) for kind, path in files.items()})
        return
    names = {"pdf": "report", "html": "web page", "json": "data", "signature": "signature"}
    out.print(display.facts([(name, str(files[kind])) for kind, name in names.items()]))


def _refuse_all(error: Exception) -> NoReturn:
    """Say each directory that cannot be compared in a line of its own."""
    for line in str(error).splitlines():
        err.print(Text(f"error: {line}"), soft_wrap=True)
    raise typer.Exit(EXIT_WRONG_INPUT)


def _check_output(output: Path) -> None:
    from reports.figures import FORMATS

    if output.suffix.lstrip(".") not in FORMATS:
        endings = ", ".join(f".{kind}" for kind in FORMATS)
        refuse(f"--output {output}: the name must end with one of {endings}")


def _draw(found: Comparison, output: Path, private: bool) -> None:
    from reports.extensions.comparison import figure
    from reports.files import write_atomic

    mode = 0o600 if private else 0o644
    write_atomic(output, figure.draw(found, output.suffix.lstrip(".")), mode)
    err.print(Text(f"figure: {output}", style="dim"), soft_wrap=True)


_WORDS = ("what", "privacy")
_SINGLE = ("rank", "accuracy, %", "runs")
_STATES = ("bytes up", "bytes down", "audit")
# So that names stay whole and nothing is cut off in 80 columns.
_NAME_WIDTH, _STATE_WIDTH = 14, 8


def _width_of(cells: Sequence[Sequence[str]], index: int) -> int:
    """The width of a column of states, in which no word is broken."""
    return max([_STATE_WIDTH, *(len(word) for row in cells for word in row[index].split())])


def _group(group: Group) -> RenderableType:
    """One group: what agrees in it, its rows, and what has to be said of them.

    A loss that is the same in all rows stands above them and leaves the columns their room.
    """
    from reports.extensions.comparison import tables

    columns, rows = tables.columns_of(group), tables.rows_of(group)
    cells = [row.cells for row in rows]
    first = columns.index("runs") + 1
    losses = range(first, columns.index("bytes up"))
    common = [index for index in losses if len({row[index] for row in cells}) == 1]
    head = f"{group.name}: {group.privacy}" if group.terms.private else f"{group.name}: "
    parts: list[RenderableType] = [
        Text.assemble(
            (head, "bold"),
            "" if group.terms.private else (group.privacy, "bold red"),
        ),
        Text(group.terms.heading, style="dim"),
    ]
    if group.terms.private and common:
        said = (f"{columns[index]} {cells[0][index]}" for index in common)
        parts.append(Text(", ".join(said), style="dim"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    shown = [index for index in range(len(columns)) if index not in common]
    for index in shown:
        words = columns[index] in _WORDS
        table.add_column(
            columns[index],
            overflow="fold",
            justify="left" if words or index >= len(columns) - 2 else "right",
            no_wrap=columns[index] in _SINGLE,
            min_width=_NAME_WIDTH if columns[index] == "what" else None,
            max_width=_width_of(cells, index) if columns[index] in _STATES else None,
        )
    for row in cells:
        table.add_row(
            *(
                display.verdict_text(row[index]) if columns[index] == "audit" else Text(row[index])
                for index in shown
            )
        )
    parts.append(table)
    parts += [Padding(Text(text), (0, 0, 0, 2)) for text in tables.said_of(group)]
    return Lines(*parts, Text())
