"""``epsilon`` and ``calibrate``: what they take, solve for, write and show."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from dpfedadamw import experiment
from dpfedadamw import spec as specs
from dpfedadamw.cli import cost
from dpfedadamw.run import calibrate
from dpfedadamw.run.calibrate import Calibration, Solve, View, Way
from tests.runs import call


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("federation.local_steps=1,5,20", ("federation.local_steps", [1, 5, 20])),
        (" model.name =mlp, cnn", ("model.name", ["mlp", "cnn"])),
        ("a.b=0.5", ("a.b", [0.5])),
        ("a.b", None),
        ("a.b=", None),
        ("=1,2", None),
        ("a.b=[", None),
        ("a.b=1,[2]", None),
        ("a.b=1,null", None),
    ],
)
def test_values_to_vary_are_a_key_and_numbers_or_words(text: str, found: Any) -> None:
    if found is None:
        with pytest.raises(typer.Exit) as ended:
            cost._values(text)
        assert ended.value.exit_code == 2
    else:
        assert cost._values(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, []),
        ("1", [1]),
        (" 3, 1000,2", [3, 1000, 2]),
        ("0", None),
        ("1001", None),
        ("1000000", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("1,,2", None),
    ],
)
def test_numbers_of_records_are_whole_and_at_most_a_thousand(
    text: str | None, found: list[int] | None
) -> None:
    if found is None:
        with pytest.raises(typer.Exit) as ended:
            cost._counts(text)
        assert ended.value.exit_code == 2
    else:
        assert cost._counts(text) == found


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is solved for; the spec is the one that was given."""
    asked: list[Any] = []

    def solve(spec: Any, *given: Any) -> Calibration:
        asked.append((spec.name, *given))
        return Calibration(spec, "privacy.noise_multiplier", 2.34567, 2.98164)

    monkeypatch.setattr(calibrate, "calibrate", solve)
    monkeypatch.setattr(calibrate, "for_a_person", solve)
    return asked


@pytest.mark.parametrize(
    ("flags", "asked", "named"),
    [
        ("", (View.server, Solve.noise), "ε against the server"),
        ("--view third-party", (View.third_party, Solve.noise), "ε against a third party"),
        ("--solve local-steps", (View.server, Solve.local_steps), "ε against the server"),
        ("--per-person", (), "ε of a person against the server"),
    ],
)
def test_what_is_asked_is_solved_for_written_and_told(
    flags: str,
    asked: tuple[Any, ...],
    named: str,
    solved: list[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = Path("quickstart-calibrated.yaml")
    target = ("calibrate", "quickstart", "--target-epsilon", "3", *flags.split())
    assert call(*target) == 0
    rows = dict(
        line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines() if line.strip()
    )
    assert {name: value.strip() for name, value in rows.items()} == {
        "privacy.noise_multiplier": "2.34567",
        named: "2.99  (target 3)",
        "δ": "1e-05",
        "spec": str(written),
    }
    assert specs.load(str(written)) == specs.load("quickstart")
    # Another time it is there, and nothing is solved for.
    assert call(*target) == 2
    assert capsys.readouterr().err.startswith(f"--output {written}: exists")
    assert call(*target, "-o", "other.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "spec": "other.yaml", "key": "privacy.noise_multiplier", "value": 2.34567,
        "epsilon": 2.98164,
    }  # fmt: skip
    assert solved == [("quickstart", 3.0, *asked)] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--frontier --per-person", "--frontier: cannot be given with --per-person;"),
        ("--compare-person --per-person", "--compare-person: cannot be given with --per-person;"),
        ("--frontier --compare-person", "--frontier: cannot be given with --compare-person;"),
        (
            "--frontier --vary federation.local_steps=4 --vary federation.local_steps=2",
            "--vary federation.local_steps: given twice; list all of its values once,",
        ),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --frontier, --per-person showed the noise for one record as that for a person."""
    assert call("calibrate", "quickstart", "--target-epsilon", "3", *options.split()) == 2
    shown = capsys.readouterr()
    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert shown.err.startswith(said)


def test_a_place_that_cannot_be_written_to_is_told(
    solved: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("calibrate", "quickstart", "--target-epsilon", "3", "-o", "no/where.yaml") == 2
    assert capsys.readouterr().err.startswith("--output no/where.yaml: cannot be written")


def test_both_ways_to_protect_a_person_are_shown_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = (Way("people", 1.25, 40.0, 0.03125, 2.99171), Way("records", 9.5, 1234.5, 0.0077, 3.0))
    monkeypatch.setattr(calibrate, "compare_person", lambda spec, target: ways[: int(target) - 1])
    asked = ("calibrate", "quickstart", "--target-epsilon", "3", "--compare-person")
    assert call(*asked) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line[:1] in (["people"], ["records"])]
    assert rows == [
        ["people", "1.25", "40", "0.03125", "3.00"],
        ["records", "9.5", "1,234", "0.0077", "3.00"],
    ]
    assert call(*asked, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "target_epsilon": 3.0, "ways": [asdict(way) for way in ways],
    }  # fmt: skip
    assert not list(Path().iterdir())


@pytest.mark.parametrize("as_json", [True, False])
def test_a_terminal_is_told_of_the_dearest_clients_and_a_machine_of_all(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int | None] = []
    planned = experiment.foresee(specs.load("quickstart", ["federation.rounds=1"]))

    class Plan:
        def __getattr__(self, name: str) -> Any:
            return getattr(planned, name)

        def expected_claim(self, dearest: int | None) -> Any:
            asked.append(dearest)
            return planned.expected_claim(dearest)

    monkeypatch.setattr(experiment, "foresee", lambda _: Plan())
    monkeypatch.setattr("dpfedadamw.run.headline.f_dp_of", lambda *_: None)
    assert call("epsilon", "quickstart", *(["--json"] if as_json else [])) == 0
    shown = capsys.readouterr().out
    assert asked == [None if as_json else 20]
    if as_json:
        told = json.loads(shown)
        assert told["noise_multiplier"] == planned.noise_multiplier
        assert not {"f_dp", "epsilon_by_records_of_a_person"} & set(told)
        assert len(told["server"]["clients"]) == 10
    else:
        assert "f-DP" not in shown


def test_a_search_whose_best_is_published_has_no_cost_by_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []

    def foretell(selected: Any, expected: Any, as_json: bool) -> dict[str, Any]:
        plan = SimpleNamespace(expected_claim=lambda dearest: {"dearest": dearest})
        told.append((selected, expected(plan), as_json))
        return {}

    found = SimpleNamespace(foretell_alone=foretell)
    monkeypatch.setattr("dpfedadamw.spec.matrix.load_private_selection", lambda *_: "a selection")
    monkeypatch.setattr(cost, "extension", lambda *_: found)
    assert call("epsilon", "quickstart", "--records-per-person", "2") == 2
    assert capsys.readouterr().err.startswith("--records-per-person: ")
    assert call("epsilon", "quickstart", "--json") == 0
    assert told == [("a selection", {"dearest": 1}, True)]
