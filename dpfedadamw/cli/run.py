"""``run``: train, audit, report, sign."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import completion, display
from dpfedadamw.cli.foreign_code import may_run_named_code
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
    EXIT_NOT_PASSED,
    err,
    exit_by,
    out,
    print_json,
    progress_bar,
    refuse,
    refuse_unstamped,
    relative,
    resumable,
    status,
    stop,
)
from dpfedadamw.cli.training_lines import TrainingLines, score_of
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.loading import loading
from dpfedadamw.profiling import profiled, within

if TYPE_CHECKING:
    from audit.reexecution import Replay
    from dpfedadamw.filing.after_training import Filing, Finished
    from dpfedadamw.filing.tracked import Listener
    from dpfedadamw.profiling import Profile
    from dpfedadamw.run.journal import Outcome
    from dpfedadamw.run.training import Training
    from dpfedadamw.rundir import RunDirectory
    from dpfedadamw.spec import Spec
    from dpfedadamw.storage.lock import RunLock


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What a new run and one that is resumed are asked for alike; `run` explains each option."""

    device: str
    engine: str
    escrow: Path | None
    trainer_key: str | None
    auditor_key: str | None
    timestamp: str | None
    as_json: bool
    trackers: Sequence[str]
    spent: Profile | None


@may_run_named_code
def run(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC",
            help="A YAML file, or a shipped spec's name: quickstart.",
            autocompletion=completion.specs,
        ),
    ] = None,
    out_dir: OutOption = RUNS,
    changes: SetOption = None,
    device: DeviceOption = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help="Clipped-sum engine: auto, book-keeping, opacus, vmap or loop; or where clients "
            "run: inline or flower, a short form of --set federation.engine=flower."
        ),
    ] = "auto",
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            help="Finish a run that was cut off, wherever that was.",
            autocompletion=completion.runs,
        ),
    ] = None,
    escrow: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the noise key in FILE (mode 0600). Whoever has it can subtract all noise. "
            "With --challenge: the file that was written with the intent. With --resume: the same "
            "file again, which gets the further key.",
        ),
    ] = None,
    challenge: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="An auditor's challenge.json: run what its intent announced, under its nonce.",
        ),
    ] = None,
    replay: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Compute N participations again at the end, drawn after training, so that the "
            "audit reaches level 2 of 4. 0: none. By default 20, where that takes about a minute "
            "at most.",
            show_default=False,
        ),
    ] = None,
    trainer_key: TrainerKeyOption = None,
    auditor_key: AuditorKeyOption = None,
    timestamp: TimestampOption = None,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Say at the end where the time went, by part: printed, and filed nowhere.",
        ),
    ] = False,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Tell a tracker what is public of the run: tensorboard, mlflow or wandb "
            "(offline). It writes to DIR/tracking. Repeatable.",
        ),
    ] = None,
    trial: Annotated[
        Path | None,
        typer.Option(hidden=True, metavar="FILE", help="Written by sweep for a trial."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train, audit, report and sign: SPEC in; model, ledger, audit and signed report out.

    The run is written to DIR/NAME-TIMESTAMP-ID, and DIR/latest points to it. Exit code 0 when the
    audit passes, 1 when it does not or training diverged, 2 when the spec is wrong.

    However a run was cut off, --resume RUN_DIR finishes it: what is left of training, the audit,
    the report and the signatures. No other command is needed, and no budget is spent twice.

    With --challenge the noise can be chosen by neither trainer nor auditor: see dpfedadamw
    challenge --help.
    """
    from dpfedadamw import spec as specs

    _refuse_together(spec, resume, changes, challenge, replay, escrow)
    if engine in ("inline", "flower"):
        if resume is not None:
            refuse(f"--engine {engine}: a resumed run keeps where its clients run; leave it out")
        changes, engine = [*(changes or ()), f"federation.engine={engine}"], "auto"
    # The spec is read before the engine is loaded, so that a wrong one is refused at once.
    wanted = specs.load(spec, changes or ()) if spec is not None else None
    if tracker:
        from dpfedadamw.filing import tracked

        tracked.check(tracker)
    with profiled() if profile else contextlib.nullcontext() as spent:
        asked = _Asked(
            device=device,
            engine=engine,
            escrow=escrow,
            trainer_key=trainer_key,
            auditor_key=auditor_key,
            timestamp=timestamp,
            as_json=as_json,
            trackers=tracker or (),
            spent=spent,
        )
        if resume is not None:
            _resume(resume, asked)
            return
        assert wanted is not None
        _new(wanted, out_dir, replay, challenge, trial, asked)


def _refuse_together(
    spec: str | None,
    resume: Path | None,
    changes: Sequence[str] | None,
    challenge: Path | None,
    replay: int | None,
    escrow: Path | None,
) -> None:
    """Refuse options that say nothing together, before anything is loaded."""
    if (spec is None) == (resume is None):
        refuse("give either a SPEC or --resume RUN_DIR, and not both")
    if resume is not None and changes:
        refuse("--set: a resumed run keeps its spec; start a new run to change it")
    if resume is not None and challenge is not None:
        refuse("--challenge: a resumed run keeps its own; give its --escrow FILE alone")
    if resume is not None and replay:
        refuse(
            "--replay: finish the run first; then dpfedadamw audit RUN_DIR --replay N computes "
            "participations again, with the --escrow FILE of a release"
        )
    if challenge is not None and escrow is None:
        refuse("--challenge: give the file that was written with the intent too: --escrow FILE")


def _new(
    wanted: Spec,
    out_dir: Path,
    replay: int | None,
    challenge: Path | None,
    trial: Path | None,
    asked: _Asked,
) -> None:
    """Start a run of a spec, and take it to its signed report."""
    _refuse_profile(wanted, asked.spent)
    if replay and wanted.privacy.unit == "none":
        refuse(
            "--replay: this spec claims no privacy, so no participation has noise to compute "
            "again; the whole run is run again by: dpfedadamw replay RUN_DIR"
        )
    with within("start"), loading("torch"):
        from dpfedadamw.experiment import pick_device, prepare
        from dpfedadamw.run.setup import start
        from dpfedadamw.run.start_options import StartOptions, read_trial

        tried = read_trial(trial) if trial is not None else None
        chosen = pick_device(asked.device)
    with status("reading data and dividing it among clients", quiet=asked.as_json):
        experiment = prepare(wanted, chosen)
        filing = _filing(asked)
        if challenge is not None:
            # Few runs are announced to an auditor beforehand.
            from dpfedadamw.cli.challenge_files import read_challenged

            assert asked.escrow is not None
            challenged = read_challenged(challenge, asked.escrow, filing.signers.trainer)
            training = start(experiment, out_dir, asked.engine, StartOptions(challenged=challenged))
        else:
            training = start(
                experiment, out_dir, asked.engine, StartOptions(escrow=asked.escrow, trial=tried)
            )
    with resumable(training.run.path, asked.escrow is not None), training.lock:
        with _tracked(training, asked.trackers) as listener:
            started = time.monotonic()
            trained = _train(training, asked.as_json, listener)
            if replay is None and challenge is None and trial is None:
                replayed = _replaying_by_default(training, time.monotonic() - started, asked)
            else:
                replayed = _replaying(training, replay, asked)
            finished = _finish(trained, filing, asked.as_json, listener, replayed)
        _show(finished, training.run, asked)


def _refuse_profile(spec: Spec, spent: Profile | None) -> None:
    """Refuse to tell times that would tell what the claim rests on hiding."""
    hidden = spec.privacy.unit != "none" and spec.federation.client_sampling == "poisson"
    if spent is not None and hidden:
        refuse(
            "--profile: clients of this spec are drawn independently, and times would tell how "
            "many took part; leave it out, or profile it with federation.client_sampling: fixed "
            "and privacy.unit: record"
        )


def _resume(run_dir: Path, asked: _Asked) -> None:
    """Finish a run that was cut off, wherever that was."""
    with within("start"), loading("torch"):
        from dpfedadamw.filing import after_training
        from dpfedadamw.rundir import open_existing

    run = open_existing(run_dir)

    def train_the_rest(lock: RunLock) -> Outcome:
        from dpfedadamw.experiment import pick_device
        from dpfedadamw.run.setup import resume

        with status("reading data and dividing it among clients", quiet=asked.as_json):
            training = resume(run, pick_device(asked.device), asked.engine, lock, asked.escrow)
        _refuse_profile(training.experiment.spec, asked.spent)
        if training.note is not None:
            err.print(Text(f"note: {training.note}", style="yellow"), soft_wrap=True)
        listeners.append(stack.enter_context(_tracked(training, asked.trackers)))
        return _train(training, asked.as_json, listeners[0])

    listeners: list[Listener] = []
    with resumable(run.path, asked.escrow is not None), contextlib.ExitStack() as stack:
        try:
            finished = after_training.resume(
                run,
                train_the_rest,
                lambda: _filing(asked),
                lambda what: status(what, quiet=asked.as_json),
            )
        except after_training.ChangedSinceTrainingError as error:
            stop(f"error: {error}", EXIT_NOT_PASSED)
        if finished is None:
            err.print(Text("this run is finished; nothing was left to do", style="dim"))
            _stop_if_diverged(run)
            exit_by(after_training.filed_verdict(run))
            return
        if listeners:
            listeners[0].finished(finished.summary)
        _show(finished, run, asked)


def _filing(asked: _Asked) -> Filing:
    """Load the keys and ask the authority once before training, so that neither costs training."""
    from dpfedadamw.filing import after_training

    signers = after_training.load_signers(asked.trainer_key, asked.auditor_key)
    for path in signers.created:
        err.print(Text(f"made a signing key: {path}", style="dim"), soft_wrap=True)
    return after_training.Filing(signers, after_training.authority(asked.timestamp))


def _tracked(
    training: Training, trackers: Sequence[str]
) -> contextlib.AbstractContextManager[Listener]:
    """Trackers of a run in progress; what goes wrong in one is said, and the run goes on."""
    from dpfedadamw.filing.tracked import tracked

    def say(problem: str) -> None:
        err.print(Text(f"note: {problem}", style="yellow"), soft_wrap=True)

    return tracked(training, trackers, say)


def _train(training: Training, as_json: bool, listener: Listener) -> Outcome:
    from dpfedadamw.accounting.registry import rounded_up
    from dpfedadamw.filing.after_training import probing_before_claim
    from dpfedadamw.run import training as training_of

    experiment, federation = training.experiment, training.experiment.spec.federation
    if not as_json:
        # Whoever waits for hours looks into it, and a terminal that is closed tells nothing more.
        err.print(Text(f"run: {relative(training.run.path)}", style="dim"), soft_wrap=True)
    hidden = as_json or experiment.plan.participants_hidden
    lines = TrainingLines(federation.rounds, training.completed, hidden)
    with progress_bar(quiet=as_json) as progress:
        task = progress.add_task("training", total=federation.rounds)
        progress.update(task, completed=training.completed)
        said = ""

        def after_round(result: Any, evaluation: Any) -> None:
            listener.round_is_over()
            nonlocal said
            score, epsilon = score_of(evaluation), training.epsilon
            lines.round_is_over(result.completed, score, epsilon)
            spent = "" if epsilon is None else f"  ε {rounded_up(epsilon)}"
            # A round that was not evaluated leaves the last score where it is.
            said = score or said
            text = f"training{'  ' if said else ''}{said}{spent}"
            progress.update(task, completed=result.completed, description=text)

        def after_client(done: int, chosen: int) -> None:
            # The bar creeps on within a round.
            if done < chosen:
                progress.update(task, completed=training.completed + done / chosen)

        def before_probe() -> None:
            progress.update(task, description="probing the private step")

        # Nobody need know how many take part where that is hidden, be it from a bar's pace.
        shown = None if experiment.plan.participants_hidden else after_client
        before_claim = probing_before_claim(before_probe)
        return training_of.train(training, after_round, shown, before_claim)


def _replaying(training: Training, count: int | None, asked: _Asked) -> Replay | None:
    """That participations of the run are to be computed again by its audit."""
    if not count:
        return None
    from dpfedadamw.filing.replaying import after_training

    with status("reading the data again", quiet=asked.as_json):
        return after_training(training, count, asked.escrow)


def _replaying_by_default(training: Training, seconds: float, asked: _Asked) -> Replay | None:
    """As `_replaying`, for a run of which nobody said how much: what is quick and possible."""
    from dpfedadamw.filing.replaying import by_default

    try:
        return _replaying(training, by_default(training, seconds), asked)
    except DpfedadamwError as error:
        # The level says that nothing was computed again; training is not lost for it.
        err.print(Text(f"note: nothing was computed again: {error}", style="yellow"))
        return None


def _finish(
    trained: Outcome,
    filing: Filing,
    as_json: bool,
    listener: Listener,
    replay: Replay | None = None,
) -> Finished:
    """Attest, audit, report and sign, and tell trackers what the run came to."""
    from dpfedadamw.filing import after_training

    finished = after_training.finish(
        trained, filing, lambda what: status(what, quiet=as_json), replay
    )
    listener.finished(finished.summary)
    return finished


def _show(finished: Finished, run: RunDirectory, asked: _Asked) -> None:
    """Say what a run came to, and end with its verdict's exit code."""
    summary, found = finished.summary, finished.findings
    if asked.spent is not None:
        summary["profile"] = asked.spent.to_json()
    if asked.as_json:
        print_json(summary)
    else:
        shown = relative(run.path)
        out.print(display.run_summary(summary, found["verdict"], found["qualifications"], shown))
        if found["verdict"] not in ("PASS", "NO CLAIM"):
            out.print(display.findings_table(found))
        if asked.spent is not None:
            out.print(display.profile(asked.spent.to_json()))
    refuse_unstamped(finished.unstamped, run.path)
    _stop_if_diverged(run)
    exit_by(found["verdict"])


def _stop_if_diverged(run: RunDirectory) -> None:
    """End as a run does that left no model, whatever its audit says."""
    from dpfedadamw.filing import after_training

    if (said := after_training.divergence_of(run)) is not None:
        stop(said, EXIT_NOT_PASSED)
