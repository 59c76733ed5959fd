"""``audit`` and ``report``: what the auditor says of a finished run.

The commands check that their options go together, and show what came out. Judging, writing and
signing is `filing.after_training`; recomputing participations is `filing.replaying`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from audit.untrusted.files import folder_of_gate
from dpfedadamw.cli import completion, display
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
    err,
    exit_by,
    find_run,
    out,
    print_json,
    progress_bar,
    refuse,
    refuse_unstamped,
    status,
)
from dpfedadamw.registration import extension

if TYPE_CHECKING:
    from audit.verdict import Findings
    from dpfedadamw.reexecution.rounds import Cost
    from dpfedadamw.rundir import RunDirectory


@dataclass(frozen=True, kw_only=True)
class _Replay:
    """What to recompute, as the options of `audit` state it.

    Attributes:
        count: --replay; None where it is not given.
        data: --data.
        escrow: --escrow.
        draw: --draw.
        openings: --openings.
        device: --device.
    """

    count: int | None
    data: Path | None
    escrow: list[Path]
    draw: Path | None
    openings: Path | None
    device: str

    @property
    def given(self) -> bool:
        """Whether any option that belongs to recomputation is given."""
        files = (self.data, self.draw, self.openings)
        return bool(self.escrow) or any(one is not None for one in (self.count, *files))

    def check(self) -> None:
        """Refuse options that do not go together."""
        count, draw, openings = self.count, self.draw, self.openings
        if count is not None and count < 0:
            refuse(f"--replay {count}: must be at least 0, which recomputes nothing")
        if count is not None and draw is not None:
            refuse(
                "--replay N draws participations itself, --draw FILE names those already drawn; "
                "give one of them"
            )
        if openings is not None and (draw is None or self.escrow):
            refuse("--openings FILE: goes with --draw FILE, in place of --escrow")
        if draw is not None and openings is None and not self.escrow:
            refuse(
                "--draw FILE: give --openings FILE, what the trainer opened for it, or --escrow "
                "FILE"
            )
        if not (count or draw) and (self.data is not None or self.escrow):
            refuse(
                "--data, --escrow: belong to --replay N or --draw FILE, which recompute "
                "participations"
            )


@may_run_named_code
def audit(
    run_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN_DIR",
            help="A run's folder; the newest run by default. With --canaries also a SPEC.",
            autocompletion=completion.runs,
        ),
    ] = None,
    out_dir: OutOption = RUNS,
    write: Annotated[
        bool,
        typer.Option("--write", help="Replace audit.json and the report, and sign them again."),
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
            help="Draw N participations at random and recompute them from the data.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="With --replay or --draw: where the data are."),
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
            help="Recompute the participations that your `challenge draw` chose.",
        ),
    ] = None,
    openings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --draw: what the trainer opened for it (`challenge open`), in place of "
            "--escrow.",
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
            help="gradient (the strongest); input: crafted records, through the whole engine; "
            "secret: texts with a code, in a language model."
        ),
    ] = "gradient",
    device: DeviceOption = "auto",
    gate_key: Annotated[
        Path | None,
        typer.Option("--key", metavar="PUB", help="Of a gate's folder: the gate's public key."),
    ] = None,
    gate_anchor: Annotated[
        Path | None,
        typer.Option(
            "--anchor", metavar="FILE", help="Of a gate's folder: its head at the second place."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a run by its evidence: PASS, FAIL or NOT VERIFIED, check by check.

    Reads only, unless --write is given. Missing or unreadable evidence is never PASS. Exit code 0
    for PASS, 1 for FAIL and NOT VERIFIED. `python -m audit RUN_DIR` needs no engine.

    A PASS says that the claim is not contradicted. Where the claimed epsilon is above 20, the first
    words are NO MEANINGFUL PROTECTION: such a claim protects nobody, even if it is true.

    --paper-claim needs no run. It computes the epsilon that follows from a paper's stated settings
    under each way of reading them, and shows which of these the printed epsilon covers.

    --replay N draws N participations that nobody could foresee and recomputes them from data, spec
    and key. Batches, noise and uploads must match bit for bit, and clean sums are recomputed in
    float64. Its cost is shown before it starts. Without it the audit rests on what the trainer's
    own process recorded, and the verdict says so. The findings of your own earlier --replay stay
    valid while no file has changed. With --draw the participations are those that an auditor's
    second nonce chose, recomputed with the keys that the trainer opened for them.

    RUN_DIR may be the folder of a gate (`dpfedadamw gate`): its ledger is judged, with the keys
    and heads that --key and --anchor name.

    --canaries trains the same spec again in DIR/canaries, with records planted by fair coin flips.
    It tests whether what the releases show of these records fits the noise in the ledger, and how
    well the coins can be guessed. The audited run is not changed.
    """
    again = _Replay(
        count=replay,
        data=data,
        escrow=escrow or [],
        draw=draw,
        openings=openings,
        device=device,
    )
    if canaries is not None:
        if paper_claim is not None or write or timestamp is not None:
            refuse(
                "--canaries: trains a separate run; leave out --paper-claim, --write and "
                "--timestamp"
            )
        if again.given:
            refuse("--canaries: trains a separate run with planted records; leave out --replay")
        from dpfedadamw.cli.canaries import CanaryAudit, audit_with_canaries

        asked = CanaryAudit(
            subject=run_dir,
            out_dir=out_dir,
            count=canaries,
            kind=canary_kind,
            device=device,
            auditor_key=auditor_key,
            as_json=as_json,
        )
        audit_with_canaries(asked)
        return
    if paper_claim is not None:
        if run_dir is not None or write or auditor_key is not None or timestamp is not None:
            refuse("--paper-claim: judges a claim without a run; leave out RUN_DIR and --write")
        if again.given:
            refuse("--paper-claim: judges a claim without a run; there is nothing to replay")
        judging = extension("dpfedadamw.extensions.claims.commands", "--paper-claim")
        judging.judge(paper_claim, as_json)
        return
    if run_dir is not None and folder_of_gate(run_dir) is not None:
        if write or again.given:
            refuse(f"{run_dir}: is a gate's folder; leave out --write, --replay and --draw")
        judging = extension("dpfedadamw.extensions.gate.commands", "the folder of a gate")
        judging.judge(run_dir, gate_key, gate_anchor, as_json)
        return
    if gate_key is not None or gate_anchor is not None:
        refuse("--key, --anchor: belong to the folder of a gate")
    if timestamp is not None and not write:
        refuse("--timestamp: nothing is signed without --write")
    again.check()
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.earlier import refuse_erased

    run = find_run(run_dir, out_dir)
    if write:
        refuse_erased(run)
    # Read the key before anything is written.
    key = after_training.load_key("auditor", auditor_key, []) if write else None
    authority = after_training.authority(timestamp)
    with after_training.writing(run) if write else contextlib.nullcontext():
        computing = bool(replay or draw)
        findings = _replayed(run, again, as_json) if computing else _judged(run, as_json)
        _show(run, findings, as_json)
        if key is not None:
            filed = after_training.file_report(run, findings, key, authority=authority)
            refuse_unstamped(filed.unstamped, run.path)
            err.print(Text("audit.json, report and attestation were rewritten", style="dim"))
        elif not after_training.same_as_filed(run, findings):
            text = "note: these findings differ from the run's audit.json; --write files them"
            err.print(Text(text, style="yellow"))
        exit_by(findings.to_json()["verdict"])


def _judged(run: RunDirectory, as_json: bool) -> Findings:
    """Findings on a run from its evidence."""
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.earlier import was_recomputed

    with status("auditing", quiet=as_json):
        findings = after_training.audit(run)
    if any(map(was_recomputed, findings.to_json()["checks"])):
        text = "the re-execution finding is from your earlier audit of the same files"
        err.print(Text(f"note: {text}", style="dim"), soft_wrap=True)
    return findings


def _replayed(run: RunDirectory, again: _Replay, as_json: bool) -> Findings:
    """Findings on a run, some of whose participations were recomputed."""
    from dpfedadamw.cli.challenge_files import remember
    from dpfedadamw.cli.replaying import order_of
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.replaying import replay_of
    from dpfedadamw.reexecution.rounds import Rerun
    from dpfedadamw.run.environment import device_of

    with status("reading the data and dividing them among clients", quiet=as_json):
        order = order_of(run, again.count, again.escrow, again.draw, again.openings)
        rerun = Rerun(run, order.keys, device_of(run.evidence, again.device), again.data)
    with progress_bar(quiet=as_json) as progress:
        task = progress.add_task("auditing", total=None)

        def announce(cost: Cost) -> None:
            text = (
                f"recomputing {cost.participations} participations, one record at a time; for them "
                f"the engine re-runs {cost.executed} of the run's {cost.total} rounds"
            )
            err.print(Text(text, style="dim"))
            progress.update(task, description="computing again", total=cost.rounds)

        def after_round(done: int, rounds: int) -> None:
            progress.update(task, completed=done, total=rounds)

        replay = replay_of(rerun, order, announce, after_round)
        findings = after_training.audit(run, replay=replay)
    if order.challenged is not None:
        remember(order.challenged, findings.verdict.value)
    return findings


def _show(run: RunDirectory, findings: Findings, as_json: bool) -> None:
    found = findings.to_json()
    if as_json:
        print_json(found)
    else:
        out.print(Text(f"run {run.identifier}", style="bold"))
        out.print(display.findings_table(found, findings.level))


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
        Audience,
        typer.Option(help="internal, or public, which does not reveal how often anyone took part."),
    ] = Audience.internal,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Write one report on all the runs named, ranked where their claims agree.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where --compare writes; comparison/ by default, inside --out where that is "
            "given.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report again (report.json, .pdf, .html) and sign it as the auditor.

    The same run gives the same bytes, except for the signature appended to the PDF. --compare
    RUN_DIR... writes one report on several runs: the table of `compare`, every claim with its
    assumptions, and which runs may not be ranked together. Its signature names each run by its
    digests.
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
