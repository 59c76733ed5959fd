"""The command line's sweeps: what is run, how it goes on, and what it says when it is over."""

from __future__ import annotations

import typer

from dpfedadamw.extensions.sweeps.commands import command, tables


def add_to(app: typer.Typer) -> None:
    """Add the commands of sweeps to the command line."""
    sweep = typer.Typer(
        cls=command.SweepCommands,
        help="Run every combination of a spec's matrix: dpfedadamw sweep SPEC.\n\nIts options: "
        "dpfedadamw sweep run --help.",
        no_args_is_help=True,
    )
    app.add_typer(sweep, name="sweep")
    sweep.command("run")(command.sweep_run)
    sweep.command("merge")(tables.sweep_merge)
    sweep.command("table")(tables.sweep_table)
