"""The auditor and the second verifier judge a gate's ledger alike, and name what is wrong."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from audit.extensions.gate import judge_gate, judgement
from audit.verdict import Verdict
from dpfedadamw.extensions.gate import book
from reports.signatures.keys import public_pem
from reports.verifier import texts
from tests.audit.extensions.gate.forgeries import CASES, begun, sign_again, write
from tests.audit.synthetic_run import rewrite_ledger
from tests.conformance.test_conformance import _spoilt
from tests.runs import call

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The ledgers, by case, and the public key of the gate that made them."""
    root = tmp_path_factory.mktemp("gates")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDADAMW_KEYS", str(root / "keys"))
        return write(root / "folders"), public_pem(book.load_key().private.public_key())


def _second(what, given):
    """What verify.mjs makes of folders."""
    done = subprocess.run(
        ["node", str(ROOT / "tests" / "conformance" / "judge.mjs"), what],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _named(found, verdict):
    return tuple(one.name for one in found.findings if one.verdict is verdict)


@pytest.mark.parametrize("name", CASES)
def test_the_check_that_is_broken_is_named(folders, name):
    case, found = CASES[name], judge_gate(folders[0][name])
    assert _named(found, Verdict.FAIL) == case.fails
    assert _named(found, Verdict.NOT_VERIFIED) == case.unverified
    good = not case.fails and not case.unverified
    assert (found.verdict is Verdict.PASS) == good
    assert found.level is None


@pytest.mark.skipif(shutil.which("node") is None, reason="the second verifier needs Node")
def test_the_second_verifier_says_the_same(folders):
    found = _second("folders", [str(one) for one in folders[0].values()])
    told = {name: found[str(folder)] for name, folder in folders[0].items()}
    page = (ROOT / "docs" / "format.md").read_text("utf-8")
    assert f"agree on {len(CASES)} ledgers" in page
    said = {name: (one["outcome"], one["claim"]) for name, one in told.items()}
    assert said == {name: (case.outcome, case.claim) for name, case in CASES.items()}
    (view,) = told["correct"]["views"]
    (budget,) = (one for one in judge_gate(folders[0]["correct"]).findings if one.name == "budget")
    assert view["costs"] == pytest.approx(budget.details["epsilon"], rel=3e-3)


def test_a_ledger_of_somebody_else_passes_only_where_no_key_was_given(
    folders, tmp_path, monkeypatch
):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "other"))
    forged = begun(tmp_path / "forged")
    found = judge_gate(forged)
    assert found.verdict is Verdict.PASS
    assert any("is from the folder itself" in text for text in found.qualifications)
    assert _named(judge_gate(forged, folders[1]), Verdict.FAIL) == ("signature",)


def test_a_ledger_rolled_back_with_its_head_passes_only_where_no_anchor_was_given(
    folders, tmp_path
):
    shutil.copytree(folders[0]["correct"], tmp_path / "now")
    anchor = (tmp_path / "now" / "head.json").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDADAMW_KEYS", str(folders[0]["correct"].parents[1] / "keys"))
        rewrite_ledger(tmp_path / "now", lambda entries: entries.__delitem__(slice(-4, None)))
        sign_again(tmp_path / "now")
    assert judge_gate(tmp_path / "now").verdict is Verdict.PASS
    assert _named(judge_gate(tmp_path / "now", anchor=anchor), Verdict.FAIL) == ("signature",)
    (tmp_path / "anchor").write_bytes(anchor)
    if shutil.which("node") is not None:
        codes = [
            subprocess.run(
                ["node", ROOT / "reports" / "verifier" / "verify.mjs", folder, *given],
                capture_output=True,
                check=False,
            ).returncode
            for folder in (tmp_path / "now", folders[0]["correct"])
            for given in ((), ("--gate-anchor", tmp_path / "anchor"))
        ]
        assert codes == [3, 1, 3, 3]


def test_a_budget_that_protects_nobody_is_said_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))
    folder = begun(
        tmp_path / "gate", noise_multiplier=0.3, budget={"epsilon": 1000.0, "delta": 1e-5}
    )
    assert call("audit", str(folder)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "NO MEANINGFUL PROTECTION · PASS" in said
    assert "ε is about one record, added or removed; it holds against the server" in said


def test_without_the_engine_the_same_is_said(folders, tmp_path):
    (tmp_path / "gate.pub").write_bytes(folders[1])
    folder = folders[0]["overspent"]
    done = subprocess.run(
        [sys.executable, "-m", "audit", str(folder), "--key", str(tmp_path / "gate.pub"), "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found == judge_gate(folder, folders[1]).to_json()
    assert "overspent: ε = 0.4" in found["checks"][-1]["measurement"]


def test_options_of_a_gate_belong_to_a_gate(folders, tmp_path, capsys):
    assert call("audit", str(tmp_path), "--anchor", "x") == 2
    assert "belong to the folder of a gate" in capsys.readouterr().err
    assert call("audit", str(folders[0]["correct"]), "--write") == 2
    assert "is a gate's folder" in capsys.readouterr().err
    assert call("verify", str(folders[0]["correct"])) == 2
    assert "judge it with: dpfedadamw audit" in capsys.readouterr().err.replace("\n", " ")


def test_a_correct_gate_is_blamed_no_more_often_than_stated():
    counts = np.random.default_rng(2).binomial(650, 0.5, 50_000)
    alarm = 0.01
    blamed = np.mean([judgement._surprise(int(one), 650) > math.log(1 / alarm) for one in counts])
    assert blamed <= alarm
    # With three quarters of the noise, 63 % of the numbers move by less than its median.
    counts = np.random.default_rng(3).binomial(6 * 650, 0.631, 1_000)
    bound = math.log(7 / judgement._ALARM)
    assert np.mean([judgement._surprise(int(one), 6 * 650) > bound for one in counts]) > 0.999


@pytest.mark.parametrize("numbers", [650, 6 * 650, 10**6])
def test_noise_below_the_part_that_is_told_is_blamed_and_hardly_more(numbers):
    told = float(re.search(r"less than (\d+)% of", judgement._power(numbers))[1]) / 100.0
    bound = math.log((judgement.KEPT + 1) / judgement._ALARM)

    def below_the_median(scale):
        """Share of noise of this scale that moves a number by less than the charged median."""
        return 2.0 * stats.norm.cdf(stats.norm.ppf(0.75) / scale) - 1.0

    # Once in ten thousand audits such noise passes; what is told has two digits.
    least = stats.binom.ppf(1e-4, numbers, below_the_median(told - 0.005))
    assert judgement._surprise(int(least), numbers) > bound
    # Half of the audits would see as much, or four standard errors of the share less.
    more = below_the_median(told + 0.005) - 4.0 * 0.5 / math.sqrt(numbers)
    assert more > 0.5
    assert judgement._surprise(int(more * numbers), numbers) < 1.2 * bound


def test_too_few_numbers_are_said_to_show_nothing():
    assert "too few" in judgement._power(80)
    assert "less than" in judgement._power(100)


@pytest.mark.skipif(shutil.which("node") is None, reason="the second verifier needs Node")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", [0, 20, 40])
def test_on_small_changes_both_verifiers_agree(first, folders, tmp_path):
    made = {}
    for seed in range(first, first + 20):
        shutil.copytree(folders[0]["correct"], tmp_path / str(seed))
        made[str(tmp_path / str(seed))] = _spoilt(tmp_path / str(seed), random.Random(seed))
    found = _second("folders", list(made))
    wrong = []
    for path, what in made.items():
        good = found[path]["outcome"] != "NOT VALID" and found[path]["claim"] == "AGREES"
        first = judge_gate(Path(path))
        if good != (first.verdict is Verdict.PASS):
            wrong.append((what, found[path]["lines"], [one.measurement for one in first.findings]))
    assert wrong == []


@pytest.mark.skipif(shutil.which("node") is None, reason="the second verifier needs Node")
def test_every_sentence_about_a_ledger_is_one_of_the_table(folders):
    found = _second("sentences", [str(one) for one in folders[0].values()])
    told = {one for one in found if not re.fullmatch(r"-?\d[\d.e+-]*", one)}
    assert told <= {*texts()}
    assert len(told) > 10
