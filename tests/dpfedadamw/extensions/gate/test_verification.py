"""What was spent, when it ends, and whether a second accountant agrees."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from audit.extensions.gate import judgement
from audit.extensions.gate.reading import Charge
from dpfedadamw.accounting import dp_accounting_check
from dpfedadamw.extensions.gate import book, settings, spending, verification
from dpfedadamw.extensions.gate.errors import GateError
from reports.signatures.keys import public_pem
from tests.dpfedadamw.extensions.gate.conftest import GATE
from tests.dpfedadamw.extensions.gate.replies import ask

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def charged(*days, job="job", sigma=4.0):
    """Releases on some days after the start."""
    return [
        Charge(
            release=1, time=f"{START + timedelta(days=day):%Y-%m-%dT%H:%M:%SZ}", framework="other",
            job=job, request="r", shards=4, clip=0.5, sensitivity=1.0, noise_multiplier=sigma,
            broadcast="0" * 64, line=2,
        )
        for day in days
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("days", "at", "left", "ends"),
    [
        ([], 3, 3, None),
        # One release in thirty days, and two of them.
        ([5], 5, 3, "2026-04-06 12:00 UTC"),
        ([5, 5], 6, 3, "2026-02-21 12:00 UTC"),
        # Ten releases in an hour, three days ago, are ten in thirty days.
        ([number / 240 for number in range(10)], 3, 2, "2026-01-10 12:00 UTC"),
        # What was released thirty days before still counts, and nothing earlier.
        ([0, 8.5, 9, 39], 39, 2, "2026-03-11 12:00 UTC"),
        ([0, 8.5], 39, 2, None),
        ([0, 1, 2], 7, 0, "2026-01-03 12:00 UTC"),
        ([], 7, 0, None),
        ([0, 1], 1, 10**9, None),
    ],
)
def test_a_budget_ends_at_the_rate_of_the_thirty_days_before(days, at, left, ends):
    assert verification._end(charged(*days), left, START + timedelta(days=at)) == ends


def test_what_was_spent_is_counted_in_all_and_by_job(gate):
    charges = [*charged(0, job="a"), *charged(1, 2, job="b", sigma=8.0), *charged(3, job="a")]
    found = verification.standing(gate.settings, charges, START + timedelta(days=4))
    sigmas = [4.0, 8.0, 8.0, 4.0]
    assert (found.epsilon, found.releases) == (spending.epsilon_of(sigmas, 1e-5), 4)
    assert found.left == spending.releases_left(sigmas, 4.0, 1.8, 1e-5) == 0
    assert found.ends == "2026-01-04 12:00 UTC"
    first, last = (one.time for one in (charges[0], charges[-1]))
    assert found.jobs["a"] == {
        "releases": 2, "epsilon_alone": spending.epsilon_of([4.0] * 2, 1e-5), "first": first,
        "last": last,
    }  # fmt: skip
    assert found.jobs["b"]["epsilon_alone"] == spending.epsilon_of([8.0] * 2, 1e-5)


def public():
    return public_pem(book.load_key().private.public_key())


def failing(rows):
    return {name: said for name, holds, said in rows if not holds}


@pytest.fixture
def going_on(begin, monkeypatch):
    """A gate with 17 releases that makes another around a read of the auditor's.

    Returns:
        Has the gate do so once a file of a name is read (or just before that), so many times.
    """
    gate = begin(budget={"epsilon": 500.0, "delta": 1e-5})
    for number in range(17):
        ask(gate, request=f"{number}")

    def arrange(name, times, before=False):
        left, read = list(range(times)), judgement.read_bytes

        def reading(folder, asked, limit):
            found = None if before else read(folder, asked, limit)
            if asked.startswith(name) and left:
                ask(gate, request=f"meanwhile-{left.pop()}")
            return found or read(folder, asked, limit)

        monkeypatch.setattr(judgement, "read_bytes", reading)
        return gate.settings

    return arrange


@pytest.mark.parametrize("name", ["head.json", "ledger.jsonl"])
def test_a_gate_that_releases_while_its_files_are_read_holds(going_on, name):
    assert failing(verification.verify(going_on(name, 2), public())) == {}


def test_a_reply_that_the_gate_let_go_of_meanwhile_is_not_missed(going_on):
    wanted = going_on("replies/", 1, before=True)
    assert failing(verification.verify(wanted, public())) == {}


def test_a_reply_that_is_gone_although_nothing_was_released_is_missed(going_on):
    wanted = going_on("no file", 0)
    (wanted.ledger / "replies" / "000005.safetensors").unlink()
    assert list(failing(verification.verify(wanted, public()))) == ["noise"]


def test_a_ledger_that_never_stands_still_is_not_called_cut(going_on, monkeypatch):
    monkeypatch.setattr(judgement, "_TRIES", 3)
    found = failing(verification.verify(going_on("ledger.jsonl", 3), public()))
    assert set(found.values()) == {"ledger.jsonl: is written to again and again; try again"}


def test_a_line_that_was_changed_is_named_and_nothing_is_counted(gate):
    ask(gate)
    path = gate.settings.ledger / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"noise_multiplier":4.0', b'"noise_multiplier":9'))
    with pytest.raises(GateError, match=r"ledger.jsonl, line \d: "):
        verification.charges_of(gate.settings)


def test_a_ledger_that_is_gone_has_no_charges_and_verifies_nothing(gate):
    (gate.settings.ledger / "ledger.jsonl").unlink()
    with pytest.raises(GateError, match="begin one with: dpfedadamw gate init"):
        verification.charges_of(gate.settings)
    assert {"settings", "dp-accounting"}.isdisjoint(
        name for name, _, _ in verification.verify(gate.settings, public())
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"unit": "person"}, "unit: the ledger says record, "),
        ({"budget": {"epsilon": 9.0, "delta": 1e-5}}, "epsilon: the ledger says 1.8, "),
        ({"budget": {"epsilon": 1.8, "delta": 1e-3}}, "delta: the ledger says 1e-05, "),
    ],
)
def test_other_settings_than_the_ledger_was_begun_with_do_not_hold(gate, changes, said):
    gate.settings.path.write_text(settings.write({**GATE, **changes}), encoding="utf-8")
    found = failing(verification.verify(settings.read(gate.settings.path), public()))
    assert list(found) == ["settings"]
    assert found["settings"].startswith(said)


def test_a_ledger_that_does_not_begin_with_its_settings_does_not_hold(gate):
    name, holds, _ = verification._header(gate.settings, None)
    assert (name, holds) == ("settings", False)


def test_nothing_released_is_nothing_to_disagree_about(gate):
    assert failing(verification.verify(gate.settings, public())) == {}
    assert verification._epsilon(gate.settings, []) == (
        "dp-accounting", True, "nothing was released",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spent", "theirs", "agrees"),
    [
        ([4.0], lambda ours: ours * 1.0009, True),
        ([4.0], lambda ours: ours * 1.0011, False),
        ([4.0], lambda ours: ours * 0.9988, False),
        # An ε of a thousandth: what counts is the distance itself.
        ([4000.0], lambda ours: ours + 0.9e-4, True),
        ([4000.0], lambda ours: ours + 1.1e-4, False),
        ([4.0], lambda ours: None, False),
    ],
)
def test_two_accountants_may_differ_by_a_thousandth_or_by_a_ten_thousandth(
    gate, monkeypatch, spent, theirs, agrees
):
    asked = []

    def checked(claim, composed):
        asked.append((claim["delta"], claim["server"]["epsilon"], composed.parts))
        return {"epsilon": theirs(spending.epsilon_of(spent, 1e-5))}

    monkeypatch.setattr(dp_accounting_check, "checked", checked)
    assert verification._epsilon(gate.settings, spent)[:2] == ("dp-accounting", agrees)
    ((delta, told, parts),) = asked
    assert (delta, [*told.values()]) == (1e-5, [spending.epsilon_of(spent, 1e-5)])
    assert parts == spending.compositions(spent)
