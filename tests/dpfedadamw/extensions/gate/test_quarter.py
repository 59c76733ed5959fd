"""A signed page says who took how much of the budget, and is verified as other PDFs are."""

from __future__ import annotations

import io
import json
from datetime import date

import pytest

from dpfedadamw.extensions.gate import quarter, spending
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.extensions.gate.errors import Refused
from reports.signatures import pades
from tests.dpfedadamw.extensions.gate.replies import ask
from tests.runs import call

ALWAYS = ("--from", "2026-01-01", "--to", "2099-12-31")


def written(gate, tmp_path, code=0):
    page = tmp_path / "page.pdf"
    settings = str(gate.settings.path)
    assert call("gate", "report", settings, *ALWAYS, "--out", str(page), "--json") == code
    return page, json.loads(pades.attached(page.read_bytes(), page.name, quarter.ATTACHMENT))


def test_the_page_has_jobs_by_framework_and_refusals_and_is_verified(gate, tmp_path):
    other = Gate.open(gate.settings.path, "flower")
    ask(gate, "1", job="one")
    ask(other, "1", job="one")
    ask(other, "2", job="one")
    for job in ("one", "a b"):
        with pytest.raises(Refused):
            ask(gate, "3", job=job)
    page, found = written(gate, tmp_path)
    assert [(one["framework"], one["releases"]) for one in found["jobs"]] == [
        ("flower", 2), ("other", 1),
    ]  # fmt: skip
    assert found["jobs"][0]["epsilon"] == spending.epsilon_of([4.0] * 2, 1e-5)
    assert found["spent"] == spending.epsilon_of([4.0] * 3, 1e-5)
    assert (found["releases_left"], found["refusals"]) == (0, {"budget": 1, "form": 1})
    assert call("verify", str(page)) == 0
    content = page.read_bytes()
    page.write_bytes(content.replace(b"/Type/Page", b"/Type/Pagf", 1))
    assert page.read_bytes() != content
    assert call("verify", str(page)) == 1


def test_a_span_counts_its_own_days_alone(gate):
    ask(gate, "1")
    before = quarter.between(gate.settings, date(2026, 1, 1), date(2026, 1, 2))
    assert before.shares == ()
    assert before.so_far.releases == 0
    after = quarter.between(gate.settings, date(2099, 1, 1), date(2099, 1, 2))
    assert after.shares == ()
    assert after.so_far.releases == 1


def test_the_longest_page_is_one_page_and_says_first_that_it_protects_nobody(begin, tmp_path):
    pikepdf = pytest.importorskip("pikepdf")
    gate = begin(noise_multiplier=0.5, budget={"epsilon": 900.0, "delta": 1e-5})
    for number in range(30):
        ask(gate, "1", job=f"{number:03d}" + "x" * 125)
    for job in ("x", "a b"):
        with pytest.raises(Refused):
            ask(gate, "1" if job == "a b" else "y" * 200, job=job)
    page, found = written(gate, tmp_path)
    assert found["spent"] > 20
    with pikepdf.open(io.BytesIO(page.read_bytes())) as pages:
        assert len(pages.pages) == 1
    shown = quarter._band(_findings(gate), found["spent"])
    assert shown.warning.startswith("No meaningful protection")
    assert quarter._band(_findings(gate), 19.0).warning == ""


def test_a_ledger_that_does_not_hold_makes_a_page_that_says_so(gate, tmp_path):
    ask(gate, "1")
    (gate.settings.ledger / "replies" / "000001.safetensors").write_bytes(b"")
    _, found = written(gate, tmp_path, code=1)
    assert found["verdict"] == "FAIL"


def test_days_in_the_wrong_order_are_one_line(gate, capsys):
    wrong = ("--from", "2026-02-01", "--to", "2026-01-01")
    assert call("gate", "report", str(gate.settings.path), *wrong) == 2
    assert "--to 2026-01-01: lies before --from" in capsys.readouterr().err


def _findings(gate):
    from audit.extensions.gate import judge_gate

    return judge_gate(gate.settings.ledger)
