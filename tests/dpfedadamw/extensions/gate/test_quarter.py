"""A signed page says who took how much of the budget, and is verified as other PDFs are."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from hashlib import sha256

import pytest

from audit.extensions.gate import judge_gate
from audit.extensions.gate.reading import Charge
from audit.protection import WHY
from dpfedadamw.extensions.gate import book, quarter, spending, verification
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.extensions.gate.errors import Refused
from reports.formatting import epsilon
from reports.signatures import pades
from reports.signatures.keys import public_pem
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


def charge(day, framework="other", job="job", sigma=4.0):
    return Charge(
        release=1, time=f"{day}T10:00:00Z", framework=framework, job=job, request="r", shards=4,
        clip=0.5, sensitivity=1.0, noise_multiplier=sigma, broadcast="0" * 64, line=2,
    )  # fmt: skip


@pytest.fixture
def spring(gate, monkeypatch):
    """A gate's settings, with charges and refusals before, in and after the spring of 2026."""
    charges = (
        charge("2026-02-28", job="early"), charge("2026-03-01", "flower", "a"),
        charge("2026-03-15", "other", "a", 8.0), charge("2026-04-02", "flower", "b"),
        charge("2026-05-31", "flower", "b"), charge("2026-06-01", job="late"),
    )  # fmt: skip
    monkeypatch.setattr(verification, "charges_of", lambda wanted: charges)
    refused = {
        "2026-02-28": {"form": 100}, "2026-03-01": {"form": 1, "budget": 2},
        "2026-05-31": {"budget": 1_500, "fire": 1}, "2026-06-01": {"ledger": 100},
    }  # fmt: skip
    monkeypatch.setattr(book, "refusals", lambda wanted: refused)
    return gate.settings


SPRING = date(2026, 3, 1), date(2026, 5, 31)


def page_of(wanted, span, findings):
    """What the page's data say, and its sections: names and values, cells, or paragraphs."""
    page = quarter.document(wanted, span, findings, "gate-key", "signer")
    found = {}
    for section in page.sections:
        parts = []
        for block in section.blocks:
            parts += block.get("rows") or block.get("items") or [block["text"]]
        found[section.title] = parts
    return page, json.loads(page.data), found


def test_a_page_has_the_releases_and_refusals_of_its_days_alone(gate, spring):
    span = quarter.between(spring, *SPRING)
    assert [(one.framework, one.job, one.releases) for one in span.shares] == [
        ("flower", "b", 2), ("flower", "a", 1), ("other", "a", 1),
    ]  # fmt: skip
    assert span.epsilon == spending.epsilon_of([4.0, 8.0, 4.0, 4.0], 1e-5)
    assert span.so_far.releases == 5
    page, data, shown = page_of(spring, span, _findings(gate))
    assert data == {
        "format": 1, "from": "2026-03-01", "to": "2026-05-31", "unit": "record",
        "budget": {"epsilon": 1.8, "delta": 1e-5}, "verdict": "PASS", "gate_key": "gate-key",
        "jobs": [
            {"framework": "flower", "job": "b", "releases": 2,
             "epsilon": spending.epsilon_of([4.0] * 2, 1e-5),
             "first": "2026-04-02T10:00:00Z", "last": "2026-05-31T10:00:00Z"},
            *({"framework": name, "job": "a", "releases": 1,
               "epsilon": spending.epsilon_of([sigma], 1e-5), "first": at, "last": at}
              for name, sigma, at in (("flower", 4.0, "2026-03-01T10:00:00Z"),
                                      ("other", 8.0, "2026-03-15T10:00:00Z"))),
        ],
        "epsilon_of_span": span.epsilon, "refusals": {"form": 1, "budget": 1502, "fire": 1},
        "spent": span.so_far.epsilon, "releases": 5, "releases_left": 0,
        "ends": span.so_far.ends,
        "ledger_sha256": sha256((gate.settings.ledger / "ledger.jsonl").read_bytes()).hexdigest(),
    }  # fmt: skip
    assert shown["The budget"] == [
        ["Budget of all jobs", "ε = 1.8 at δ = 1e-05"],
        ["Spent in this span alone", f"ε = {epsilon(span.epsilon)}, 4 releases"],
        ["Spent in all by 31 May 2026", f"ε = {epsilon(span.so_far.epsilon)}, 5 releases"],
        ["Left at σ = 4", "0 releases"],
        ["It ends", "it has ended"],
    ]
    costs = [epsilon(one.epsilon) for one in span.shares]
    assert shown["Who took how much"] == [
        ["flower", "b", "2", costs[0], "2026-04-02", "2026-05-31"],
        ["flower", "a", "1", costs[1], "2026-03-01", "2026-03-01"],
        ["other", "a", "1", costs[2], "2026-03-15", "2026-03-15"],
        "The ε of single jobs do not add up to that of all.",
    ]
    assert shown["Refusals"] == [
        "The budget allowed no more: 1,502", "Another reason: 1",
        "What was asked for was not in its form: 1",
        "The gate counts refusals and does not sign them.",
    ]  # fmt: skip
    assert {"code": "gate-key"} in shown["Whose word this is"][0]
    assert {"code": "signer"} in shown["Whose word this is"][1]
    (jobs, _), (_, small) = (page.sections[at].blocks for at in (1, 2))
    assert jobs["head"] == ["framework", "job", "releases", "ε alone", "first", "last"]
    assert (jobs["small"], small["style"]) == (True, "small")
    assert page.title == "What left the site, 1 March 2026 to 31 May 2026"
    assert page.footer == "Report of a privacy gate, 1 March 2026 to 31 May 2026"
    assert page.created.endswith("Z")
    assert page.introduction.startswith(
        "ε is about one record, added or removed. It holds against "
    )
    assert "nobody’s odds that those data were used grew by more than a factor of" in (
        page.introduction
    )


def test_a_page_without_releases_or_refusals_says_so(gate):
    span = quarter.between(gate.settings, date(2099, 1, 1), date(2099, 1, 1))
    page, data, shown = page_of(gate.settings, span, _findings(gate))
    assert (data["jobs"], data["refusals"], data["spent"], data["ends"]) == ([], {}, 0.0, None)
    assert shown["Who took how much"] == ["Nothing was released."]
    assert shown["Refusals"] == ["No request was refused."]
    assert shown["The budget"][-2:] == [
        ["Left at σ = 4", "3 releases"], ["It ends", "no pace is known"],
    ]  # fmt: skip
    # What is spent by a day that has not come is what is spent today.
    today = f"{datetime.now(UTC).date():%-d %B %Y}"
    assert shown["The budget"][2][0] == f"Spent in all by {today}"
    assert page.identifier == ""


def test_a_budget_that_is_not_spent_ends_at_its_pace(spring, gate, monkeypatch):
    monkeypatch.setattr(verification, "_end", lambda charges, left, at: "2030-01-02 03:04 UTC")
    span = quarter.between(spring, date(2026, 3, 1), date(2026, 3, 1))
    _, data, shown = page_of(spring, span, _findings(gate))
    assert data["ends"] == "2030-01-02 03:04 UTC"
    said = shown["The budget"][-1][1]
    assert said.startswith("2 January 2030")
    assert said.endswith(", at the pace of the last 30 days")


def test_the_end_of_a_budget_is_told_as_of_the_last_day_or_of_today(spring, monkeypatch):
    monkeypatch.setattr(spending, "releases_left", lambda *given: 3)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 5, 30, 12, tzinfo=tz)

    monkeypatch.setattr(quarter, "datetime", Clock)
    ends = [
        quarter.between(spring, date(2026, 3, 1), last).so_far.ends
        for last in (date(2026, 3, 30), date(2026, 5, 20), date(2026, 5, 31))
    ]
    # Two releases in the thirty days before the 30th of March, one in those before now.
    assert ends == ["2026-05-14 23:59 UTC", None, "2026-08-28 12:00 UTC"]


def test_a_page_shows_ten_jobs_and_counts_the_others(spring, gate, monkeypatch):
    charges = [charge("2026-03-02", job=f"{number:02d}") for number in range(12)]
    charges += [charge("2026-03-02", job=f"{number:02d}") for number in range(11)]
    monkeypatch.setattr(verification, "charges_of", lambda wanted: charges)
    _, data, shown = page_of(spring, quarter.between(spring, *SPRING), _findings(gate))
    assert len(data["jobs"]) == 12
    rows = shown["Who took how much"][:-1]
    assert [row[1] for row in rows] == [*(f"{n:02d}" for n in range(10)), "2 more jobs"]
    assert rows[-1] == ["", "2 more jobs", "3", "", "", ""]


def test_the_band_says_what_does_not_hold_and_warns_where_nothing_is_protected(gate):
    ask(gate, "1")
    good = judged(gate)
    held = quarter._band(good, 1.0)
    assert (held.value, held.alarming, held.reserved, held.warning) == ("PASS", False, False, "")
    assert held.statement.endswith("chain, signatures, noise and budget hold.")
    bare = quarter._band(good, 21.0)
    assert bare.reserved
    assert bare.statement == f"{held.statement} {WHY}"
    (gate.settings.ledger / "replies" / "000001.safetensors").write_bytes(b"")
    bad = judged(gate)
    (wrong,) = [one.title for one in bad.findings if one.verdict.value == "FAIL"]
    told = quarter._band(bad, 1.0)
    assert (told.value, told.alarming, told.reserved) == ("FAIL", True, False)
    assert told.statement == f"Not confirmed: {wrong} Do not rely on the numbers below."


def test_a_promise_that_excludes_nothing_is_none(gate):
    said = quarter._promise(gate.settings, 1e9)
    assert "What was spent so far excludes no conclusion about those data." in said
    assert "factor" not in said


def test_the_command_prints_page_verdict_and_signer(gate, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = (
        "gate",
        "report",
        str(gate.settings.path),
        "--from",
        "2026-01-01",
        "--to",
        "2026-02-01",
    )
    assert call(*asked) == 0
    assert capsys.readouterr().out.startswith("gate-2026-01-01-2026-02-01.pdf: PASS, signed by ")
    page = tmp_path / "gate-2026-01-01-2026-02-01.pdf"
    assert page.stat().st_mode & 0o077 == 0
    assert call(*asked, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["report"], told["verdict"], told["from"]) == (page.name, "PASS", "2026-01-01")


def test_days_in_the_wrong_order_are_one_line(gate, capsys):
    wrong = ("--from", "2026-02-01", "--to", "2026-01-01")
    assert call("gate", "report", str(gate.settings.path), *wrong) == 2
    assert "--to 2026-01-01: lies before --from" in capsys.readouterr().err


def judged(gate):
    """The findings with key and anchor."""
    key = public_pem(book.load_key().private.public_key())
    return judge_gate(gate.settings.ledger, key, gate.settings.anchor.read_bytes())


def _findings(gate):
    return judge_gate(gate.settings.ledger)
