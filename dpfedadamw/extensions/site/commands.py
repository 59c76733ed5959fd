"""``site``: a static web page over a folder of runs, which everybody may have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import EXIT_WRONG_INPUT, err, out, print_json, relative, status


def site(
    runs: Annotated[Path, typer.Argument(metavar="RUNS", help="Folder that holds runs.")],
    target: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="Folder to write; an earlier site is replaced."),
    ],
    title: Annotated[
        str, typer.Option(metavar="TEXT", help="Title of the page.")
    ] = "Training runs",
    models: Annotated[
        bool,
        typer.Option(
            "--models", help="Also copy the models, so that each run can be verified by itself."
        ),
    ] = False,
    trainer_key: Annotated[
        Path | None,
        typer.Option(metavar="PUB", help="Accept trainers' signatures by this public key."),
    ] = None,
    auditor_key: Annotated[
        Path | None,
        typer.Option(metavar="PUB", help="Accept auditors' signatures by this public key."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a static web page over a folder of runs: a table that sorts and filters, and a figure.

    The page shows ε against accuracy, each run's public report, audit and signatures, and the
    budget spent on each data set. Nothing restricted or private is written: a reader of OUT learns
    only what public reports say. A run's public report is included if its signatures are valid and
    by keys known here; dpfedadamw report RUN_DIR --audience public writes one.
    """
    from reports.errors import ReportError
    from reports.extensions.site import folder
    from reports.extensions.site.reading import Keys

    with status("reading runs and checking signatures", quiet=as_json):
        try:
            keys = Keys(trainer_key, auditor_key)
            found = folder.write(runs, target, title=title, keys=keys, models=models)
        except ReportError as error:
            for line in str(error).splitlines():
                err.print(Text(f"error: {line}"), soft_wrap=True)
            raise typer.Exit(EXIT_WRONG_INPUT) from error
    page = target / folder.PAGE
    reports = sum(bool(run.files) for run in found.runs)
    if as_json:
        print_json({"page": str(page), "runs": len(found.runs), "reports": reports})
        return
    rows = [("page", str(relative(page.resolve()))), ("runs", str(len(found.runs)))]
    out.print(display.facts([*rows, ("with a public report", str(reports))]))
