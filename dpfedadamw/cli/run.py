"""``run``: train, audit, report, sign."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
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
from dpfedadamw.filing import running
from dpfedadamw.filing.running import Hooks, Settings, Watcher
from dpfedadamw.loading import loading
from dpfedadamw.profiling import profiled, within

if TYPE_CHECKING:
    from dpfedadamw.filing.after_training import Finished
    from dpfedadamw.profiling import Profile
    from dpfedadamw.run.training import Training
    from dpfedadamw.rundir import RunDirectory
    from dpfedadamw.spec import Spec


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
            help="Continue an interrupted run from wherever it stopped.",
            autocompletion=completion.runs,
        ),
    ] = None,
    escrow: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Save the noise key in FILE (mode 0600). Anyone who has it can subtract all "
            "noise. With --challenge: the file that was written with the intent. With --resume: "
            "the same file again; the further key is added to it.",
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
            help="Recompute N participations at the end, drawn after training, so that the audit "
            "reaches level 2 of 4. 0: none. Default: 20, if that takes about a minute at most.",
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
            help="Print at the end where the time went, by part; it is stored nowhere.",
        ),
    ] = False,
    tracker: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Send the public part of the run to a tracker: tensorboard, mlflow or wandb "
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

    The run is written to DIR/NAME-TIMESTAMP-ID, and DIR/latest points to it. Exit code 0 if the
    audit passes, 1 if it does not or training diverged, 2 if the spec is wrong.

    --resume RUN_DIR finishes an interrupted run: the remaining training, the audit, the report and
    the signatures. No other command is needed, and no budget is spent twice.

    With --challenge neither trainer nor auditor can choose the noise: see dpfedadamw challenge
    --help.
    """
    from dpfedadamw import spec as specs

    _refuse_together(spec, resume, changes, challenge, replay, escrow)
    if engine in ("inline", "flower"):
        if resume is not None:
            refuse(
                f"--engine {engine}: a resumed run's clients run where they did before; leave "
                "it out"
            )
        changes, engine = [*(changes or ()), f"federation.engine={engine}"], "auto"
    # The spec is read before the engine is loaded, so that a wrong one is refused at once.
    wanted = specs.load(spec, changes or ()) if spec is not None else None
    _check_engine(engine)
    settings = Settings(
        device=device,
        engine=engine,
        escrow=escrow,
        trackers=tracker or (),
        trainer_key=trainer_key,
        auditor_key=auditor_key,
        timestamp=timestamp,
    )
    running.check_trackers(settings.trackers)
    with profiled() if profile else contextlib.nullcontext() as spent:
        screen = _Screen(as_json, spent)
        if resume is not None:
            _resume(resume, settings, screen)
            return
        assert wanted is not None
        if replay is None and (challenge is not None or trial is not None):
            # Only on request: an auditor draws later, and a sweep has many runs.
            replay = 0
        _start(wanted, out_dir, (challenge, trial), replay, settings, screen)


def _check_engine(engine: str) -> None:
    """Refuse an unknown engine before a key is made or data are read."""
    from dpfedadamw.clipping.engines import ENGINES

    if engine not in ENGINES:
        names = ", ".join([*ENGINES, "inline"])
        refuse(f"--engine: found {engine!r}; use one of {names} or flower")


def _refuse_together(
    spec: str | None,
    resume: Path | None,
    changes: Sequence[str] | None,
    challenge: Path | None,
    replay: int | None,
    escrow: Path | None,
) -> None:
    """Refuse options that do not go together, before anything is loaded."""
    if (spec is None) == (resume is None):
        refuse("give either a SPEC or --resume RUN_DIR, not both")
    if resume is not None and changes:
        refuse("--set: a resumed run keeps its spec; start a new run to change it")
    if resume is not None and challenge is not None:
        refuse("--challenge: a resumed run keeps its challenge; give only its --escrow FILE")
    if resume is not None and replay:
        refuse(
            "--replay: finish the run first; then dpfedadamw audit RUN_DIR --replay N recomputes "
            "participations, with --escrow FILE for a run in release mode"
        )
    if challenge is not None and escrow is None:
        refuse("--challenge: also give the file that was written with the intent: --escrow FILE")


def _start(
    wanted: Spec,
    out_dir: Path,
    files: tuple[Path | None, Path | None],
    replay: int | None,
    settings: Settings,
    screen: _Screen,
) -> None:
    """Start a run of a spec, with a challenge or a trial, and take it to its signed report."""
    challenge, trial = files
    _refuse_profile(wanted, screen.spent)
    if replay and wanted.privacy.unit == "none":
        refuse(
            "--replay: this spec claims no privacy, so no participation has noise to recompute; to "
            "repeat the whole run use: dpfedadamw replay RUN_DIR"
        )
    with within("start"), loading("torch"):
        from dpfedadamw.experiment import pick_device, prepare
        from dpfedadamw.run.setup import start
        from dpfedadamw.run.start_options import StartOptions, read_trial

        options = StartOptions(escrow=settings.escrow)
        if trial is not None:
            options = StartOptions(escrow=settings.escrow, trial=read_trial(trial))
        chosen = pick_device(settings.device)
    with screen.stage("reading the data and dividing them among clients"):
        experiment = prepare(wanted, chosen)
        filing = running.load_filing(settings, screen)
        if challenge is not None:
            # Few runs are announced to an auditor in advance.
            from dpfedadamw.cli.challenge_files import read_challenged

            assert settings.escrow is not None
            challenged = read_challenged(challenge, settings.escrow, filing.signers.trainer)
            options = StartOptions(challenged=challenged)
        training = start(experiment, out_dir, settings.engine, options)
    with resumable(training.run.path, settings.escrow is not None):
        finished = running.complete(training, filing, settings, replay, screen)
        screen.show(finished, training.run)


def _refuse_profile(spec: Spec, spent: Profile | None) -> None:
    """Refuse to print times that would reveal what the claim relies on hiding."""
    hidden = spec.privacy.unit != "none" and spec.federation.client_sampling == "poisson"
    if spent is not None and hidden:
        refuse(
            "--profile: clients of this spec are drawn independently, and times would reveal how "
            "many took part; leave it out, or profile it with federation.client_sampling: fixed "
            "and privacy.unit: record"
        )


def _resume(run_dir: Path, settings: Settings, screen: _Screen) -> None:
    """Continue an interrupted run from wherever it stopped."""
    with within("start"), loading("torch"):
        from dpfedadamw.filing import after_training
        from dpfedadamw.rundir import open_existing

    run = open_existing(run_dir)
    with resumable(run.path, settings.escrow is not None):
        try:
            finished = running.resume(run, settings, screen)
        except running.ChangedSinceTrainingError as error:
            stop(f"error: {error}", EXIT_NOT_PASSED)
        if finished is not None:
            screen.show(finished, run)
            return
        err.print(Text("this run is already finished; there was nothing left to do", style="dim"))
        _stop_if_diverged(run)
        exit_by(after_training.filed_verdict(run))


@dataclass(frozen=True)
class _Screen(Watcher):
    """Shows a run in a terminal; with --json, prints nothing before the end.

    Attributes:
        as_json: Whether --json was given.
        spent: Where the time goes, for --profile; None without.
    """

    as_json: bool
    spent: Profile | None

    def stage(self, what: str) -> contextlib.AbstractContextManager[None]:
        """A line that says what is happening."""
        return status(what, quiet=self.as_json)

    def keys_made(self, files: Sequence[Path]) -> None:
        """A line for each."""
        for path in files:
            err.print(Text(f"made a signing key: {path}", style="dim"), soft_wrap=True)

    def taken_up(self, training: Training) -> None:
        """What to know about a run that is being continued."""
        _refuse_profile(training.experiment.spec, self.spent)
        if training.note is not None:
            self.note(training.note)

    def note(self, problem: str) -> None:
        """A note about what went wrong."""
        err.print(Text(f"note: {problem}", style="yellow"), soft_wrap=True)

    def not_replayed(self, error: DpfedadamwError) -> None:
        """A note of why."""
        err.print(Text(f"note: nothing was recomputed: {error}", style="yellow"))

    @contextlib.contextmanager
    def training(self, training: Training) -> Iterator[Hooks]:
        """A bar with score and ε; lines where there is no terminal."""
        from dpfedadamw.accounting.registry import rounded_up

        experiment, federation = training.experiment, training.experiment.spec.federation
        if not self.as_json:
            # A closed terminal tells nothing more to someone who waits for hours.
            err.print(Text(f"run: {relative(training.run.path)}", style="dim"), soft_wrap=True)
        hidden = self.as_json or experiment.plan.participants_hidden
        lines = TrainingLines(federation.rounds, training.completed, hidden)
        with progress_bar(quiet=self.as_json) as progress:
            task = progress.add_task("training", total=federation.rounds)
            progress.update(task, completed=training.completed)
            said = ""

            def after_round(result: Any, evaluation: Any) -> None:
                nonlocal said
                score, epsilon = score_of(evaluation), training.epsilon
                lines.round_is_over(result.completed, score, epsilon)
                spent = "" if epsilon is None else f"  ε {rounded_up(epsilon)}"
                # A round that was not evaluated leaves the last score unchanged.
                said = score or said
                text = f"training{'  ' if said else ''}{said}{spent}"
                progress.update(task, completed=result.completed, description=text)

            def after_client(done: int, chosen: int) -> None:
                # The bar also moves within a round.
                if done < chosen:
                    progress.update(task, completed=training.completed + done / chosen)

            def before_probe() -> None:
                progress.update(task, description="probing the private step")

            # Where the number of participants is hidden, the pace of the bar must not reveal it.
            shown = None if experiment.plan.participants_hidden else after_client
            yield Hooks(on_round=after_round, on_client=shown, on_probe=before_probe)

    def show(self, finished: Finished, run: RunDirectory) -> None:
        """Print the outcome of a run, and end with its verdict's exit code."""
        summary, found = finished.summary, finished.findings
        if self.spent is not None:
            summary["profile"] = self.spent.to_json()
        if self.as_json:
            print_json(summary)
        else:
            words = found["verdict"], found["qualifications"], relative(run.path)
            out.print(display.run_summary(summary, *words))
            if found["verdict"] not in ("PASS", "NO CLAIM"):
                out.print(display.findings_table(found))
            if self.spent is not None:
                out.print(display.profile(self.spent.to_json()))
        refuse_unstamped(finished.unstamped, run.path)
        _stop_if_diverged(run)
        exit_by(found["verdict"])


def _stop_if_diverged(run: RunDirectory) -> None:
    """End as a run that left no model does, whatever its audit says."""
    from dpfedadamw.filing import after_training

    if (said := after_training.divergence_of(run)) is not None:
        stop(said, EXIT_NOT_PASSED)
