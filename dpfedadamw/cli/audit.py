"""``audit``, ``report`` and ``verify``: what is said of a finished run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import completion, display, signatures
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import (
    RUNS,
    Audience,
    AuditorKeyOption,
    DeviceOption,
    JsonOption,
    OutOption,
    TimestampOption,
)
from dpfedadamw.cli.terminal import (
    EXIT_NOT_PASSED,
    err,
    exit_by,
    find_run,
    out,
    print_json,
    progress_bar,
    refuse,
    refuse_unstamped,
    status,
    stop,
)
from dpfedadamw.registration import extension

if TYPE_CHECKING:
    from audit.verdict import Findings
    from dpfedadamw.rundir import RunDirectory
    from reports.signatures.keyring import SigningKey
    from reports.signatures.timestamps import Authority
    from reports.signatures.verification import VerificationResult


@may_run_named_code
def audit(
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR",
            help="A run's folder; the newest run if left out. With --canaries also a SPEC.",
            autocompletion=completion.runs,
        ),
    ] = None,
    out_dir: OutOption = RUNS,
    write: Annotated[
        bool, typer.Option("--write", help="Replace audit.json and the report, and sign them anew.")
    ] = False,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    paper_claim: Annotated[
        str | None,
        typer.Option(
            "--paper-claim",
            metavar="FILE",
            help="Judge a printed privacy claim instead of a run: a YAML file or a shipped claim.",
        ),
    ] = None,
    replay: Annotated[
        int | None,
        typer.Option(
            "--replay",
            metavar="N",
            help="Draw N participations and compute them again from the data, whoever trained.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="With --replay or --draw: where the data lie."),
    ] = None,
    escrow: Annotated[
        list[Path] | None,
        typer.Option(
            "--escrow",
            metavar="FILE",
            help="With --replay or --draw: the noise key that `run --escrow` kept. Repeatable.",
        ),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Compute the participations again that your `challenge draw` chose.",
        ),
    ] = None,
    openings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --draw: what the trainer opened for it (`challenge open`); no escrow then.",
        ),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(
            "--canaries",
            metavar="N",
            help="Train the run's spec again with N planted records, and bound epsilon from below.",
        ),
    ] = None,
    canary_kind: Annotated[
        str,
        typer.Option(
            help="gradient (the strongest), or input: crafted records, through the whole engine."
        ),
    ] = "gradient",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Judge a run by its evidence: PASS, FAIL or NOT VERIFIED, check by check.

    Reads only, unless --write is given. Missing or unreadable evidence is never PASS. Exit code 0
    for PASS, 1 for FAIL and NOT VERIFIED. `python -m audit RUN_DIR` needs no engine.

    With --paper-claim no run is needed: what epsilon follows from the settings that a paper states,
    under each way of reading them, and which of those the printed one covers.

    With --replay N participations are drawn that nobody could foresee, and computed again from
    data, spec and key: batches, noise and uploads to the last bit, clean sums a second time in
    float64. Without it the evidence is what the trainer's own process wrote of itself, and the
    verdict says so; what your own earlier audit found by it stands while no file has changed. What
    it takes is told before it begins. With --draw those are computed again that an auditor's second
    nonce chose, from the keys that the trainer opened for it.

    With --canaries an audit run is made of the same spec, in DIR/canaries: records planted by fair
    coins, all that releases show of them held against the ledger's own noise, and how well the
    coins can be guessed. The run that is audited stays as it is.
    """
    if canaries is not None:
        if paper_claim is not None or write or timestamp is not None:
            refuse(
                "--canaries: makes a run of its own; leave out --paper-claim, --write and "
                "--timestamp"
            )
        if replay is not None or draw is not None or openings is not None or data or escrow:
            refuse("--canaries: makes a run of its own, whose records are planted; no --replay")
        from dpfedadamw.cli.canaries import audit_with_canaries

        audit_with_canaries(run_dir, out_dir, canaries, canary_kind, device, auditor_key, as_json)
        return
    if paper_claim is not None:
        if run_dir is not None or write or auditor_key is not None or timestamp is not None:
            refuse("--paper-claim: judges a claim without a run; leave out RUN_DIR and --write")
        if replay is not None or draw is not None or openings is not None or data or escrow:
            refuse("--paper-claim: judges a claim without a run; there is nothing to replay")
        judging = extension("dpfedadamw.extensions.claims.commands", "--paper-claim")
        judging.judge(paper_claim, as_json)
        return
    if timestamp is not None and not write:
        refuse("--timestamp: nothing is signed without --write")
    _check_replay(replay, data, escrow, draw, openings)
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.earlier import computed_again, refuse_erased

    found_run = find_run(run_dir, out_dir)
    if write:
        refuse_erased(found_run)
    # The key is read before anything is written.
    key = after_training.load_key("auditor", auditor_key, []) if write else None
    authority = after_training.authority(timestamp)
    with after_training.writing(found_run) if write else contextlib.nullcontext():
        if replay or draw:
            findings = _replayed(
                found_run, replay, data, escrow or [], draw, openings, device, as_json
            )
        else:
            with status("auditing", quiet=as_json):
                findings = after_training.audit(found_run)
            if any(map(computed_again, findings.to_json()["checks"])):
                text = "the finding by re-execution is your earlier audit's, of the same files"
                err.print(Text(f"note: {text}", style="dim"), soft_wrap=True)
        _tell(found_run, findings, key, authority, as_json)


def _check_replay(
    replay: int | None,
    data: Path | None,
    escrow: list[Path] | None,
    draw: Path | None,
    openings: Path | None,
) -> None:
    """Refuse options of a replay that do not go together."""
    if replay is not None and replay < 0:
        refuse(f"--replay {replay}: must be at least 0, which computes nothing again")
    if replay is not None and draw is not None:
        refuse("--replay N draws by your own bits, --draw FILE has drawn already; give one of them")
    if openings is not None and (draw is None or escrow):
        refuse("--openings FILE: is what was opened for a --draw FILE, instead of --escrow")
    if draw is not None and openings is None and not escrow:
        refuse(
            "--draw FILE: give --openings FILE, what the trainer opened for it, or --escrow FILE"
        )
    if not (replay or draw) and (data is not None or escrow):
        refuse("--data, --escrow: belong to --replay N or --draw FILE, which compute again")


def _replayed(
    found_run: RunDirectory,
    count: int | None,
    data: Path | None,
    escrow: list[Path],
    draw: Path | None,
    openings: Path | None,
    device: str,
    as_json: bool,
) -> Findings:
    """Findings on a run of which participations were computed again."""
    from dpfedadamw.cli.opened import remember
    from dpfedadamw.cli.replaying import order_of
    from dpfedadamw.experiment import pick_device
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.replaying import replay_of
    from dpfedadamw.reexecution.rounds import Rerun
    from dpfedadamw.run.environment import recorded_device

    with status("reading data and dividing it among clients", quiet=as_json):
        order = order_of(found_run, count, escrow, draw, openings)
        chosen = recorded_device(found_run.evidence) if device == "auto" else device
        rerun = Rerun(found_run, order.keys, pick_device(chosen), data)
    with progress_bar(quiet=as_json) as progress:
        task = progress.add_task("auditing", total=None)

        def announce(cost: Any) -> None:
            text = (
                f"computing {cost.participations} participations again, one record at a time; "
                f"the engine runs {cost.executed} of the run's {cost.total} rounds again for them"
            )
            err.print(Text(text, style="dim"))
            progress.update(task, description="computing again", total=cost.rounds)

        def after_round(done: int, rounds: int) -> None:
            progress.update(task, completed=done, total=rounds)

        findings = after_training.audit(
            found_run, replay=replay_of(rerun, order, announce, after_round)
        )
    if order.challenged is not None:
        remember(order.challenged, findings.verdict.value)
    return findings


def _tell(
    found_run: RunDirectory,
    findings: Findings,
    key: SigningKey | None,
    authority: Authority | None,
    as_json: bool,
) -> None:
    from dpfedadamw.filing import after_training

    found = findings.to_json()
    if as_json:
        print_json(found)
    else:
        out.print(Text(f"run {found_run.identifier}", style="bold"))
        out.print(display.findings_table(found, findings.level))
    if key is not None:
        filed = after_training.file_report(found_run, findings, key, authority=authority)
        refuse_unstamped(filed.unstamped, found_run.path)
        err.print(Text("audit.json, report and attestation were written anew", style="dim"))
    elif not after_training.same_as_filed(found_run, findings):
        err.print(
            Text(
                "note: these findings differ from the run's audit.json; --write files them",
                style="yellow",
            )
        )
    exit_by(found["verdict"])


@may_run_named_code
def canaries(
    subject: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR|SPEC", help="What is trained again; the newest run if left out."
        ),
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help="Records planted.")] = 100,
    kind: Annotated[
        str,
        typer.Option(
            help="gradient (the strongest), or input: crafted records, through the whole engine."
        ),
    ] = "gradient",
    out_dir: OutOption = RUNS,
    device: DeviceOption = "auto",
    auditor_key: AuditorKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a spec again with planted records and bound epsilon from below, as `audit --canaries`.

    The audit run is written to DIR/canaries, and the run that is audited stays as it is. Exit code
    0 for PASS, 1 for FAIL and NOT VERIFIED.
    """
    from dpfedadamw.cli.canaries import audit_with_canaries

    audit_with_canaries(subject, out_dir, count, kind, device, auditor_key, as_json)


def report(
    run_dirs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN_DIR]...",
            help="A run's folder; the newest run if left out. Several with --compare.",
            show_default=False,
        ),
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder that holds runs; --compare writes into comparison/ there. [default: runs]",
        ),
    ] = None,
    audience: Annotated[
        Audience, typer.Option(help="internal, or public: nothing tells who took part how often.")
    ] = Audience.internal,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="One report on all the runs named, ranked where claims agree.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where --compare writes; if left out, comparison/, in --out where that is given.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report again (report.json, .pdf, .html) and sign it as the auditor.

    The same run gives the same bytes, up to the signature behind the PDF. With --compare
    RUN_DIR... one report on several runs: the table of `compare`, with every claim, its
    assumptions and what may not be ranked with what; its signature names each run by its digests.
    """
    if compare:
        target = output or (out_dir or Path()) / "comparison"
        comparing = extension("dpfedadamw.extensions.comparison.commands", "--compare")
        comparing.file_comparison(run_dirs or [], target, audience, auditor_key, timestamp, as_json)
        return
    if output is not None:
        refuse("--output: belongs to --compare; a run's report is written into its folder")
    if run_dirs is not None and len(run_dirs) > 1:
        refuse(f"{len(run_dirs)} runs named; a report on several runs needs --compare")
    from dpfedadamw.filing import after_training

    found_run = find_run(run_dirs[0] if run_dirs else None, out_dir or RUNS)
    key = after_training.load_key("auditor", auditor_key, [])
    authority = after_training.authority(timestamp)
    with after_training.writing(found_run), status("writing and signing the report", as_json):
        filed = after_training.file_report(found_run, None, key, audience.value, authority)
    files = filed.files
    refuse_unstamped(filed.unstamped, found_run.path)
    if as_json:
        print_json({"json": str(files.json), "pdf": str(files.pdf), "html": str(files.html)})
    else:
        rows = [("report", files.pdf), ("web page", files.html), ("data", files.json)]
        out.print(display.facts([(name, str(path)) for name, path in rows]))


def verify(
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR",
            help="A run's folder, one with its public files, a comparison's; a report's PDF alone; "
            "a signed annex. The newest run if left out.",
            autocompletion=completion.runs,
        ),
    ] = None,
    out_dir: OutOption = RUNS,
    trainer_key: Annotated[
        Path | None,
        typer.Option(metavar="PUB", help="Public key that the trainer gave you by another way."),
    ] = None,
    auditor_key: Annotated[
        Path | None,
        typer.Option(metavar="PUB", help="Public key that the auditor gave you by another way."),
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
            metavar="RUN_DIR", help="Of a signed-off annex: the run whose report it is about."
        ),
    ] = None,
    signer_key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PEM",
            help="Of a signed-off annex: public key or certificate of a person who must have "
            "signed. Repeatable.",
        ),
    ] = None,
    no_memory: Annotated[
        bool,
        typer.Option(
            "--no-memory",
            help="Compare with no state seen before, and remember none: to check runs for others.",
        ),
    ] = False,
    require_level: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=4,
            help="Of a run: exit code 1 where less stands behind its PASS than level N of 4.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every signature, timestamp and hash of a run, of a comparison or an annex, offline.

    With the keys you trust it proves by whom the files were signed, also if the holder replaced
    them since; keys in your own key folder are yours. Revoked keys are refused: those in the lists
    you give, and those revoked in your own key folder. The latest state of each run that held is
    remembered in your key folder, and an earlier one by the same signer refused.

    The level says how hard it would have been to forge the run: 1 consistent, 2 re-executed,
    3 challenged, 4 independent (docs/detection.md). It is computed from files and signatures.

    Exit code 0: ALL HOLD. 1: NOT VALID; each file that does not hold is named. 3: INTACT, SIGNER
    UNKNOWN: the files are the ones that somebody signed, whose key stands in the run alone.
    """
    from dpfedadamw.rundir import open_existing
    from reports.files import Snapshot
    from reports.signatures.keys import default_directory
    from reports.signatures.verification import results, verify_comparison, verify_pages
    from reports.signatures.verification import verify as verify_run
    from reports.signatures.verification.comparisons import is_comparison
    from reports.signatures.verification.contents import is_public_alone

    if run_dir is None:
        run_dir = find_run(None, out_dir).path
    if require_level is not None and (run_dir.is_file() or is_comparison(Snapshot(run_dir))):
        refuse("--require-level: is a run's; give the run's folder")
    if run_dir.is_file():
        from reports.render import sign_off as annex

        if of is None and not signer_key and not annex.is_annex(run_dir):
            if trainer_key is not None:
                refuse("--trainer-key: a report's PDF is signed by the auditor alone; leave it out")
            result = verify_pages(run_dir, auditor_key, revocations or (), tsa_root or ())
            _tell_verified(f"pages {run_dir.name}", result, as_json)
            return
        if trainer_key is not None or auditor_key is not None:
            refuse("an annex is signed by whoever decides: give --signer-key")
        result = annex.check(run_dir, of, signer_key or (), tsa_root or ())
        _tell_verified(f"annex {run_dir.name}", result, as_json)
        return
    if of is not None or signer_key:
        refuse("--of, --signer-key: belong to an annex that somebody signed off, a PDF file")
    if is_comparison(Snapshot(run_dir)):
        if trainer_key is not None:
            refuse("--trainer-key: a comparison is signed by an auditor alone; leave it out")
        result = verify_comparison(run_dir, auditor_key, revocations or (), tsa_root or ())
        _tell_verified(f"comparison {run_dir.resolve().name}", result, as_json)
        return
    public = is_public_alone(Snapshot(run_dir))
    path = run_dir.resolve() if public else open_existing(run_dir).path
    memory = None if no_memory else default_directory() / results.MEMORY_FILE
    result = verify_run(
        path,
        trainer_key,
        auditor_key,
        revocations or (),
        tsa_root or (),
        memory,
        log_key or (),
    )
    what = f"{'public files in' if public else 'run'} {path.name}"
    _tell_verified(what, result, as_json, require_level)


def _tell_verified(
    what: str, result: VerificationResult, as_json: bool, require_level: int | None = None
) -> None:
    if as_json:
        print_json(result.to_json())
    else:
        out.print(Text(what, style="bold"))
        out.print(signatures.verification(result))
    if require_level is not None and result.is_intact and (result.level or 0) < require_level:
        found = "no level" if result.level is None else f"level {result.level}"
        stop(
            f"error: {found} of 4 is established, and {require_level} is required", EXIT_NOT_PASSED
        )
    signatures.exit_by(result, quiet=as_json)
