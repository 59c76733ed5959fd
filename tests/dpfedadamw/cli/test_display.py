"""What a terminal shows first of an ε that protects nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.cli import canaries, display

WARNING = "NO MEANINGFUL PROTECTION"


def claim(epsilon: float, **more: Any) -> dict[str, Any]:
    view = {"accountant": "pld", "epsilon": {"pld": epsilon}}
    views = dict.fromkeys(("server", "server_worst_case", "third_party"), view)
    return {
        "view_headline": "server", "adjacency": "add-remove", "delta": 1e-5, **views, **more
    }  # fmt: skip


@pytest.mark.parametrize(("epsilon", "warned"), [(20.0, False), (20.1, True), (2.58e9, True)])
def test_the_first_row_of_a_claim_warns(epsilon: float, warned: bool) -> None:
    first = display.privacy_rows(claim(epsilon))[0][0]
    assert first == (WARNING if warned else "ε against the server")


@pytest.mark.parametrize(("epsilon", "warned"), [(20.0, False), (20.1, True), (None, False)])
def test_the_person_with_most_records_is_warned_of(epsilon: float | None, warned: bool) -> None:
    person = {"records": 3, "epsilon": epsilon}
    rows = {name: str(value) for name, value in display.privacy_rows(claim(7.0, person=person))}
    assert rows["a person with 3"].startswith(WARNING) == warned
    assert WARNING not in rows


def test_a_verdict_stands_behind_the_warning_and_is_not_green() -> None:
    shown = display.verdict_at_level("PASS", 2, "anyone")
    assert shown.plain == f"{WARNING} · PASS · level 2 of 4, re-executed"
    styles = " ".join(str(span.style) for span in shown.spans)
    assert "red" in styles
    assert "green" not in styles
    assert display.verdict_at_level("PASS", 2).plain.startswith("PASS · ")
    assert "green" not in str(display.verdict_text(f"{WARNING} · PASS").style)


@pytest.mark.parametrize(
    ("epsilons", "first"),
    [((20.0, 3.0), "the claim"), ((21.0, 3.0), f"{WARNING} AGAINST"), ((21.0, 21.0), WARNING)],
)
def test_canaries_say_first_that_a_claim_which_they_do_not_contradict_protects_nobody(
    epsilons: tuple[float, float], first: str
) -> None:
    bounds = {"epsilon_any_mechanism": 1.0, "epsilon_these_steps": 1.0}
    ceilings = {"ceiling_any_mechanism": 2.0, "ceiling_these_steps": 2.0}
    views = [
        {"view": view, "claimed_epsilon": epsilon, "could_contradict": True, **bounds, **ceilings}
        for view, epsilon in zip(("releases", "final-model"), epsilons, strict=True)
    ]
    details = {"unit": "record", "delta": 1e-5, "confidence": 0.95, "views": views}
    check = {"verdict": "PASS", "measurement": "", "details": details}
    console = Console(width=160)
    with console.capture() as shown:
        console.print(canaries.summary("run", Path("runs"), CanaryOrder(20, "gradient"), check))
    assert shown.get().splitlines()[2].strip("│ ").startswith(first)
