"""``run``: train, audit, report, sign."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.options import (
    RUNS,
    AuditorKeyOption,
    DeviceOption,
    JsonOption,
    OutOption,
    SetOption,
    TimestampOption,
    TrainerKeyOption,
)
from dpfedadamw.cli.terminal import (
    EXIT_INTERRUPTED,
    err,
    exit_by,
    out,
    print_json,
    progress_bar,
    refuse,
    refuse_unstamped,
    relative,
    status,
    stop,
)

if TYPE_CHECKING:
    from dpfedadamw.run.training import Training


def run(
    spec: Annotated[
        str | None,
        typer.Argument(metavar="SPEC", help="A YAML file, or a shipped spec's name: quickstart."),
    ] = None,
    out_dir: OutOption = RUNS,
    changes: SetOption = None,
    device: DeviceOption = "auto",
    engine: Annotated[
        str, typer.Option(help="Clipped-sum engine: auto, book-keeping, vmap or loop.")
    ] = "auto",
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Continue a run that was cut off.")
    ] = None,
    escrow: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the noise key in FILE (mode 0600). Whoever has it can subtract all noise.",
        ),
    ] = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train, audit, report and sign: SPEC in; model, ledger, audit and signed report out.

    The run is written to DIR/NAME-TIMESTAMP-ID, and DIR/latest points to it. Exit code 0 when the
    audit passes, 1 when it does not, 2 when the spec is wrong.
    """
    from dpfedadamw import spec as specs

    if (spec is None) == (resume is None):
        refuse("give either a SPEC or --resume RUN_DIR, and not both")
    if resume is not None and changes:
        refuse("--set: a resumed run keeps its spec; start a new run to change it")
    if resume is not None and escrow is not None:
        refuse("--escrow: a resumed run draws a new key; escrow is for whole runs")
    # The spec is read before the engine is loaded, so that a wrong one is refused at once.
    wanted = specs.load(spec, changes or ()) if spec is not None else None
    from dpfedadamw.cli import after_training
    from dpfedadamw.experiment import pick_device, prepare
    from dpfedadamw.run.training import resume as continue_run
    from dpfedadamw.run.training import start

    chosen = pick_device(device)
    with status("reading data and dividing it among clients", quiet=as_json):
        if resume is not None:
            from dpfedadamw.rundir import open_existing

            training = continue_run(open_existing(resume), chosen, engine)
        else:
            assert wanted is not None
            experiment = prepare(wanted, chosen)
        signers = after_training.load_signers(trainer_key, auditor_key)
        # Asked once before training, so that a wrong address costs no training.
        authority = after_training.authority(timestamp)
        if resume is None:
            training = start(experiment, out_dir, engine, escrow=escrow)
    for path in signers.created:
        err.print(Text(f"made a signing key: {path}", style="dim"))
    _train_and_file(training, signers, authority, as_json)


def _train_and_file(training: Training, signers: Any, authority: Any, as_json: bool) -> None:
    from dpfedadamw.cli import after_training
    from dpfedadamw.run.probe import probe_of
    from dpfedadamw.run.training import train

    folder = training.run.path
    federation = training.experiment.spec.federation
    try:
        with progress_bar(quiet=as_json) as progress:
            task = progress.add_task("training", total=federation.rounds)
            progress.update(task, completed=training.completed)

            def after_round(result: Any, evaluation: Any) -> None:
                text = "training"
                if evaluation.accuracy is not None:
                    text = f"training  accuracy {evaluation.accuracy:.1%}"
                progress.update(task, completed=result.completed, description=text)

            outcome = train(training, on_round=after_round)
    except KeyboardInterrupt:
        stop(f"stopped; continue with: dpfedadamw run --resume {folder}", EXIT_INTERRUPTED)
    with status("auditing", quiet=as_json):
        probe = probe_of(training)
        unstamped = after_training.stamped(
            lambda by: after_training.attest_training(training.run, probe, signers, by), authority
        )
        findings = after_training.audit(training.run)
    with status("writing and signing the report", quiet=as_json):
        filed = after_training.file_report(
            training.run, findings, signers.auditor, authority=None if unstamped else authority
        )
    found = findings.to_json()
    summary = {
        "run": training.run.identifier,
        "directory": str(folder),
        "test_accuracy": outcome.accuracy,
        "test_loss": outcome.loss,
        "privacy": _without_participation(outcome.claim),
        "verdict": found["verdict"],
        "qualifications": found["qualifications"],
        "engine": outcome.engine,
    }
    if as_json:
        print_json(summary)
    else:
        shown = relative(folder)
        out.print(display.run_summary(summary, found["verdict"], found["qualifications"], shown))
        if found["verdict"] not in ("PASS", "NO CLAIM"):
            out.print(display.findings_table(found))
    refuse_unstamped(unstamped or filed.unstamped, folder)
    exit_by(found["verdict"])


def _without_participation(claim: Mapping[str, Any]) -> dict[str, Any]:
    """The claim without who took part how often, because what is printed ends up in logs."""
    shown = {key: value for key, value in claim.items() if key != "profile"}
    if "server" in shown:
        shown["server"] = {key: value for key, value in shown["server"].items() if key != "clients"}
    return shown
