"""The command line: every command of the project, and the only package that prints.

Exit codes: 0 good; 1 the audit says FAIL or NOT VERIFIED, training diverged, or a signature does
not hold; 2 what the user gave is wrong, or the machine could not do it (a full disk, no memory),
said in one line each; 3 nothing was changed since it was signed, but by whom is unknown; 70 a bug
of ours; 129, 130 and 143 stopped by SIGHUP, SIGINT and SIGTERM.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from dpfedadamw import __version__
from dpfedadamw.cli.commands import AllCommands, break_lines_of_help
from dpfedadamw.cli.endings import Stopped, ending_of, name_the_resume, signals, steady
from dpfedadamw.cli.terminal import (
    EXIT_INTERRUPTED,
    EXIT_WRONG_INPUT,
    answer,
    err,
    out,
    print_json,
)

app = typer.Typer(
    cls=AllCommands,
    help="Differentially private federated learning that can be believed.\n\n"
    "A YAML spec goes in; a trained model comes out, with a privacy ledger, an audit "
    "by a second program and a signed report.\n\nStart with: dpfedadamw run quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(shown: bool) -> None:
    if shown:
        out.print(f"dpfedadamw {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Differentially private federated learning that can be believed."""


@functools.cache
def _commands() -> AllCommands:
    """What `app` describes; typer re-reads every option's annotation at each call."""
    found = typer.main.get_command(app)
    assert isinstance(found, AllCommands)
    break_lines_of_help(found)
    return found


def every_command() -> AllCommands:
    """All commands, loaded, for code that describes or tests every one of them."""
    found = _commands()
    found.load_all()
    return found


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: runs a command, which always ends with one line and an exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with steady() as standard, signals():
            code = _run(given)
            failure = standard.failure()
            if failure is not None:
                text = f"error: standard output cannot be written ({failure.strerror})"
                err.print(Text(f"{text}; everything else is done and saved"), soft_wrap=True)
                code = max(code, EXIT_WRONG_INPUT)
    except Stopped as second:
        # Interrupted again while the first interruption was being reported.
        code = second.code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run a command, report what ended it, and return its exit code."""
    answer.given = False
    try:
        code = _commands()(arguments, prog_name="dpfedadamw", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except BaseException as error:
        name_the_resume(error, arguments)
        ending = ending_of(error)
        if ending.bug is not None and os.environ.get("DPFEDADAMW_DEBUG"):
            raise
    for line in ending.lines:
        err.print(Text(line), soft_wrap=True)
    if ending.lines and "--json" in arguments and not answer.given:
        print_json(ending.to_json())
    return ending.code
