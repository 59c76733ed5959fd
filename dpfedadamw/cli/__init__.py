"""The command line: every command of the project, and the only package that prints.

Exit codes: 0 good; 1 the audit says FAIL or NOT VERIFIED, or a signature does not hold; 2 what the
user gave is wrong, said in one line each.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.text import Text

from dpfedadamw import __version__
from dpfedadamw.cli import audit, budget, compare, export, keys, run, signatures, spec
from dpfedadamw.cli.terminal import EXIT_INTERNAL, EXIT_WRONG_INPUT, err, out
from dpfedadamw.errors import DpfedadamwError, SpecError

app = typer.Typer(
    help="Differentially private federated learning that can be believed.\n\n"
    "A YAML spec goes in; a trained model comes out, with a privacy ledger, an independent audit "
    "and a signed report.\n\nStart with: dpfedadamw run quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
spec_app = typer.Typer(help="Check, show and explain specs.", no_args_is_help=True)
keys_app = typer.Typer(help="Make, show, replace and revoke signing keys.", no_args_is_help=True)

for command in (
    run.run,
    audit.audit,
    audit.report,
    audit.verify,
    signatures.sign,
    compare.compare,
    export.export,
    budget.epsilon,
    budget.calibrate,
):
    app.command()(command)
app.command("list")(spec.list_)
app.add_typer(spec_app, name="spec")
spec_app.command("validate")(spec.spec_validate)
spec_app.command("show")(spec.spec_show)
spec_app.command("schema")(spec.spec_schema)
app.add_typer(keys_app, name="keys")
keys_app.command("new")(keys.keys_new)
keys_app.command("import")(keys.keys_import)
keys_app.command("show")(keys.keys_show)
keys_app.command("rotate")(keys.keys_rotate)
keys_app.command("revoke")(keys.keys_revoke)


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


def _user_errors() -> tuple[type[Exception], ...]:
    """The base errors of all packages; the auditor and reports load only if they were used."""
    kinds: list[type[Exception]] = [DpfedadamwError]
    if "audit.errors" in sys.modules:
        from audit.errors import AuditError

        kinds.append(AuditError)
    if "reports.errors" in sys.modules:
        from reports.errors import ReportError

        kinds.append(ReportError)
    return tuple(kinds)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: runs a command and turns every error of ours into one line and exit code 2."""
    try:
        app(arguments, prog_name="dpfedadamw")
    except SpecError as error:
        for problem in error.problems:
            err.print(Text(str(problem)), soft_wrap=True)
        sys.exit(EXIT_WRONG_INPUT)
    except Exception as error:
        if isinstance(error, _user_errors()):
            err.print(Text(f"error: {error}"), soft_wrap=True)
            sys.exit(EXIT_WRONG_INPUT)
        if os.environ.get("DPFEDADAMW_DEBUG"):
            raise
        err.print(
            Text(
                f"internal error: {type(error).__name__}: {error}\nThis is a bug of dpfedadamw; "
                "DPFEDADAMW_DEBUG=1 shows where. Please report it."
            ),
            soft_wrap=True,
        )
        sys.exit(EXIT_INTERNAL)
