"""``model``: how a model is trained record by record, before a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import JsonOption, SetOption, SpecArgument
from dpfedadamw.cli.terminal import EXIT_WRONG_INPUT, out, print_json, status, stop


@may_run_named_code
def model_check(
    spec: SpecArgument,
    changes: SetOption = None,
    engine: Annotated[
        str,
        typer.Option(help="Clipped-sum engine: auto, book-keeping, opacus, vmap or loop."),
    ] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Show a model's layers: which have book-keeping, what is changed, what is refused and why.

    Nothing is trained. The model is run on made-up records, and the cost of a clipped sum is
    measured against a plain gradient. Exit code 2 where a run of the spec would be refused.
    """
    from dpfedadamw import spec as specs

    wanted = specs.load(spec, changes or ())
    from dpfedadamw.run.model_check import check_model

    with status("looking through the model", quiet=as_json):
        found = check_model(wanted, engine)
    if as_json:
        print_json({**asdict(found), "ratio": found.ratio})
    else:
        out.print(display.model_check(found))
    if found.refused is not None:
        stop(f"error: {found.refused}", EXIT_WRONG_INPUT)


app = typer.Typer(
    help="Show how a model is trained record by record, before a run.", no_args_is_help=True
)
app.command("check")(model_check)
