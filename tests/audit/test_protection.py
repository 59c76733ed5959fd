"""A claim that protects nobody says so before anything else, and its verdict stays what it was."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from audit import audit_run
from audit.__main__ import main, render
from audit.protection import (
    NO_PROTECTION_ABOVE,
    WHY,
    against,
    claimed_text,
    in_front,
    lower_bound_text,
    protects_nothing,
    unprotected,
    unprotected_by,
)
from audit.verdict import Verdict
from tests.audit.synthetic_run import Settings, build_run, rewrite_ledger

JUST_ABOVE = math.nextafter(NO_PROTECTION_ABOVE, math.inf)


def claim(**epsilons: float) -> dict[str, Any]:
    return {
        view: {"accountant": "pld", "epsilon": {"pld": epsilon, "rdp": 1e9}}
        for view, epsilon in epsilons.items()
    }


@pytest.mark.parametrize(
    ("epsilon", "claimed", "shown"),
    [
        (1.234, "1.24", "1.23"),
        (1.236, "1.24", "1.23"),
        (1.1, "1.10", "1.10"),
        (0.0, "0.00", "0.00"),
        (1e-9, "0.01", "0.00"),
        (999_999_999.999, "1000000000.00", "999999999.99"),
        (1e300, "1e+300", "1e+300"),
        (math.inf, "inf", "inf"),
    ],
)
def test_a_claim_is_printed_rounded_up_and_a_lower_bound_rounded_down(
    epsilon: float, claimed: str, shown: str
) -> None:
    assert (claimed_text(epsilon), lower_bound_text(epsilon)) == (claimed, shown)


def test_the_limit_itself_is_not_above_it() -> None:
    assert not protects_nothing(NO_PROTECTION_ABOVE)
    assert protects_nothing(JUST_ABOVE)
    assert not protects_nothing(None)


def test_the_reason_states_the_odds_of_the_limit() -> None:
    (factor,) = re.findall(r"more than (\d+) million", WHY)
    assert int(factor) * 1e6 <= math.exp(NO_PROTECTION_ABOVE) < (int(factor) + 1) * 1e6
    assert f"above {NO_PROTECTION_ABOVE:g} " in WHY


@pytest.mark.parametrize(
    ("epsilons", "found"),
    [
        ({"server_worst_case": 20.0, "server": 1e9, "third_party": 5.0}, None),
        ({"server_worst_case": JUST_ABOVE, "server": 5.0, "third_party": 5.0}, "the server"),
        ({"server_worst_case": 25.0, "server": 25.0, "third_party": JUST_ABOVE}, "anyone"),
        ({"server": 25.0, "third_party": 5.0}, "the server"),
        ({"third_party": 2.58e9}, "anyone"),
        ({}, None),
    ],
)
def test_the_worst_case_of_each_reader_decides(epsilons: dict[str, float], found: Any) -> None:
    assert unprotected(epsilons) == found
    assert unprotected_by(claim(**epsilons)) == found


@pytest.mark.parametrize("view", [None, 7, {}, {"epsilon": 1e9}, {"epsilon": {"pld": "1e9"}}])
def test_a_view_that_cannot_be_read_says_nothing(view: Any) -> None:
    assert unprotected_by({"third_party": view, "server": view}) is None
    assert unprotected_by(None) is None


def test_only_the_words_themselves_are_taken_from_a_file() -> None:
    assert against("anyone") == "anyone"
    assert against(["anyone"]) is against("nobody") is against(None) is None


def test_the_warning_comes_before_the_verdict() -> None:
    assert in_front("PASS", None) == "PASS"
    assert in_front("PASS", "anyone") == "NO MEANINGFUL PROTECTION · PASS"
    assert in_front("FAIL", "the server") == "NO MEANINGFUL PROTECTION AGAINST THE SERVER · FAIL"


def test_a_true_claim_to_a_huge_epsilon_passes_behind_the_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = build_run(tmp_path / "run", Settings(noise_multiplier=0.15))
    findings = audit_run(run)
    assert findings.named("accounting").verdict is Verdict.PASS
    assert findings.unprotected == "anyone"
    assert findings.to_json()["unprotected_against"] == "anyone"
    assert findings.to_json()["verdict"] == findings.verdict.value
    shown = render(findings).splitlines()
    assert shown[1] == f"verdict  NO MEANINGFUL PROTECTION · {findings.verdict.value}"
    assert f"note     {WHY}" in shown
    assert main([str(run), "--json"]) == (findings.verdict is not Verdict.PASS)
    assert json.loads(capsys.readouterr().out)["unprotected_against"] == "anyone"


def test_a_claim_that_protects_is_filed_as_before(good_run: Path) -> None:
    findings = audit_run(good_run)
    assert findings.unprotected is None
    assert "unprotected_against" not in findings.to_json()
    assert render(findings).splitlines()[1] == "verdict  PASS"


def test_the_second_verifier_has_the_same_limit() -> None:
    script = (Path(__file__).parents[2] / "reports/verifier/verify.mjs").read_text("utf-8")
    (limit,) = re.findall(r"NO_PROTECTION_ABOVE = ([\d.]+);", script)
    assert float(limit) == NO_PROTECTION_ABOVE


@pytest.mark.parametrize(
    "view",
    [
        {"accountant": [], "epsilon": {"pld": 1e9}},
        {"accountant": {"pld": 1}, "epsilon": {"pld": 1e9}},
        {"accountant": "pld", "epsilon": {"pld": True}},
        {"accountant": "pld", "epsilon": {"rdp": 1e9}},
        {"accountant": "pld", "epsilon": ["pld"]},
    ],
)
def test_a_claim_of_any_other_form_is_judged_and_never_a_traceback(view: Any) -> None:
    assert unprotected_by({"third_party": view}) is None


def test_a_whole_number_that_no_float_holds_protects_nobody() -> None:
    huge = {"accountant": "pld", "epsilon": {"pld": 10**400}}
    assert unprotected_by({"third_party": huge}) == "anyone"


def test_a_ledger_whose_claim_names_no_accountant_gets_a_verdict(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings(rounds=1))

    def unnamed(entries: list[dict[str, Any]]) -> None:
        entries[-1]["third_party"]["accountant"] = []

    rewrite_ledger(run, unnamed)
    findings = audit_run(run)
    assert findings.verdict is Verdict.FAIL
    assert findings.unprotected is None
