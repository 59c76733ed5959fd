"""``predict``: what a finished model says of further records."""

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
            "x. Further columns are not looked at.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="CSV to write, for your eyes alone; it is printed if left out.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict: one line a record, with its label and the probability of each, in the rows' order.

    Columns are found by their names, and records prepared as those of the run were. The same rows
    in the same order have the answers that the run's own test had, bit for bit.
    """
    from dpfedadamw.api import predict as answered
    from dpfedadamw.models.own.permission import permission
    from dpfedadamw.rundir import holds_a_run
    from dpfedadamw.storage.disk import PRIVATE_MODE, write_atomically
    from reports.formatting import as_csv

    if output is not None and any(holds_a_run(one) for one in output.absolute().parents):
        refuse(f"--output {output}: lies in a run's folder, beside what was signed; name another")
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
