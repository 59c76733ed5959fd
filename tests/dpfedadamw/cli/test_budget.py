"""What `budget show` says of what runs have spent and reserved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpfedadamw.budget import reservations
from dpfedadamw.budget.charges import epsilon_of
from dpfedadamw.budget.database import Account, Reservation
from dpfedadamw.budget.reservations import Condition, Standing
from dpfedadamw.privacy.composition import Composition
from reports.formatting import epsilon
from tests.runs import call

ACCOUNT: dict[str, Any] = {
    "data_sha256": "ab" * 32, "dataset": "[stays]", "unit": "record", "adjacency": "add-remove",
    "partition_sha256": None, "epsilon": 4.0, "delta": 1e-5,
}  # fmt: skip
COSTS = (Composition(2.0, 0.1, 30),), (Composition(4.0, 1.0, 1), Composition(2.0, 0.5, 6))


def standing(**account: Any) -> Standing:
    """One run that is settled and one that still holds what it reserved."""
    runs = [
        Reservation(
            identifier=f"{number}" * 32, data_sha256="ab" * 32, run=f"run-{number}",
            directory=f"/runs/run-{number}", machine="here", state=state, cost=cost,
        )
        for number, (state, cost) in enumerate(zip(("settled", "running"), COSTS, strict=True))
    ]  # fmt: skip
    known = tuple(zip(runs, (Condition.settled, Condition.stopped), strict=True))
    return Standing(Account(**{**ACCOUNT, **account}), known, 1.25, 3.5004, {"pld": 3.5004})


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> list[Standing]:
    """What the budget holds."""
    found: list[Standing] = []
    asked: list[Path] = []

    def standings(path: Path) -> list[Standing]:
        asked.append(path)
        assert asked == [Path("budget.sqlite")] * len(asked)
        return found

    monkeypatch.setattr(reservations, "standings", standings)
    return found


def test_a_machine_is_told_all_of_every_budget(
    stands: list[Standing], capsys: pytest.CaptureFixture[str]
) -> None:
    stands.append(standing())
    assert call("budget", "show", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == "budget.sqlite"
    (budget,) = told["budgets"]
    runs = budget.pop("runs")
    assert budget == {
        **{name: value for name, value in ACCOUNT.items() if name != "partition_sha256"},
        "spent": 1.25,
        "charged": 3.5004,
        "charged_by_accountant": {"pld": 3.5004},
        "left": pytest.approx(0.4996),
    }
    for number, (run, cost) in enumerate(zip(runs, COSTS, strict=True)):
        assert [event["steps"] for event in run.pop("events")] == [one.steps for one in cost]
        assert run == {
            "run": f"run-{number}",
            "directory": f"/runs/run-{number}",
            "reservation": f"{number}" * 32,
            "state": ("settled", "stopped")[number],
            "settled": not number,
            "epsilon_alone": pytest.approx(epsilon_of([cost], 1e-5)),
        }


@pytest.mark.parametrize(
    ("unit", "reader"),
    [("record", "the server"), ("person", "the server"), ("client", "a third party")],
)
def test_a_terminal_shows_whom_it_protects_what_is_left_rounded_down_and_each_run(
    unit: str, reader: str, stands: list[Standing], capsys: pytest.CaptureFixture[str]
) -> None:
    stands.append(standing(unit=unit))
    assert call("budget", "show") == 0
    shown = capsys.readouterr().out
    rows = [" ".join(line.strip("│╭╮╰╯─ ").split()) for line in shown.splitlines()]
    rows = [row for row in rows if row]
    assert rows[0].startswith("[stays] abababababab…")
    alone = [epsilon(epsilon_of([cost], 1e-5)) for cost in COSTS]
    assert rows[1:] == [
        f"budget ε = 4 at δ = 1e-05, against {reader}",
        f"protects one {unit}, add-remove",
        "spent 1.25",
        f"spent or reserved {epsilon(3.5004)}",
        "left 0.499",
        "run state ε alone",
        f"run-0 settled {alone[0]} spent",
        f"run-1 stopped {alone[1]} reserved",
    ]


def test_no_text_of_a_budget_is_taken_for_markup(
    stands: list[Standing], capsys: pytest.CaptureFixture[str]
) -> None:
    stands.append(standing(data_sha256="[/red]abc", dataset="[bold", adjacency="[/x]"))
    assert call("budget", "show") == 0
    shown = capsys.readouterr().out
    assert "[bold [/red]abc…" in shown
    assert "one record, [/x]" in shown


def test_a_budget_of_which_nothing_was_reserved_says_so(
    stands: list[Standing], capsys: pytest.CaptureFixture[str]
) -> None:
    assert not stands
    assert call("budget", "show") == 0
    assert capsys.readouterr().out.startswith("budget.sqlite: ")
    assert call("budget", "show", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"file": "budget.sqlite", "budgets": []}
