"""What `run` makes of its options, and how it ends."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from dpfedadamw.cli import run as command
from dpfedadamw.filing import after_training
from dpfedadamw.filing.running import Settings
from dpfedadamw.rundir import RunDirectory
from tests.runs import call

LEAST = {
    "device": "auto", "engine": "auto", "escrow": None, "trackers": (), "trainer_key": None,
    "auditor_key": None, "timestamp": None,
}  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a command starts, or takes up again."""
    found: list[Any] = []
    monkeypatch.setattr(command, "_start", lambda *given: found.extend(given))
    monkeypatch.setattr(command, "_resume", lambda *given: found.extend(given))
    monkeypatch.setattr(command.running, "check_trackers", lambda names: None)
    return found


@pytest.mark.parametrize(
    ("flags", "engine", "files", "replay", "settings"),
    [
        ("", "inline", (None, None), None, {}),
        ("--engine flower", "flower", (None, None), None, {}),
        ("--engine inline --set federation.engine=flower", "inline", (None, None), None, {}),
        ("--engine loop --replay 0", "inline", (None, None), 0, {"engine": "loop"}),
        (
            "--challenge c.json --escrow key", "inline", (Path("c.json"), None), 0,
            {"escrow": Path("key")},
        ),
        (
            "--challenge c.json --escrow key --replay 4", "inline", (Path("c.json"), None), 4,
            {"escrow": Path("key")},
        ),
        ("--trial t.json", "inline", (None, Path("t.json")), 0, {}),
        (
            "--device cpu --tracker mlflow --tracker wandb --trainer-key t --auditor-key a "
            "--timestamp http://tsa --replay 7",
            "inline", (None, None), 7,
            {
                "device": "cpu", "trackers": ["mlflow", "wandb"], "trainer_key": "t",
                "auditor_key": "a", "timestamp": "http://tsa",
            },
        ),
    ],
)  # fmt: skip
def test_a_run_is_started_as_its_options_say(
    flags: str,
    engine: str,
    files: Any,
    replay: int | None,
    settings: dict[str, Any],
    started: list[Any],
) -> None:
    assert call("run", "quickstart", "--out", "there", *flags.split()) == 0
    wanted, *given, screen = started
    assert wanted.federation.engine == engine
    assert given == [Path("there"), files, replay, Settings(**{**LEAST, **settings})]
    assert (screen.as_json, screen.spent) == (False, None)


def test_a_run_is_taken_up_with_its_options_and_shown_as_asked(started: list[Any]) -> None:
    flags = ("--escrow", "key", "--replay", "0", "--json", "--profile", "--engine", "loop")
    assert call("run", "--resume", "runs/a", *flags) == 0
    folder, settings, screen = started
    assert folder == Path("runs/a")
    assert settings == Settings(**{**LEAST, "escrow": Path("key"), "engine": "loop"})
    assert screen.as_json
    assert screen.spent is not None


def test_an_unknown_engine_is_refused_before_a_key_is_made(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", "quickstart", "--engine", "fast") == 2
    assert capsys.readouterr().err == (
        "--engine: found 'fast'; use one of auto, book-keeping, opacus, vmap, loop, inline "
        "or flower\n"
    )
    assert not started


@pytest.mark.parametrize(
    ("unit", "sampling", "timed", "refused"),
    [
        ("record", "poisson", True, True),
        ("client", "poisson", True, True),
        ("record", "fixed", True, False),
        ("none", "poisson", True, False),
        ("record", "poisson", False, False),
    ],
)
def test_times_that_tell_how_many_took_part_are_shown_of_no_run_that_hides_it(
    unit: str, sampling: str, timed: bool, refused: bool
) -> None:
    spec = SimpleNamespace(
        privacy=SimpleNamespace(unit=unit), federation=SimpleNamespace(client_sampling=sampling)
    )
    with pytest.raises(typer.Exit) if refused else contextlib.nullcontext():
        command._refuse_profile(cast("Any", spec), cast("Any", "spent" if timed else None))


CLAIM = {"view_headline": "none"}
SUMMARY = {
    "run": "a-run", "test_accuracy": 0.5, "privacy": CLAIM, "engine": "loop", "level": None,
}  # fmt: skip
SPENT = {"seconds": 2.0, "parts": {"noise": 2.0}}


@pytest.mark.parametrize(
    ("verdict", "unstamped", "diverged", "code"),
    [
        ("PASS", None, None, 0),
        ("NO CLAIM", None, None, 0),
        ("FAIL", None, None, 1),
        ("NOT VERIFIED", None, None, 1),
        ("PASS", None, "training diverged", 1),
        # What is missing is told first, with the command that adds it.
        ("PASS", "no answer", "training diverged", 2),
    ],
)
@pytest.mark.parametrize("timed", [True, False])
def test_a_run_ends_with_what_it_came_to_and_the_exit_code_of_its_verdict(
    verdict: str,
    unstamped: str | None,
    diverged: str | None,
    code: int,
    timed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(after_training, "divergence_of", lambda run: diverged)
    check = {"name": "noise", "verdict": verdict, "measurement": "what was measured"}
    found = {"verdict": verdict, "qualifications": [], "checks": [check]}
    spent = SimpleNamespace(to_json=lambda: SPENT) if timed else None
    run = RunDirectory(Path("/runs/a-run"))
    for as_json in (False, True):
        finished = SimpleNamespace(summary=dict(SUMMARY), findings=found, unstamped=unstamped)
        try:
            command._Screen(as_json, cast("Any", spent)).show(cast("Any", finished), run)
        except typer.Exit as end:
            ended = end.exit_code
        else:
            ended = 0
        assert ended == code
        shown = capsys.readouterr().out
        if as_json:
            assert json.loads(shown) == {**SUMMARY, **({"profile": SPENT} if timed else {})}
        else:
            assert ("what was measured" in shown) == (verdict not in ("PASS", "NO CLAIM"))
            assert ("seconds" in shown) == timed
