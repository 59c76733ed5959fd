"""``bundle``, ``sign-off`` and ``erase``: parts of a run that are shared, signed and destroyed."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dpfedadamw.cli import display, signatures
from dpfedadamw.cli.options import (
    RUNS,
    Audience,
    AuditorKeyOption,
    JsonOption,
    OutOption,
    RunArgument,
    TimestampOption,
)
from dpfedadamw.cli.terminal import ask, err, find_run, out, print_json, refuse, relative, status


class Recipient(StrEnum):
    """Who gets a copy."""

    public = "public"
    auditor = "auditor"
    archive = "archive"


_HOLDS = {
    Recipient.public: "it does not reveal who took part; anyone may have it",
    Recipient.archive: (
        "restricted: ledger and internal report reveal how often each client took part"
    ),
    Recipient.auditor: "private: it contains the evidence; give it to the auditor only",
}


def bundle(
    run_dir: RunArgument = None,
    out_dir: OutOption = RUNS,
    audience: Annotated[
        Recipient,
        typer.Option(
            help="public: model and public report; archive: all but the evidence; auditor: all.",
            show_default=False,
        ),
    ] = ...,  # type: ignore[assignment]  # typer's way to say that it must be given
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="The folder to make; RUN_DIR-AUDIENCE by default.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy exactly what a reader may have out of a run, into a folder that verifies by itself.

    --audience public needs the public report: dpfedadamw report RUN_DIR --audience public. The copy
    is verified like any run, and deleted if it is not valid. An existing folder is never
    overwritten.
    """
    from dpfedadamw.filing import after_training
    from reports.signatures import copies
    from reports.signatures.verification import Outcome, results, verify

    run = find_run(run_dir, out_dir)
    target = output or run.path.with_name(f"{run.identifier}-{audience.value}")
    with after_training.writing(run), status("copying and checking", quiet=as_json):
        names = copies.copy(run.path, audience.value, target)
        try:
            result = verify(target, memory=results.own_memory())
        except BaseException:
            # Nobody knows whether it holds.
            copies.discard(target)
            raise
    if result.outcome is Outcome.NOT_VALID:
        copies.discard(target)
        if not as_json:
            out.print(signatures.verification(result))
        refuse(f"error: {run.path}: does not verify, so no copy was kept; see dpfedadamw verify")
    if as_json:
        print_json(
            {
                "run": run.identifier,
                "audience": audience.value,
                "directory": str(target),
                "files": list(names),
                "outcome": result.outcome.value,
            }
        )
        return
    rows = [
        ("copy", str(relative(target.resolve()))),
        ("files", f"{len(names)}"),
        ("holds", result.outcome.value),
        ("check it", f"dpfedadamw verify {relative(target.resolve())}"),
    ]
    out.print(display.facts(rows))
    err.print(Text(_HOLDS[audience], style="dim" if audience is Recipient.public else "yellow"))


def sign_off(
    run_dir: RunArgument = None,
    out_dir: OutOption = RUNS,
    audience: Annotated[
        Audience | None,
        typer.Option(
            help="Which report is signed off: internal or public. If left out, the internal one "
            "where the folder has it."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The PDF to write; RUN_DIR-sign-off.pdf by default.",
        ),
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The decision, and its conditions."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Name and office of the person who decides.")
    ] = None,
    answers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="YAML with the answers that the spec's section report leaves open."
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="Private key of the person who decides: a PEM file, or a pkcs11: address.",
        ),
    ] = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an annex on which a person signs off the report, here or with another program.

    The report is certified and allows no change, so the annex is a separate file outside the run.
    It names the report by its digests, repeats its promise and the statements on the processing,
    and has boxes for open questions and the decision. Fill these in and sign with any program that
    signs PDF files, or give --decision, --name, --answers and --key. The run must verify:
    dpfedadamw verify, which also checks a signed annex.
    """
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.export import read_statements
    from dpfedadamw.rundir import RunDirectory
    from reports.files import Snapshot
    from reports.render import sign_off as annex
    from reports.signatures.verification import Outcome, results, verify
    from reports.signatures.verification.contents import is_public_alone

    if (decision is None) != (name is None):
        refuse("--decision and --name: give both, or neither")
    if key is not None and decision is None:
        refuse("--key: signs a decision; give --decision and --name too")
    if timestamp is not None and key is None:
        refuse("--timestamp: belongs to --key")
    # An officer may have the public files alone, of which no part says what the spec leaves open.
    alone = run_dir is not None and is_public_alone(Snapshot(run_dir))
    if alone and audience is Audience.internal:
        refuse(f"--audience internal: {run_dir} has the public report alone")
    if alone and answers is not None:
        refuse(f"--answers: {run_dir} has no spec.yaml to compare them with; leave it out")
    path = run_dir.resolve() if run_dir is not None and alone else find_run(run_dir, out_dir).path
    decided = None
    if decision is not None and name is not None:
        decided = annex.Decision(decision, name, f"{datetime.now(UTC):%Y-%m-%d}")
    answered = read_statements(RunDirectory(path), answers) if answers is not None else {}
    signer = after_training.load_key("auditor", key, []) if key is not None else None
    authority = after_training.authority(timestamp)
    target = output or path.with_name(f"{path.name}-sign-off.pdf")
    with status("checking and writing", quiet=as_json):
        result = verify(path, memory=results.own_memory())
        if result.outcome is not Outcome.NOT_VALID:
            annex.write(
                path,
                target,
                (audience or (Audience.public if alone else Audience.internal)).value,
                answers=answered,
                decision=decided,
                key=signer,
                authority=authority,
            )
    if result.outcome is Outcome.NOT_VALID:
        if not as_json:
            out.print(signatures.verification(result))
        refuse(f"error: {path}: does not verify, so no annex was written; see dpfedadamw verify")
    if as_json:
        print_json({"run": path.name, "file": str(target), "outcome": result.outcome.value})
        return
    what = "to be signed" if signer is None else "signed"
    rows = [(what, str(relative(target.resolve()))), ("the run holds", result.outcome.value)]
    out.print(display.facts(rows))
    signatures.tell_unknown(result)


def erase(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run's folder.")],
    reason: Annotated[
        str | None,
        typer.Option(
            help="Reason to record: who asked for it, or which retention period has ended. If not "
            "given: that the evidence is not needed any more."
        ),
    ] = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete a run's private evidence for good, and sign a record of it (erasure.json).

    The findings stay and the auditor signs them again, but nobody can audit the run afterwards. A
    run that does not verify (dpfedadamw verify) therefore keeps its evidence. The same command
    finishes an interrupted erasure. Files are deleted by the operating system; copies, backups and
    disk blocks are not wiped.
    """
    from dpfedadamw.filing import after_training, erasure
    from dpfedadamw.rundir import open_existing
    from reports.signatures import copies
    from reports.signatures.inventory import has_evidence

    run = open_existing(run_dir)
    key = after_training.load_key("auditor", auditor_key, [])
    authority = after_training.authority(timestamp)
    begun = copies.erased_at(run.path)
    if not yes and (begun is None or has_evidence(run.path)):
        ask(f"delete the evidence of {run.identifier} for good")
    with status("deleting and signing", quiet=as_json):
        erased = erasure.erase(run, key, reason, authority)
    when = copies.erased_at(run.path)
    if not erased:
        err.print(Text(f"erased already, on {begun}", style="dim"))
    if as_json:
        print_json({"run": run.identifier, "erased": when, "record": copies.ERASURE})
    elif erased:
        out.print(display.facts([("evidence", f"erased on {when}"), ("record", copies.ERASURE)]))
