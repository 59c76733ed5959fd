"""What is said of cells: of those that run, of those that ended, and when the rest may."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from dpfedadamw.extensions.sweeps.commands.progress import duration, line_of, progress
from reports import run_rows


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"test_accuracy": 0.5, "audit": "PASS"}, "50.0%"),
        ({"test_accuracy": None, "test_rmse": 0.123456, "audit": "PASS"}, "RMSE 0.1235"),
        ({"test_accuracy": None, "audit": "PASS"}, "no accuracy"),
    ],
)
def test_a_cell_that_is_done_says_its_accuracy_or_its_error(row, said):
    folder, cell = SimpleNamespace(result=lambda: row), SimpleNamespace(label="rate 1")
    job = SimpleNamespace(state="done", folder=folder, cell=cell, seconds=3.0)
    assert line_of(job, [job]).plain == f"1/1  rate 1: {said}, audit PASS, 3 s"


@pytest.mark.parametrize(
    ("party", "server", "audit"),
    [
        (5.0, 20.0, "PASS"),
        (5.0, 20.5, "NO MEANINGFUL PROTECTION AGAINST THE SERVER · PASS"),
        (2.58e9, 2.58e9, "NO MEANINGFUL PROTECTION · PASS"),
        (None, None, "PASS"),
    ],
)
def test_an_epsilon_that_protects_nobody_is_said_before_the_verdict(party, server, audit):
    row = {"audit": "PASS", "epsilon_third_party": party, "epsilon_server_worst_case": server}
    assert run_rows.judged(row) == audit


def job_of(state: str, label: str = "rate 1", seconds: float = 0.0, **more: Any) -> Any:
    """A cell of 20 rounds, of which some are completed."""
    completed, accuracy = more.pop("completed", 0), more.pop("accuracy", None)
    folder = SimpleNamespace(completed_rounds=lambda: (completed, accuracy), result=lambda: None)
    spec = SimpleNamespace(federation=SimpleNamespace(rounds=20))
    cell = SimpleNamespace(label=label, spec=spec)
    return SimpleNamespace(state=state, folder=folder, cell=cell, seconds=seconds, **more)


def printed(jobs: list[Any], width: int, earlier: int = 0, processes: int = 1) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as shown:
        console.print(progress(jobs, earlier, processes))
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.mark.parametrize("label", ["one of many words " * 6, "unbroken" * 12])
def test_a_long_label_is_shown_whole_and_numbers_next_to_it_are_never_broken(label: str) -> None:
    job = job_of("running", label, 118.0, completed=13, accuracy=0.5125)
    first, *rest = printed([job], width=46)
    assert first.endswith("round 13 of 20  accuracy 51.2%  118 s")
    begun = first.removesuffix("round 13 of 20  accuracy 51.2%  118 s")
    below = "0 of 1 cells done"
    assert "".join([begun, *rest]).replace(" ", "") == (label + below).replace(" ", "")


@pytest.mark.parametrize(
    ("completed", "accuracy", "said"),
    [
        (0, None, ["round 0 of 20"]),
        (19, 0.0, ["round 19 of 20", "accuracy 0.0%"]),
        (20, 1.0, ["audit and report", "accuracy 100.0%"]),
    ],
)
def test_what_runs_is_told_by_its_rounds_and_what_does_not_run_is_not_listed(
    completed: int, accuracy: float | None, said: list[str]
) -> None:
    others = [job_of(state, f"other {state}") for state in ("waiting", "elsewhere", "failed")]
    jobs = [*others, job_of("running", "mine", 4.0, completed=completed, accuracy=accuracy)]
    row, last = printed(jobs, width=100)
    assert row.split() == " ".join(["mine", *said, "4 s"]).split()
    assert last == "0 of 4 cells done"


def test_the_rest_takes_as_long_as_those_that_ended_shared_among_the_processes() -> None:
    ended = [job_of("done", seconds=100.0), job_of("done", seconds=200.0)]
    left = [job_of(state) for state in ("waiting", "elsewhere")]
    failed, skipped = job_of("failed", seconds=900.0), job_of("done", seconds=0.0)
    jobs = [*ended, *left, failed, skipped]
    assert printed(jobs, 100, earlier=1) == ["3 of 6 cells done; the rest in about 5 min"]
    two = printed(jobs, 100, earlier=1, processes=2)
    assert two == ["3 of 6 cells done; the rest in about 2 min"]
    assert printed(left, 100) == ["0 of 2 cells done"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"),
        (119.4, "119 s"),
        (120.0, "2 min"),
        (7199.0, "120 min"),
        (7200.0, "2.0 h"),
        (9000.0, "2.5 h"),
    ],
)
def test_a_span_of_time_has_the_unit_that_suits_it(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_cell_that_failed_says_why_and_one_that_another_runs_says_so() -> None:
    failed, elsewhere = job_of("failed", said="no memory"), job_of("elsewhere")
    jobs = [failed, elsewhere, job_of("done", seconds=3.0)]
    assert line_of(failed, jobs).plain == "1/3  rate 1: failed: no memory"
    assert line_of(elsewhere, jobs).plain.startswith("1/3  rate 1: another sweep")
