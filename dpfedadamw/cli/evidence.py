"""``evidence check``: whether ledger and evidence have the form that the auditor reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import EXIT_WRONG_INPUT, err, out, print_json


def evidence_check(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A run's folder, whoever wrote it.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Look for faults of form in a ledger and its evidence, one line each; reads only.

    For programs that write evidence of their own (docs/evidence.md). That all can be read is not
    that all is well: `dpfedadamw audit` judges it. Exit code 0 without a fault, else 2.
    """
    from audit.evidence import faults

    found = faults(run_dir)
    if as_json:
        print_json({"run_dir": str(run_dir), "faults": found})
    elif not found:
        out.print(Text("ledger and evidence can be read; dpfedadamw audit judges them"))
    else:
        for fault in found:
            err.print(Text(fault), soft_wrap=True)
    if found:
        raise typer.Exit(EXIT_WRONG_INPUT)
