"""What a log holds of a run in training."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from dpfedadamw.cli.training_lines import TrainingLines, score_of
from tests.runs import call, small_spec


class Times:
    """A clock and a time of day that go on together."""

    def __init__(self, start: str) -> None:
        self.start, self.seconds = datetime.fromisoformat(start), 0.0

    def clock(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.seconds)


def logged(
    capsys,
    rounds,
    seconds_a_round,
    completed=0,
    hidden=False,
    start="2026-03-01T10:00:00",
    epsilon=None,
):
    times = Times(start)
    lines = TrainingLines(rounds, completed, hidden, times.clock, times.now)
    for number in range(completed + 1, rounds + 1):
        times.seconds += seconds_a_round
        score = f"accuracy {number / 100:.1%}" if number % 2 == 0 else None
        lines.round_is_over(number, score, epsilon)
    return capsys.readouterr().err.splitlines()


def test_a_line_every_half_minute_says_how_far_and_when_training_ends(capsys):
    assert logged(capsys, rounds=7, seconds_a_round=14) == [
        "10:00:42  round 3 of 7, test accuracy 2.0%, training ends about 10:01",
        "10:01:24  round 6 of 7, test accuracy 6.0%, training ends about 10:01",
    ]


def test_a_line_says_what_the_rounds_so_far_spent(capsys):
    (line,) = logged(capsys, rounds=1, seconds_a_round=60, epsilon=1.2301)
    assert line == "10:01:00  round 1 of 1, ε 1.231"


def test_rounds_that_were_over_before_do_not_count_for_the_time(capsys):
    assert logged(capsys, rounds=12, seconds_a_round=600, completed=10) == [
        "10:10:00  round 11 of 12, training ends about 10:20",
        "10:20:00  round 12 of 12, test accuracy 12.0%",
    ]


def test_an_end_on_another_day_has_its_date(capsys):
    first, _ = logged(capsys, rounds=2, seconds_a_round=3600, start="2026-03-01T22:30:00")
    assert first == "23:30:00  round 1 of 2, training ends about 02 March 00:30"


@pytest.mark.parametrize("case", ["short", "hidden"])
def test_short_runs_and_hidden_participation_have_no_lines(capsys, case):
    hidden = case == "hidden"
    assert logged(capsys, rounds=2, seconds_a_round=600 if hidden else 14, hidden=hidden) == []


@pytest.mark.parametrize(
    ("changes", "hidden"), [((), False), (("federation.client_sampling=poisson",), True)]
)
def test_a_run_says_its_folder_first_and_hides_what_a_time_would_tell(
    tmp_path, capsys, monkeypatch, changes, hidden
):
    from dpfedadamw import spec as specs
    from dpfedadamw.cli import training_lines

    monkeypatch.setattr(training_lines, "EVERY_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        specs.dump(small_spec(rounds=2, clients_per_round=1, overrides=changes))
    )
    assert call("run", "s.yaml") == 0
    said = capsys.readouterr().err.splitlines()
    first, *more = (line for line in said if not line.startswith("made a signing key: "))
    assert first.startswith("run: runs/small-")
    assert len(more) == (0 if hidden else 2)


class Bar:
    """A progress bar that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, description: str, total: int) -> int:
        self.told.append({"description": description, "total": total})
        return 0

    def update(self, _task: int, **more: Any) -> None:
        self.told.append(more)


def watched(monkeypatch, tmp_path, epsilons, hidden=False):
    """A bar, and the hooks of a run of four rounds that goes on after its first."""
    from dpfedadamw.cli import run as command

    bar = Bar()
    monkeypatch.setattr(command, "progress_bar", lambda quiet: bar)
    experiment = SimpleNamespace(
        spec=SimpleNamespace(federation=SimpleNamespace(rounds=4)),
        plan=SimpleNamespace(participants_hidden=hidden),
    )
    training = SimpleNamespace(
        experiment=experiment, run=SimpleNamespace(path=tmp_path), completed=1, epsilon=None
    )
    with command._Screen(as_json=False, spent=None).training(training) as hooks:
        for completed, (epsilon, accuracy) in enumerate(epsilons, start=2):
            training.epsilon = epsilon
            scored = SimpleNamespace(accuracy=accuracy, measures={})
            hooks.on_round(SimpleNamespace(completed=completed), scored)
    return bar, hooks


def test_the_bar_says_the_last_score_and_what_was_spent_rounded_up(monkeypatch, tmp_path):
    rounds = [(1.2301, 0.5), (1.5, None), (None, None)]
    bar, _ = watched(monkeypatch, tmp_path, rounds)
    assert bar.told[:2] == [{"description": "training", "total": 4}, {"completed": 1}]
    assert bar.told[2:] == [
        {"completed": 2, "description": "training  accuracy 50.0%  ε 1.231"},
        {"completed": 3, "description": "training  accuracy 50.0%  ε 1.500"},
        {"completed": 4, "description": "training  accuracy 50.0%"},
    ]
    bar, _ = watched(monkeypatch, tmp_path, [(1.25, None)])
    assert bar.told[-1]["description"] == "training  ε 1.250"


def test_the_bar_moves_within_a_round_unless_who_takes_part_is_hidden(monkeypatch, tmp_path):
    bar, hooks = watched(monkeypatch, tmp_path, [])
    hooks.on_client(1, 4)
    assert bar.told[-1] == {"completed": 1.25}
    hooks.on_client(4, 4)
    assert bar.told[-1] == {"completed": 1.25}
    _, hooks = watched(monkeypatch, tmp_path, [], hidden=True)
    assert hooks.on_client is None


def test_a_score_is_the_accuracy_or_the_error_of_numbers_or_nothing():
    def said(accuracy, **measures):
        return score_of(SimpleNamespace(accuracy=accuracy, measures=measures))

    assert said(0.1234, rmse=1.0) == "accuracy 12.3%"
    assert said(0.0) == "accuracy 0.0%"
    assert said(None, rmse=1.23456, mae=9.0) == "RMSE 1.235"
    assert said(None, mae=9.0) is None
