"""The claim is read in both of its forms, and each number stands in one place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from audit.checks.base import Judgement
from audit.checks.client.accounting import CLIENT_ACCOUNTING
from audit.checks.client.views import CLIENT_VIEWS
from audit.checks.disclosure import DISCLOSURE
from audit.checks.record.accounting import ACCOUNTING
from audit.checks.record.views import VIEWS
from audit.reading.bundle import open_bundle
from audit.reading.ledger_lines import claimed_epsilons, claimed_headline, read_claim
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, read_entries, rewrite_ledger
from tests.old_claims import to_old_form

CHECKS = {"record": (ACCOUNTING, VIEWS, DISCLOSURE), "client": (CLIENT_ACCOUNTING, CLIENT_VIEWS)}


@pytest.fixture(scope="module", params=["record", "client"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "record":
        return build_run(folder / "run", Settings(rounds=2))
    return build_client_run(folder / "run", ClientSettings(rounds=3, noise_added_by="clients"))


def judged(run: Path) -> list[Judgement]:
    bundle = open_bundle(run)
    return [check.judge(bundle) for check in CHECKS[bundle.header.unit.name]]


def test_a_claim_of_the_old_form_is_judged_like_one_of_the_new(run: Path) -> None:
    new, stated = judged(run), read_entries(run)[-1]
    rewrite_ledger(run, lambda entries: to_old_form(entries[-1]))
    try:
        assert "epsilon_pld" in json.dumps(read_entries(run)[-1])
        assert judged(run) == new
        assert {found.verdict for found in new} == {Verdict.PASS}
    finally:
        rewrite_ledger(run, lambda entries: entries.__setitem__(-1, stated))


def test_an_understated_claim_of_the_old_form_is_caught(run: Path) -> None:
    stated = read_entries(run)[-1]

    def flatter(entries: list[dict[str, Any]]) -> None:
        to_old_form(entries[-1])
        entries[-1]["server"]["clients"][0]["epsilon_rdp"] = 0.1

    rewrite_ledger(run, flatter)
    try:
        found = judged(run)[0]
        assert found.verdict is Verdict.FAIL
        assert "epsilon by rdp is claimed as 0.1" in found.measurement
    finally:
        rewrite_ledger(run, lambda entries: entries.__setitem__(-1, copy.deepcopy(stated)))


@pytest.mark.parametrize(
    ("name", "value", "verdict", "says"),
    [
        ("toy", 0.1, Verdict.NOT_VERIFIED, "toy is claimed, which no accountant"),
        ("epsilon_pld", 0.1, Verdict.FAIL, "by something that is not a name"),
        ("toy", "0.1", Verdict.FAIL, "toy is not a number"),
    ],
)
def test_an_epsilon_by_an_unknown_accountant_is_not_verified(
    run: Path, name: str, value: object, verdict: Verdict, says: str
) -> None:
    stated = read_entries(run)[-1]
    rewrite_ledger(
        run, lambda entries: entries[-1]["server"]["clients"][0]["epsilon"].update({name: value})
    )
    try:
        found = judged(run)[0]
        assert found.verdict is verdict
        assert says in found.measurement
    finally:
        rewrite_ledger(run, lambda entries: entries.__setitem__(-1, stated))


def test_a_number_that_every_claim_states_may_not_be_left_out(run: Path) -> None:
    stated = read_entries(run)[-1]
    rewrite_ledger(
        run, lambda entries: entries[-1]["server"]["clients"][0]["epsilon"].pop("rdp-classic")
    )
    try:
        found = judged(run)[0]
        assert found.verdict is Verdict.FAIL
        assert "rdp-classic is missing" in found.measurement
    finally:
        rewrite_ledger(run, lambda entries: entries.__setitem__(-1, stated))


def test_a_number_in_two_places_is_refused() -> None:
    for part in (
        {"epsilon": {"pld": 7.0}, "epsilon_pld": 0.1},
        {"epsilon": 7.0, "epsilon_pld": 0.1},
    ):
        lifted = read_claim({"server": part})["server"]
        assert lifted == part
        with pytest.raises(FieldError):
            claimed_epsilons(lifted)


def test_what_a_view_promises_is_the_number_of_the_accountant_that_it_names() -> None:
    view = {"epsilon": {"pld": 2.0, "rdp": 3.0}, "accountant": "rdp"}
    assert claimed_headline(view) == 3.0
    with pytest.raises(FieldError, match="toy is missing"):
        claimed_headline({**view, "accountant": "toy"})


def test_a_view_without_a_number_stays_without() -> None:
    view = {"epsilon": None, "clients": []}
    assert read_claim({"server": view}) == {"server": view}
