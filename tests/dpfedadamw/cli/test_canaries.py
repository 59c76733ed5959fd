"""What a terminal shows of what canaries found."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import typer

from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.cli import canaries
from tests.dpfedadamw.cli.shown import cells

if TYPE_CHECKING:
    from audit.verdict import Findings
    from dpfedadamw.rundir import RunDirectory

SCORES = {
    "scores": 1234,
    "contradicted": False,
    "noise": 0.512,
    "noise_interval": [0.911, 1.123],
    "noise_seen": 0.834,
    "contribution": 1.75,
    "epsilon_these_steps": 1.519,
    "epsilon_any_contribution": 1.26,
    "claimed_epsilon": 5.5,
}


def seen(view: str, could_contradict: bool = True) -> dict[str, Any]:
    return {
        "view": view,
        "claimed_epsilon": 5.5,
        "could_contradict": could_contradict,
        "epsilon_any_mechanism": 1.019,
        "ceiling_any_mechanism": 3.03,
        "epsilon_these_steps": 2.02,
        "ceiling_these_steps": 4.04,
    }


def shown(
    *views: dict[str, Any],
    verdict: str = "PASS",
    unit: str = "record",
    audited: str | None = None,
    **more: Any,
) -> list[list[str]]:
    details = {"unit": unit, "delta": 1e-5, "confidence": 0.95, "views": list(views), **more}
    check = {"verdict": verdict, "measurement": "what was measured", "details": details}
    order = CanaryOrder(20, "input", audited)
    return cells(canaries.summary("a-run", Path("runs/canaries/a-run"), order, check))


def row(found: list[list[str]], name: str) -> list[str]:
    """What stands behind a name."""
    (values,) = (line[1:] for line in found if line[0] == name)
    return values


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("PASS", "NOT CONTRADICTED"),
        ("FAIL", "CONTRADICTED"),
        ("NOT VERIFIED", "NOT VERIFIED"),
        ("NOT APPLICABLE", "NOT APPLICABLE"),
    ],
)
def test_the_verdict_on_the_claim_comes_first_and_why_it_is_no_pass_last(
    verdict: str, said: str
) -> None:
    found = shown(seen("releases"), verdict=verdict)
    assert found[:2] == [["a-run"], ["the claim", said]]
    assert (found[-1] == ["what was measured"]) == (verdict != "PASS")


def test_what_was_planted_where_and_in_whose_training_is_said() -> None:
    found = shown(seen("releases"), audited="the-audited-run")
    assert row(found, "canaries")[0].startswith("20 of the kind input")
    assert row(found, "audits") == ["the-audited-run"]
    assert row(found, "audit run") == ["runs/canaries/a-run"]
    assert row(shown(seen("releases")), "audits") == ["the spec"]


@pytest.mark.parametrize(
    ("unit", "released"),
    [
        ("record", "every noised gradient"),
        ("person", "every noised gradient"),
        ("client", "every noised mean"),
    ],
)
def test_each_view_has_its_claim_and_its_bounds_below_their_ceilings(
    unit: str, released: str
) -> None:
    found = shown(seen("releases"), seen("beginning"), seen("final-model", False), unit=unit)
    head = next(place for place, line in enumerate(found) if line[0] == "who sees")
    assert found[head] == ["who sees", "claimed ε", "any mechanism", "these steps"]
    bounds = ["1.01 of 3.03", "2.02 of 4.04"]
    assert found[head + 1 : head + 4] == [
        [released, "5.50", *bounds],
        ["of its first rounds alone", "5.50", *bounds],
        ["the final model", "5.50*", *bounds],
    ]
    said = " ".join(word for line in found[head + 4 :] for word in line)
    assert "δ = 1e-05 and 95% confidence" in said
    # The star is explained where there is one.
    assert "* more than 20 canaries could ever contradict" in said
    assert not any("*" in word for line in shown(seen("releases")) for word in line)


SEEN, INTERVAL, NOISE, ADDED = "0.83", "0.911 to 1.123", "0.512", "1.75"


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, {INTERVAL, SEEN}),
        ({"noise_interval": None}, {SEEN}),
        # Where the noise alone may be right, what a canary adds is what may be wrong.
        ({"contradicted": True}, {NOISE, ADDED}),
        ({"contradicted": True, "noise_interval": None}, {NOISE, ADDED}),
        ({"contradicted": True, "noise_interval": [0.4, 0.6]}, {NOISE}),
        ({"contradicted": True, "noise_interval": [1.4, 1.6]}, {NOISE}),
    ],
)
def test_scores_say_whether_the_ledger_s_steps_explain_them_and_what_would_have_been_seen(
    changes: dict[str, Any], numbers: set[str]
) -> None:
    found = shown(seen("releases"), scores={**SCORES, **changes})
    (said,) = row(found, "scores")
    words = "not explained" if "contradicted" in changes else "explained"
    assert said.startswith(f"1,234, {words} by the ledger's steps")
    assert {one for one in (SEEN, INTERVAL, NOISE, ADDED) if one in said} == numbers
    (bound,) = row(found, "ε by them")
    assert bound.startswith("at least 1.51 of these steps, 1.26 whatever")
    assert bound.endswith("claimed 5.50")


def test_secrets_that_were_there_and_that_were_not_have_a_row_each() -> None:
    there = {"exposure": 1.234, "repeated": 2, "secrets": 10, "chance": 0.0012}
    absent = {"exposure": 0.456, "repeated": 0, "secrets": 9, "chance": 0.00034}
    found = shown(
        seen("releases"), secrets={"there": there, "not_there": absent, "unseen_exposure": 1.443}
    )
    for name, parts in (
        ("secrets there", ("1.23 bits", "1.44 of an unseen", "2 of 10 repeated", "0.0012")),
        ("secrets not there", ("0.46 bits", "1.44 of an unseen", "0 of 9 repeated", "0.00034")),
    ):
        (text,) = row(found, name)
        assert all(part in text for part in parts)
    found = shown(
        seen("releases"), secrets={"there": there, "not_there": None, "unseen_exposure": 1.443}
    )
    assert [line[0] for line in found if line[0].startswith("secrets")] == ["secrets there"]


class Found:
    """What an audit found, as the command asks for it."""

    def __init__(self, verdict: str, **more: Any) -> None:
        self.verdict, self.more = verdict, more

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "checks": [CHECK], "qualifications": [], **self.more}

    def named(self, name: str) -> SimpleNamespace:
        assert name == "canaries"
        return SimpleNamespace(to_json=lambda: CHECK)


DETAILS = {"unit": "record", "delta": 1e-5, "confidence": 0.95, "views": [seen("releases")]}
CHECK = {"name": "canaries", "verdict": "PASS", "measurement": "measured", "details": DETAILS}


def ended(found: Found, as_json: bool) -> int:
    """The exit code after what was found is printed."""
    run = SimpleNamespace(identifier="a-run", path=Path("/runs/canaries/a-run"))
    order = CanaryOrder(20, "input", "the-audited-run")
    try:
        canaries._show(cast("RunDirectory", run), order, cast("Findings", found), as_json)
    except typer.Exit as end:
        return end.exit_code
    return 0


@pytest.mark.parametrize(
    ("verdict", "code"), [("PASS", 0), ("NO CLAIM", 0), ("FAIL", 1), ("NOT VERIFIED", 1)]
)
def test_every_check_is_shown_where_the_audit_is_no_pass_and_the_exit_code_says_so(
    verdict: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(Found(verdict), as_json=False) == code
    shown = capsys.readouterr().out
    assert "NOT CONTRADICTED" in shown
    assert ("what was found" in shown) == (code == 1)
    assert ended(Found(verdict), as_json=True) == code
    assert json.loads(capsys.readouterr().out) == {
        "run": "a-run",
        "directory": "/runs/canaries/a-run",
        "audited": "the-audited-run",
        "verdict": verdict,
        "canaries": CHECK,
    }


def test_json_says_against_whom_an_epsilon_protects_nobody(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(Found("PASS", unprotected_against="anyone"), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["unprotected_against"] == "anyone"
