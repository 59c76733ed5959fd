"""The course of a run from its first round to its report, and of one that was cut off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.filing import after_training, replaying, running
from dpfedadamw.filing.running import ChangedSinceTrainingError, Settings, Watcher
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.lock import LockedError, RunLock
from reports.signatures.inventory import Problem

SETTINGS = Settings(
    device="cpu", engine="auto", escrow=Path("key"), trackers=(), trainer_key=None,
    auditor_key=None, timestamp=None,
)  # fmt: skip
FINISHED = SimpleNamespace(summary={"run": "a-run"})


class Noted(Watcher):
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def note(self, problem: str) -> None:
        self.shown.append(("note", problem))

    def not_replayed(self, error: DpfedadamwError) -> None:
        self.shown.append(("not replayed", str(error)))


class Trackers:
    """Stands for the extension: notes what it is told, and had a problem."""

    problems = ("mlflow: no answer", "wandb: full")

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def round_is_over(self) -> None:
        self.told.append("round")

    def finished(self, summary: Any) -> None:
        self.told.append(summary)

    def close(self) -> None:
        self.told.append("closed")


@pytest.fixture
def trackers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the extension of trackers is told, by whatever asks for it."""
    told: list[Any] = []

    def tracking(*given: Any) -> Trackers:
        told.append(given)
        return Trackers(told)

    found = SimpleNamespace(Tracking=tracking, check=lambda names: told.append(names))
    monkeypatch.setattr(running, "extension", lambda *_: found)
    return told


def training(**more: Any) -> Any:
    experiment = SimpleNamespace(spec="spec", plan=SimpleNamespace(participants_hidden=True))
    run = SimpleNamespace(path=Path("runs/a-run"))
    return SimpleNamespace(
        lock=contextlib.nullcontext(), run=run, experiment=experiment, completed=3, **more
    )


def test_trackers_are_told_of_the_run_closed_and_their_problems_said_whatever_ends_it(
    trackers: list[Any],
) -> None:
    said: list[str] = []
    wanted = training()

    def cut_off() -> None:
        with running.tracked(wanted, ["mlflow", "wandb"], said.append) as listener:
            listener.round_is_over()
            assert said == []
            raise ValueError("of ours")

    with pytest.raises(ValueError, match="of ours"):
        cut_off()
    given, *rest = trackers
    assert given == (["mlflow", "wandb"], Path("runs/tracking"), "spec", wanted.run, 3, True)
    assert rest == ["round", "closed"]
    assert said == list(Trackers.problems)


def test_without_trackers_nothing_is_loaded_and_nobody_told(trackers: list[Any]) -> None:
    running.check_trackers([])
    with running.tracked(training(), (), trackers.append) as listener:
        listener.round_is_over()
        listener.finished({})
    assert trackers == []
    running.check_trackers(["mlflow"])
    assert trackers == [["mlflow"]]


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is signed at the end; training itself is left out, and a filing needs no keys."""
    found: list[Any] = []

    def finish(outcome: Any, filing: Any, stage: Any, replay: Any = None) -> Any:
        assert filing == "filing"
        found.append((outcome, replay))
        return FINISHED

    monkeypatch.setattr(running, "_train", lambda of, *_: f"trained {of.completed}")
    monkeypatch.setattr(running, "_take_up", lambda run, *_: training())
    monkeypatch.setattr(running, "load_filing", lambda *_: "filing")
    monkeypatch.setattr(after_training, "finish", finish)
    return found


@pytest.mark.parametrize(
    ("asked", "by_default", "replay", "noted"),
    [
        (None, 20, ("again", 20, Path("key")), False),
        (None, 0, None, False),
        (None, DpfedadamwError("the data are gone"), None, True),
        (0, 20, None, False),
        (3, 20, ("again", 3, Path("key")), False),
    ],
)
def test_participations_are_computed_again_as_asked_and_else_where_that_is_quick(
    asked: int | None,
    by_default: int | DpfedadamwError,
    replay: Any,
    noted: bool,
    finished: list[Any],
    trackers: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def suggested(_training: Any, seconds: float) -> int:
        assert 0 <= seconds < 60
        if isinstance(by_default, DpfedadamwError):
            raise by_default
        return by_default

    monkeypatch.setattr(replaying, "by_default", suggested)
    monkeypatch.setattr(replaying, "after_training", lambda _, count, kept: ("again", count, kept))
    watcher = Noted()
    given = Settings(**{**vars(SETTINGS), "trackers": ["mlflow"]})
    found = running.complete(training(), "filing", given, asked, watcher)  # type: ignore[arg-type]
    assert found is FINISHED
    assert finished == [("trained 3", replay)]
    assert trackers[1:] == [FINISHED.summary, "closed"]
    assert [what for what, _ in watcher.shown] == ["not replayed"] * noted + ["note", "note"]


def test_what_was_asked_to_be_computed_again_and_cannot_be_is_an_error(
    finished: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise DpfedadamwError("the data are gone")

    monkeypatch.setattr(replaying, "after_training", gone)
    with pytest.raises(DpfedadamwError, match="the data are gone"):
        running.complete(training(), "filing", SETTINGS, 2, Noted())  # type: ignore[arg-type]
    assert finished == []


HARMLESS = Problem("report.pdf", "changed since attestation.json was signed")
CHANGED = Problem("model.safetensors", "changed since training.attestation.json was signed")


@pytest.mark.parametrize(
    ("outcome", "filed", "cut_off", "problems", "ends"),
    [
        (None, False, False, [], "trained 3"),
        ("over", False, False, [], "over"),
        ("over", True, False, [], None),
        ("over", True, False, [HARMLESS], "over"),
        ("over", True, True, [], "over"),
        ("over", True, False, [HARMLESS, CHANGED], ChangedSinceTrainingError),
    ],
    ids=["in training", "before its audit", "whole", "half filed", "killed while filed", "changed"],
)
def test_a_run_is_taken_up_where_it_was_cut_off_and_left_alone_where_nothing_is_left(
    outcome: str | None,
    filed: bool,
    cut_off: bool,
    problems: list[Problem],
    ends: Any,
    finished: list[Any],
    trackers: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if cut_off:
        (tmp_path / ".unfinished").mkdir()
    monkeypatch.setattr(after_training, "outcome_of", lambda _: outcome)
    monkeypatch.setattr(after_training, "is_filed", lambda _: filed)
    monkeypatch.setattr(after_training, "problems", lambda _: tuple(problems))
    run = RunDirectory(tmp_path)
    given = Settings(**{**vars(SETTINGS), "trackers": ["mlflow"]})
    if ends is ChangedSinceTrainingError:
        with pytest.raises(ChangedSinceTrainingError, match=r"model\.safetensors: changed since"):
            running.resume(run, given, Noted())
        assert finished == []
    elif ends is None:
        assert running.resume(run, given, Noted()) is None
        assert finished == []
    else:
        assert running.resume(run, given, Noted()) is FINISHED
        assert finished == [(ends, None)]
    # Trackers hear of training alone.
    assert trackers[1:] == ([FINISHED.summary, "closed"] if outcome is None else [])
    with RunLock(tmp_path):
        pass


def test_a_run_that_somebody_writes_to_is_not_taken_up(
    finished: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(after_training, "outcome_of", lambda _: "over")
    monkeypatch.setattr(after_training, "is_filed", lambda _: False)

    @contextlib.contextmanager
    def held() -> Iterator[None]:
        with RunLock(tmp_path):
            yield

    with held(), pytest.raises(LockedError):
        running.resume(RunDirectory(tmp_path), SETTINGS, Noted())
    assert finished == []


def test_a_watcher_that_shows_nothing_lets_everything_go_on() -> None:
    watcher = Watcher()
    with watcher.stage("reading"), watcher.training(training()) as hooks:
        hooks.on_round("result", "evaluation")  # type: ignore[arg-type]
    assert (hooks.on_client, hooks.on_probe) == (None, None)
