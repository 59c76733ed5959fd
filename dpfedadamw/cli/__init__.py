"""The command line: every command of the project, and the only package that prints.

Exit codes: 0 good; 1 the audit says FAIL or NOT VERIFIED, training diverged, or a signature does
not hold; 2 what the user gave is wrong, or the machine could not do it (a full disk, no memory),
said in one line each; 3 nothing was changed since it was signed, but by whom is unknown; 70 a bug
of ours; 129, 130 and 143 stopped by SIGHUP, SIGINT and SIGTERM.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup

from dpfedadamw import __version__
from dpfedadamw.cli import (
    audit,
    budget,
    challenge,
    cost,
    evidence,
    export,
    handing_over,
    init,
    keys,
    model,
    predict,
    replay,
    run,
    signatures,
    spec,
)
from dpfedadamw.cli.endings import Passed, Stopped, ending_of, name_the_resume, signals
from dpfedadamw.cli.extensions import installed
from dpfedadamw.cli.streams import steady
from dpfedadamw.cli.terminal import (
    EXIT_INTERRUPTED,
    EXIT_WRONG_INPUT,
    answer,
    err,
    out,
    print_json,
)


class _Commands(TyperGroup):
    """All commands; whatever they raise reaches `main`.

    By itself typer says "Aborted." of a file that ends early (EOFError), ends in silence where it
    is interrupted, and with 1 where a pipe breaks.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            raise Passed from error


app = typer.Typer(
    cls=_Commands,
    help="Differentially private federated learning that can be believed.\n\n"
    "A YAML spec goes in; a trained model comes out, with a privacy ledger, an audit "
    "by a second program and a signed report.\n\nStart with: dpfedadamw run quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
spec_app = typer.Typer(help="Check, show and explain specs.", no_args_is_help=True)
budget_app = typer.Typer(help="Show what all runs on the same data spend.", no_args_is_help=True)
model_app = typer.Typer(
    help="What training by record makes of a model, before a run.", no_args_is_help=True
)
evidence_app = typer.Typer(help="Check evidence that another program wrote.", no_args_is_help=True)
keys_app = typer.Typer(help="Make, show, replace and revoke signing keys.", no_args_is_help=True)

challenge_app = typer.Typer(
    help="Let trainer and auditor fix a run's noise, and what is opened of it, so that neither can "
    "choose it.\n\nIn this order: intent (trainer), new (auditor), dpfedadamw run SPEC --challenge "
    "FILE --escrow FILE (trainer), draw (auditor), open (trainer).",
    no_args_is_help=True,
)

for command in (
    init.init,
    run.run,
    audit.audit,
    audit.canaries,
    replay.replay,
    audit.report,
    audit.verify,
    signatures.sign,
    export.export,
    predict.predict,
    handing_over.bundle,
    handing_over.erase,
    cost.epsilon,
    cost.calibrate,
):
    app.command()(command)
app.command("sign-off")(handing_over.sign_off)
app.command("list")(spec.list_)
app.add_typer(spec_app, name="spec")
spec_app.command("validate")(spec.spec_validate)
spec_app.command("show")(spec.spec_show)
spec_app.command("schema")(spec.spec_schema)
app.add_typer(budget_app, name="budget")
budget_app.command("show")(budget.budget_show)
app.add_typer(model_app, name="model")
model_app.command("check")(model.model_check)
app.add_typer(evidence_app, name="evidence")
evidence_app.command("check")(evidence.evidence_check)
evidence_app.command("close")(evidence.evidence_close)
evidence_app.command("merge")(evidence.evidence_merge)
app.add_typer(keys_app, name="keys")
app.add_typer(challenge_app, name="challenge")
challenge_app.command("intent")(challenge.challenge_intent)
challenge_app.command("new")(challenge.challenge_new)
challenge_app.command("draw")(challenge.challenge_draw)
challenge_app.command("open")(challenge.challenge_open)
keys_app.command("new")(keys.keys_new)
keys_app.command("import")(keys.keys_import)
keys_app.command("show")(keys.keys_show)
keys_app.command("rotate")(keys.keys_rotate)
keys_app.command("revoke")(keys.keys_revoke)
for extension in installed():
    extension.add_to(app)


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
def _commands() -> Any:
    """What `app` describes; typer reads every option's annotation anew each time it is called."""
    found = typer.main.get_command(app)
    _unwrap(found)
    return found


def _unwrap(command: Any) -> None:
    """Let a terminal break the lines of a command's help, and of all commands below it.

    Typer joins the lines of a docstring's first paragraph and leaves those of all others as they
    stand in the source, where they are longer than a terminal of 80 columns.
    """
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(
            # What is indented is set as it stands.
            part if "\n " in f"\n{part}" else part.replace("\n", " ")
            for part in paragraphs
        )
    for below in getattr(command, "commands", {}).values():
        _unwrap(below)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Entry point: runs a command; however it ends, that is a line and an exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        with steady() as standard, signals():
            code = _run(given)
            failure = standard.failure()
            if failure is not None:
                text = f"error: standard output cannot be written ({failure.strerror})"
                err.print(Text(f"{text}; all else is done and filed"), soft_wrap=True)
                code = max(code, EXIT_WRONG_INPUT)
    except Stopped as again:
        # Asked once more while the first was being told.
        code = again.code
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run a command, tell what ended it, and return its exit code."""
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
