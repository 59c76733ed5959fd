"""``sign`` and ``verify``, and how a check of signatures looks in a terminal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from audit.untrusted.files import folder_of_gate
from dpfedadamw.cli import completion, display
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
    stop,
)
from dpfedadamw.loading import loading

if TYPE_CHECKING:
    from reports.signatures.verification import VerificationResult


def sign(
    run_dir: RunArgument = None,
    out_dir: OutOption = RUNS,
    role: Annotated[
        Role | None, typer.Option(help="Sign in this role only; in both by default.")
    ] = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    model_signing: Annotated[
        bool,
        typer.Option(
            "--model-signing",
            help="Also write model.sig: the trainer's OpenSSF signature over the model alone.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Sign a run again: with another key, with a timestamp, or with the model's own signature.

    The audit and the report are not repeated. The trainer signs what was trained and the auditor
    what was found; neither signs anything that has changed since it was signed. Without --role, a
    signature by a key that is not yours is not replaced. If a key or an authority fails, nothing is
    written.
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
            # Without evidence nothing can be audited again.
            following = f"sign {folder} --role auditor"
        err.print(
            Text(
                f"attestation.json covers what changed, so the auditor signs next: "
                f"dpfedadamw {following}",
                style="yellow",
            ),
            soft_wrap=True,
        )


def verify(
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR",
            help="A run's folder, a folder of its public files, a comparison's folder, a report's "
            "PDF, or a signed annex. The newest run by default.",
            autocompletion=completion.runs,
        ),
    ] = None,
    out_dir: OutOption = RUNS,
    trainer_key: Annotated[
        Path | None,
        typer.Option(
            metavar="PUB", help="The trainer's public key, received through another channel."
        ),
    ] = None,
    auditor_key: Annotated[
        Path | None,
        typer.Option(
            metavar="PUB", help="The auditor's public key, received through another channel."
        ),
    ] = None,
    revocations: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="List of revoked keys that you were given. Repeatable."),
    ] = None,
    tsa_root: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PEM", help="Certificate of a time-stamping authority you trust. Repeatable."
        ),
    ] = None,
    log_key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Public key of a transparency log you trust. Repeatable."
        ),
    ] = None,
    of: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR", help="For a signed-off annex: the run whose report it is about."
        ),
    ] = None,
    signer_key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PEM",
            help="For a signed-off annex: public key or certificate of a person who must have "
            "signed. Repeatable.",
        ),
    ] = None,
    no_memory: Annotated[
        bool,
        typer.Option(
            "--no-memory",
            help="Neither compare with states seen before nor remember this one: to check runs "
            "for others.",
        ),
    ] = False,
    require_level: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=4,
            help="For a run: exit code 1 if its PASS has a level of assurance below N of 4.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every signature, timestamp and hash of a run, of a comparison or an annex, offline.

    Given keys you trust, it proves who signed the files, even if the signer has since replaced a
    key. Keys in your own key folder count as yours. Keys revoked there or in the lists you give are
    refused. Your key folder remembers the latest valid state of each run, and an earlier state by
    the same signer is refused.

    The level says how hard it would have been to forge the run: 1 consistent, 2 re-executed,
    3 challenged, 4 independent (docs/detection.md). It is computed from files and signatures.

    Exit code 0: ALL HOLD. 1: NOT VALID; each invalid file is named. 3: INTACT, SIGNER UNKNOWN: the
    files are unchanged since they were signed, but the signer's key is known only from the run
    itself.
    """
    subject = run_dir if run_dir is not None else find_run(None, out_dir).path
    trusted = _Trusted(
        trainer_key=trainer_key,
        auditor_key=auditor_key,
        revocations=tuple(revocations or ()),
        tsa_roots=tuple(tsa_root or ()),
        log_keys=tuple(log_key or ()),
    )
    if subject.is_file():
        what, result = _check_pdf(
            subject, trusted, of, signer_key or [], not no_memory, require_level
        )
    else:
        if folder_of_gate(subject) is not None:
            refuse(f"{subject}: is a gate's folder; judge it with: dpfedadamw audit {subject}")
        if of is not None or signer_key:
            refuse("--of, --signer-key: belong to a signed-off annex, a PDF file")
        what, result = _check_folder(subject, trusted, not no_memory, require_level)
    if as_json:
        print_json(result.to_json())
    else:
        out.print(Text(what, style="bold"))
        out.print(verification(result))
    if require_level is not None and result.is_intact and (result.level or 0) < require_level:
        found = "no level" if result.level is None else f"level {result.level}"
        stop(
            f"error: {found} of 4 is established, and {require_level} is required", EXIT_NOT_PASSED
        )
    _exit_by(result, quiet=as_json)


@dataclass(frozen=True, kw_only=True)
class _Trusted:
    """Whom a reader trusts and whom not, according to the options of `verify`."""

    trainer_key: Path | None
    auditor_key: Path | None
    revocations: tuple[Path, ...]
    tsa_roots: tuple[Path, ...]
    log_keys: tuple[Path, ...]


def _check_pdf(
    path: Path,
    trusted: _Trusted,
    run_dir: Path | None,
    signer_keys: list[Path],
    remember: bool,
    require_level: int | None,
) -> tuple[str, VerificationResult]:
    """Check a report's PDF by itself, or the annex of a run; also returns what is checked."""
    from reports.render import sign_off as annex
    from reports.signatures.verification import verify_pages

    _refuse_level(require_level)
    auditor_key, tsa_roots = trusted.auditor_key, trusted.tsa_roots
    if run_dir is None and not signer_keys and not annex.is_annex(path):
        if trusted.trainer_key is not None:
            refuse("--trainer-key: a report's PDF is signed by the auditor alone; leave it out")
        result = verify_pages(path, auditor_key, trusted.revocations, tsa_roots)
        return f"pages {path.name}", result
    if trusted.trainer_key is not None or auditor_key is not None:
        refuse("an annex is signed by the person who decides: give --signer-key")
    result = annex.check(path, run_dir, signer_keys, tsa_roots, trusted.revocations)
    if run_dir is not None:
        result = _with_run(result, run_dir, trusted, remember)
    return f"annex {path.name}", result


def _with_run(
    result: VerificationResult, run_dir: Path, trusted: _Trusted, remember: bool
) -> VerificationResult:
    """Return what is found of an annex, and what does not hold of the run that it is about."""
    from reports.signatures.verification import results
    from reports.signatures.verification import verify as verify_run

    # No option gives the keys of the run's own signers here.
    run = verify_run(
        run_dir.resolve(),
        revocations=trusted.revocations,
        tsa_roots=trusted.tsa_roots,
        memory=results.own_memory() if remember else None,
    )
    said = f"The run in {run_dir.name} by itself: {run.outcome.value}"
    known = ". Its keys are checked by dpfedadamw verify with the run's folder."
    return replace(
        result,
        problems=tuple(dict.fromkeys((*result.problems, *run.problems))),
        statements=(*result.statements, said + (known if run.is_intact else ".")),
    )


def _check_folder(
    folder: Path, trusted: _Trusted, remember: bool, require_level: int | None
) -> tuple[str, VerificationResult]:
    """Check a run, its public files alone, or a comparison; also returns what is checked."""
    from dpfedadamw.rundir import open_existing

    with loading("reports.signatures.verification"):
        from reports.files import Snapshot
        from reports.signatures import signing
        from reports.signatures.verification import results, verify_comparison
        from reports.signatures.verification import verify as verify_run
        from reports.signatures.verification.comparisons import is_comparison
        from reports.signatures.verification.contents import is_public_alone

    files = Snapshot(folder)
    if is_comparison(files):
        _refuse_level(require_level)
        if trusted.trainer_key is not None:
            refuse("--trainer-key: a comparison is signed by an auditor alone; leave it out")
        result = verify_comparison(
            folder, trusted.auditor_key, trusted.revocations, trusted.tsa_roots
        )
        return f"comparison {folder.resolve().name}", result
    public = is_public_alone(files)
    envelopes = (signing.RUN_ENVELOPE, signing.TRAINING_ENVELOPE, signing.PUBLIC_ENVELOPE)
    # Where something is signed, a missing file is something that does not hold.
    signed = public or any(map(files.holds, envelopes))
    path = folder.resolve() if signed else open_existing(folder).path
    result = verify_run(path, **vars(trusted), memory=results.own_memory() if remember else None)
    return f"{'public files in' if public else 'run'} {path.name}", result


def _refuse_level(require_level: int | None) -> None:
    if require_level is not None:
        refuse("--require-level: only a run has a level; give the run's folder")


def tell_unknown(result: VerificationResult) -> None:
    """Say on standard error that a run holds by keys that nobody here knows, where it does."""
    from reports.signatures.verification import Outcome

    if result.outcome is Outcome.SIGNER_UNKNOWN:
        err.print(
            Text(
                f"{Outcome.SIGNER_UNKNOWN}: the signer's key is known only from the run itself; "
                "check it with a key that you received another way: dpfedadamw verify",
                style="yellow",
            ),
            soft_wrap=True,
        )


_MOST_SHOWN = 200


def verification(result: VerificationResult) -> RenderableType:
    """What a check of signatures found: problems, who signed what, and the level of assurance."""
    from reports.content.assurance import LEVELS

    problems = [
        Padding(Text.assemble(("does not hold  ", "bold red"), str(problem)), (0, 0, 0, 2))
        for problem in result.problems[:_MOST_SHOWN]
    ]
    if (left := len(result.problems) - _MOST_SHOWN) > 0:
        problems.append(Padding(Text(f"and {left} more; --json has all"), (0, 0, 0, 2)))
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
    stated = Table.grid(padding=(0, 1, 0, 0))
    if result.level is not None:
        level = LEVELS[result.level]
        stated.add_row(
            "·", Text.assemble(display.level_text(result.level), f". {level.means} {level.next}")
        )
    for statement in result.statements:
        stated.add_row("·", Text(statement))
    return Group(
        *problems,
        Padding(signed, (1, 0, 1, 2) if result.signers else 0),
        Padding(stated, (0, 0, 1, 2)),
    )


def _exit_by(result: VerificationResult, quiet: bool) -> None:
    """Print the outcome of a check, unless --json was given, and end with its exit code."""
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
