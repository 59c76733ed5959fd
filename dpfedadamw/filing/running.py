"""A run taken from its first round to its signed report: what command line and Python do alike.

`complete` trains a run that was started, `resume` what is left of one that was cut off; both record
the probe, compute participations again where that is asked for, audit, report and sign
(`after_training`), and tell trackers. What is shown of it on the way is the `Watcher`'s.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpfedadamw.errors import DpfedadamwError, FilingError
from dpfedadamw.registration import extension
from dpfedadamw.storage.lock import RunLock

if TYPE_CHECKING:
    from audit.reexecution import Replay
    from dpfedadamw.federation.rounds import RoundResult
    from dpfedadamw.filing.after_training import Filing, Finished
    from dpfedadamw.run.evaluation import Evaluation
    from dpfedadamw.run.journal import Outcome
    from dpfedadamw.run.training import Training
    from dpfedadamw.rundir import RunDirectory


class ChangedSinceTrainingError(FilingError):
    """A file of a run was changed since it was trained, so nothing in it is signed again."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is computed and signed, whether it is new or was cut off.

    Attributes:
        device: "auto", "cpu", "cuda" or "mps".
        engine: How clipped sums are computed.
        escrow: A file that keeps the noise key; None for none.
        trackers: Names of trackers that are told of the run.
        trainer_key: Signs what was run; None for the key folder's.
        auditor_key: Signs what was found; None likewise.
        timestamp: Address of a time-stamping authority; None for none.
    """

    device: str
    engine: str
    escrow: Path | None
    trackers: Sequence[str]
    trainer_key: str | Path | None
    auditor_key: str | Path | None
    timestamp: str | None


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Called while a run trains.

    Attributes:
        on_round: After each round.
        on_client: After each client with (done, of the round); None for nothing.
        on_probe: Before the private step is probed; None for nothing.
    """

    on_round: Callable[[RoundResult, Evaluation], None]
    on_client: Callable[[int, int], None] | None = None
    on_probe: Callable[[], None] | None = None


class Watcher:
    """Shows progress to the user who started a run; this base class shows nothing."""

    def stage(self, _what: str) -> AbstractContextManager[None]:
        """Surrounds a stage, which is named."""
        return contextlib.nullcontext()

    def keys_made(self, files: Sequence[Path]) -> None:
        """Files of signing keys that were made just now."""

    def taken_up(self, training: Training) -> None:
        """A run that was cut off is ready to be trained; may raise where it should not be."""

    def training(self, _training: Training) -> AbstractContextManager[Hooks]:
        """Surrounds the training."""
        return contextlib.nullcontext(Hooks(on_round=lambda *_: None))

    def note(self, problem: str) -> None:
        """What went wrong in a tracker, one line; the run goes on."""

    def not_replayed(self, error: DpfedadamwError) -> None:
        """Why no participation is computed again, where nobody has asked for any."""


def load_filing(settings: Settings, watcher: Watcher) -> Filing:
    """Load the keys and ask the authority once before training, so that neither costs training.

    Raises:
        reports.errors.ReportError: If a key cannot be read, or the authority does not answer.
    """
    from dpfedadamw.filing import after_training

    signers = after_training.load_signers(settings.trainer_key, settings.auditor_key)
    watcher.keys_made(signers.created)
    return after_training.Filing(signers, after_training.authority(settings.timestamp))


def complete(
    training: Training, filing: Filing, settings: Settings, replay: int | None, watcher: Watcher
) -> Finished:
    """Train a run that was started, audit, report and sign it.

    Args:
        training: The run; its lock is let go of at the end.
        filing: What it is signed with.
        settings: How it is computed.
        replay: How many participations its audit computes again; None for `by_default`.
        watcher: Shows what goes on.

    Raises:
        DpfedadamwError: As `run.training.train` and `after_training.finish`.
    """
    from dpfedadamw.filing.after_training import finish

    with training.lock, tracked(training, settings.trackers, watcher.note) as listener:
        began = time.monotonic()
        outcome = _train(training, watcher, listener)
        seconds = time.monotonic() - began
        if replay is None:
            again = _replay_by_default(training, seconds, settings.escrow, watcher)
        else:
            again = _replay(training, replay, settings.escrow, watcher)
        finished = finish(outcome, filing, watcher.stage, again)
        listener.finished(finished.summary)
    return finished


def resume(run: RunDirectory, settings: Settings, watcher: Watcher) -> Finished | None:
    """Finish a run that was cut off, wherever that was; hold it for as long as that takes.

    Args:
        run: Its directory.
        settings: How it is computed. Keys are loaded before training, and only if something is
            left to do.
        watcher: Shows what goes on.

    Returns:
        What it came to; None where nothing was left to do.

    Raises:
        ChangedSinceTrainingError: If a file was changed since training; nothing is signed again.
        DpfedadamwError: As `complete`; or if somebody else writes to the run, or it was erased.
    """
    from dpfedadamw.filing import after_training
    from dpfedadamw.filing.earlier import refuse_erased

    refuse_erased(run)
    with contextlib.ExitStack() as opened, RunLock(run.path) as lock:
        outcome = after_training.outcome_of(run)
        if outcome is not None:
            if after_training.is_filed(run) and not lock.cut_off:
                problems = after_training.problems(run)
                changed = after_training.changed_since_training(problems)
                if changed is not None:
                    raise ChangedSinceTrainingError(f"{changed}; nothing was signed again")
                if not problems:
                    return None
            return after_training.finish(outcome, load_filing(settings, watcher), watcher.stage)
        filing = load_filing(settings, watcher)
        training = _take_up(run, lock, settings, watcher)
        listener = opened.enter_context(tracked(training, settings.trackers, watcher.note))
        outcome = _train(training, watcher, listener)
        finished = after_training.finish(outcome, filing, watcher.stage)
        listener.finished(finished.summary)
        return finished


def _take_up(run: RunDirectory, lock: RunLock, settings: Settings, watcher: Watcher) -> Training:
    """A run that was cut off before its claim, ready for its next round."""
    from dpfedadamw.experiment import pick_device
    from dpfedadamw.run import setup

    with watcher.stage("reading the data and dividing them among clients"):
        device = pick_device(settings.device)
        training = setup.resume(run, device, settings.engine, lock, settings.escrow)
    watcher.taken_up(training)
    return training


def _train(training: Training, watcher: Watcher, listener: Listener) -> Outcome:
    """Train what is left; the caller holds the lock."""
    from dpfedadamw.filing.after_training import probing_before_claim
    from dpfedadamw.run.training import train

    with watcher.training(training) as hooks:

        def after_round(result: RoundResult, evaluation: Evaluation) -> None:
            listener.round_is_over()
            hooks.on_round(result, evaluation)

        before_claim = probing_before_claim(hooks.on_probe)
        return train(training, after_round, hooks.on_client, before_claim)


def _replay(training: Training, count: int, escrow: Path | None, watcher: Watcher) -> Replay | None:
    """That participations of the run are to be computed again by its audit."""
    if not count:
        return None
    from dpfedadamw.filing.replaying import after_training

    with watcher.stage("reading the data again"):
        return after_training(training, count, escrow)


def _replay_by_default(
    training: Training, seconds: float, escrow: Path | None, watcher: Watcher
) -> Replay | None:
    """As `_replay`, for a run of which nobody said how much: what is quick and possible."""
    from dpfedadamw.filing.replaying import by_default

    try:
        return _replay(training, by_default(training, seconds), escrow, watcher)
    except DpfedadamwError as error:
        # The level says that nothing was computed again; training is not lost for it.
        watcher.not_replayed(error)
        return None


# Where trackers write, in the folder of the runs.
FOLDER = "tracking"
_MODULE = "dpfedadamw.extensions.trackers.tracking"


class Listener(Protocol):
    """What hears of a run: the extension `trackers`, where some are asked for."""

    def round_is_over(self) -> None:
        """Hear that public metrics have a line more."""
        ...

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Hear what the run came to, by what ``run --json`` prints."""
        ...


class _NoTrackers:
    """What hears of a run without trackers."""

    def round_is_over(self) -> None: ...

    def finished(self, summary: Mapping[str, Any]) -> None: ...


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that are not there, before a run begins.

    Raises:
        DpfedadamwError: If one is unknown, its library is not installed, or the extension is not.
    """
    if names:
        extension(_MODULE, f"--tracker {names[0]}").check(names)


@contextlib.contextmanager
def tracked(
    training: Training, names: Sequence[str], say: Callable[[str], None]
) -> Iterator[Listener]:
    """Trackers of a run in progress.

    Args:
        training: The run.
        names: The trackers.
        say: Called with what went wrong in one, a line each; the run goes on.
    """
    if not names:
        yield _NoTrackers()
        return
    trackers = extension(_MODULE, f"--tracker {names[0]}").Tracking(
        names,
        training.run.path.parent / FOLDER,
        training.experiment.spec,
        training.run,
        training.completed,
        training.experiment.plan.participants_hidden,
    )
    try:
        yield trackers
    finally:
        trackers.close()
        for problem in trackers.problems:
            say(problem)
