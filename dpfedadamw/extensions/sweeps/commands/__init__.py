"""The command line's sweeps: what is run, how it goes on, and what it says when it is over."""

from __future__ import annotations

import typer

from dpfedadamw.extensions.sweeps.commands import command, tables

app = typer.Typer(
    cls=command.SweepCommands,
    help="Run every combination of a spec's matrix: dpfedadamw sweep SPEC.\n\nIts options: "
    "dpfedadamw sweep run --help.",
    no_args_is_help=True,
)
app.command("run")(command.sweep_run)
app.command("merge")(tables.sweep_merge)
app.command("table")(tables.sweep_table)
