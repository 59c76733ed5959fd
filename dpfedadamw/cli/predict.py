"""``predict``: a finished model's predictions for further records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfedadamw.cli import completion, display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import out, print_document, print_json, refuse, status


@may_run_named_code
def predict(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|EXPORT",
            help="A run's folder, or an exported model of dpfedadamw's own kinds.",
            autocompletion=completion.runs,
        ),
    ],
    rows: Annotated[
        Path,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Records: a table with the columns that the run read, or an .npz with the array "
            "x. Other columns are ignored.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="CSV file to write, readable by you alone; printed by default.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict one line per record, in row order: its label and the probability of each label.

    Columns are found by name, and records are prepared as in the run. The same rows in the same
    order give the same answers as the run's own test, bit for bit.
    """
    from dpfedadamw.api import predict as answered
    from dpfedadamw.models.own.permission import permission
    from dpfedadamw.rundir import holds_a_run
    from dpfedadamw.storage.disk import PRIVATE_MODE, write_atomically
    from reports.formatting import as_csv

    if output is not None and any(holds_a_run(one) for one in output.absolute().parents):
        refuse(f"--output {output}: is inside a signed run's folder; name another place")
    if output is not None and output.is_dir():
        refuse(f"--output {output}: is a folder; name a file")
    with status("predicting", quiet=as_json or output is None):
        found = answered(folder, rows, allow_code=permission().handed_on())
    columns, lines = found.table()
    if output is None and not as_json:
        print_document(as_csv([columns, *lines]))
        return
    if output is not None:
        write_atomically(output, as_csv([columns, *lines]).encode(), PRIVATE_MODE)
    if as_json:
        shown = {"records": len(found.outputs), "labels": list(found.labels), "columns": columns}
        more = {"output": str(output)} if output is not None else {"rows": list(lines)}
        print_json({**shown, **more})
        return
    out.print(display.facts([("predictions", str(output)), ("records", f"{len(found.outputs):,}")]))
