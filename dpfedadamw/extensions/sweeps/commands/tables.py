"""``sweep merge`` and ``sweep table``: the results of several machines, and the table of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli.terminal import err, print_document, refuse
from dpfedadamw.extensions.sweeps.alarms import shared_noise
from dpfedadamw.extensions.sweeps.commands.results import read_results


def sweep_merge(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Sweeps' folders, or results.csv.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.csv", help="The merged results.")
    ],
) -> None:
    """Merge the results of several machines; a cell that two of them ran counts once."""
    from reports import run_rows
    from reports.files import write_atomic

    if output.suffix != ".csv":
        refuse(f"--output {output}: the name must end with .csv")
    found: dict[Any, dict[str, Any]] = {}
    again = 0
    for folder in folders:
        for row in read_results(folder):
            again += row["cell"] in found
            found.setdefault(row["cell"], row)
    write_atomic(output, run_rows.as_csv(list(found.values())).encode(), 0o644)
    text = f"{output}: {len(found)} cells"
    if again:
        text += (
            f"; {again} that were run more than once are counted once, in the first folder named"
        )
    err.print(Text(text), soft_wrap=True)


def sweep_table(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="A sweep's folder, or its results.csv.")
    ],
    rows: Annotated[
        str,
        typer.Option(
            "--rows", metavar="COLUMN", help="Column of the results whose values become the rows."
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="COLUMN",
            help="Column of the results whose values become the columns.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Show only these runs; COLUMN!=VALUE shows all others. Numbers are compared as "
            "numbers; COLUMN= means no value. Repeatable.",
        ),
    ] = None,
    measure: Annotated[
        str, typer.Option(help="test_accuracy, test_loss, train_accuracy or train_loss.")
    ] = "test_accuracy",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="ROW", help="Compare this row with every other and show the differences."
        ),
    ] = None,
    as_latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX (booktabs).")] = False,
) -> None:
    """Print the table of a sweep: mean ± sd over seeds with ε, and the best mean in bold.

    If the sweep has numbers printed in a paper, they follow the measured ones in brackets.

    Runs whose audit did not pass are left out.

    With --against ROW, each other row shows how far ROW is ahead of it, with an interval, and
    whether ROW wins, ties or loses at equal ε. Paired t-tests over the seeds decide, with Holm's
    correction over all rows and columns.
    """
    from dpfedadamw.extensions.sweeps import cross_table, differences
    from reports import run_rows
    from reports.errors import ReportError

    if measure not in run_rows.MEASURES:
        refuse(f"--measure {measure}: must be one of {', '.join(run_rows.MEASURES)}")
    every = chosen = read_results(results)
    known = every[0] if every else {}
    for text in where or ():
        name, equals, value = text.partition("=")
        column = name.removesuffix("!")
        if not equals or column not in known:
            refuse(
                f"--where {text}: write COLUMN=VALUE or COLUMN!=VALUE, of a column of the results"
            )
        wanted, sought = column == name, _sought(text, value, [row[column] for row in every])
        chosen = [row for row in chosen if (row[column] == sought) is wanted]
        if not chosen:
            refuse(f"--where {text}: no run is left")
    try:
        table = cross_table.tabulate(chosen, rows, columns, measure)
        held = differences.against(table, against) if against is not None else None
    except ReportError as error:
        refuse(f"error: {error}")
    clustered = shared_noise(chosen)
    if clustered is not None:
        err.print(Text(f"alarms: {clustered}"), soft_wrap=True)
    if held is not None:
        print_document((differences.as_latex if as_latex else differences.as_markdown)(held))
        return
    print_document((cross_table.as_latex if as_latex else cross_table.as_markdown)(table))


def _sought(text: str, value: str, cells: list[Any]) -> Any:
    """What a condition's value is in a column: nothing, a number or a text."""
    if value == "":
        return None
    if not any(isinstance(cell, int | float) for cell in cells):
        return value
    try:
        return float(value)
    except ValueError:
        refuse(f"--where {text}: the column has numbers; write one, or nothing for runs without")
