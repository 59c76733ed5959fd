"""``claim``: what is printed of a judged claim, and the exit code."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from audit.extensions import claims
from dpfedadamw.cli import terminal
from tests.runs import call

READING = {
    "name": "as printed", "means": "a client in every round", "accountant": "pld",
    "towards": "third-party", "value": 4.25, "bounds": True, "relation": "covers",
}  # fmt: skip
FOUND: dict[str, Any] = {
    "verdict": "UNDERSTATED", "reason": "no reading gives as little", "remarks": ["one", "two"],
    "readings": [], "implied_noise_multiplier": {}, "unit": "record", "delta": 1e-5,
    "claimed": {"epsilon": 2.0, "times_one_query": None, "towards": "server"},
    "paper": "A Paper", "where": "Table 1", "says": "It is private.",
}  # fmt: skip


@pytest.fixture
def judged(monkeypatch):
    """Judges any claim as it is told."""
    from audit.extensions.claims import rendering

    monkeypatch.setattr(terminal.out, "_width", 200)
    monkeypatch.setattr(rendering, "facts", lambda found: [("paper", found["paper"])])

    def judge(holds: bool, **changes: Any) -> None:
        found = SimpleNamespace(holds=holds, to_json=lambda: {**FOUND, **changes})
        monkeypatch.setattr(claims, "load_claim", lambda source: source)
        monkeypatch.setattr(claims, "judge_claim", lambda source: found)

    return judge


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_says_whether_a_claim_holds_and_json_is_the_judgement(
    holds, code, judged, capsys
):
    judged(holds)
    assert call("claim", "any", "--json") == code
    assert json.loads(capsys.readouterr().out) == FOUND
    assert call("claim", "any") == code
    printed = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in printed if line.strip()] == [
        "paper A Paper", "verdict UNDERSTATED: no reading gives as little", "remark one",
        "remark two",
    ]  # fmt: skip


def test_every_reading_and_the_noise_that_it_would_need_are_told(judged, capsys):
    judged(True, readings=[READING], implied_noise_multiplier={"as printed": 1.23456})
    assert call("claim", "any") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "epsilon reading against the claim" in lines
    (row,) = [line for line in lines if line.startswith("4.25 as printed third party")]
    assert "a client in every round [pld]" in lines[lines.index(row) + 1]
    said = " ".join(lines[lines.index(row) + 2 :])
    assert "noise multiplier needed for the claimed epsilon as printed 1.235" in " ".join(
        said.split()
    )
