"""``sign``, and how signatures and keys look in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import (
    RUNS,
    AuditorKeyOption,
    JsonOption,
    OutOption,
    Role,
    RunArgument,
    TimestampOption,
    TrainerKeyOption,
)
from dpfedadamw.cli.terminal import (
    EXIT_NOT_PASSED,
    EXIT_SIGNER_UNKNOWN,
    err,
    find_run,
    out,
    print_json,
    refuse,
    relative,
    status,
)

if TYPE_CHECKING:
    from reports.signatures.verification import VerificationResult


def sign(
    run_dir: RunArgument = None,
    out_dir: OutOption = RUNS,
    role: Annotated[
        Role | None, typer.Option(help="Sign in this role only; in both if left out.")
    ] = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    model_signing: Annotated[
        bool,
        typer.Option(
            "--model-signing",
            help="Write model.sig too: the trainer's OpenSSF signature over the model alone.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Sign a run anew: with another key, with a timestamp, or with the model's own signature.

    Nothing is judged or reported anew: the trainer signs what was trained, the auditor what was
    found, and neither what was changed since it was signed. Without --role, a signature by a key
    that is not yours is not replaced. Either all of it is written or, if a key or an authority
    fails, nothing.
    """
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.earlier import refuse_changed
    from reports.signatures import copies, signing
    from reports.signatures.keys import ROLES

    if model_signing and role is Role.auditor:
        refuse("--model-signing: the trainer signs the model; leave out --role auditor")
    run = find_run(run_dir, out_dir)
    for name, given in zip(ROLES, (trainer_key, auditor_key), strict=True):
        if role is None and given is None:
            after_training.refuse_foreign(run, name)
    trainer = (
        after_training.load_key("trainer", trainer_key, []) if role is not Role.auditor else None
    )
    auditor = (
        after_training.load_key("auditor", auditor_key, []) if role is not Role.trainer else None
    )
    with after_training.writing(run), status("signing", quiet=as_json):
        signed = after_training.is_attested(run), after_training.is_signed(run)
        for key, superseded in zip((trainer, auditor), signed, strict=True):
            if key is not None and superseded:
                refuse_changed(run, key, by_anybody=True)
        bundle = after_training.model_bundle(run, trainer) if model_signing and trainer else None
        authority = after_training.authority(timestamp)
        written = signing.sign(run.path, trainer, auditor, authority, bundle)
    keys = [key for key in (trainer, auditor) if key is not None]
    if as_json:
        print_json(
            {
                "signed": [
                    {"role": key.role, "fingerprint": key.fingerprint, "envelope": str(path)}
                    for key, path in zip(keys, written, strict=True)
                ]
            }
        )
        return
    out.print(display.facts([(key.role, key.fingerprint) for key in keys]))
    if auditor is None:
        folder = relative(run.path)
        following = f"audit {folder} --write"
        if copies.is_erased(run.path):
            # Without evidence nothing is judged again.
            following = f"sign {folder} --role auditor"
        err.print(
            Text(
                f"attestation.json covers what changed, so the auditor signs next: "
                f"dpfedadamw {following}",
                style="yellow",
            ),
            soft_wrap=True,
        )


def verification(result: VerificationResult) -> RenderableType:
    """What a check of signatures found: problems, who signed what, and how far that reaches."""
    from reports.content.assurance import LEVELS

    problems = [
        Padding(Text.assemble(("does not hold  ", "bold red"), str(problem)), (0, 0, 0, 2))
        for problem in result.problems
    ]
    signed = Table.grid(padding=(0, 2, 0, 0))
    signed.add_column(style="dim", no_wrap=True)
    signed.add_column(overflow="fold")
    for role, key in dict.fromkeys((entry.role, entry.fingerprint) for entry in result.signers):
        theirs = [e for e in result.signers if (e.role, e.fingerprint) == (role, key)]
        source = (
            "trusted by the key you gave"
            if theirs[0].pinned
            else "your own key"
            if theirs[0].own
            else "unknown key"
            if role == "signer"
            else "key from the run itself"
        )
        files = ", ".join(entry.envelope for entry in theirs)
        signed.add_row(role, Text.assemble(key, "\n", (f"{source}: {files}", "dim")))
    told = Table.grid(padding=(0, 1, 0, 0))
    if result.level is not None:
        level = LEVELS[result.level]
        told.add_row(
            "·", Text.assemble(display.level_text(result.level), f". {level.means} {level.next}")
        )
    for statement in result.statements:
        told.add_row("·", Text(statement))
    return Group(
        *problems,
        Padding(signed, (1, 0, 1, 2) if result.signers else 0),
        Padding(told, (0, 0, 1, 2)),
    )


def exit_by(result: VerificationResult, quiet: bool) -> None:
    """Print what a check comes to, unless a machine reads, and end with its exit code."""
    from reports.signatures.verification import Outcome

    style, code = {
        Outcome.ALL_HOLD: ("bold green", 0),
        Outcome.SIGNER_UNKNOWN: ("bold black on yellow", EXIT_SIGNER_UNKNOWN),
        Outcome.NOT_VALID: ("bold white on red", EXIT_NOT_PASSED),
    }[result.outcome]
    if not quiet:
        out.print(Text(result.outcome.value, style=style))
    if code:
        raise typer.Exit(code)
