"""An accountant that registers itself is in the claim, the audit and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audit.accounting import registry as auditors
from audit.accounting.budget import budget
from audit.accounting.registry import Range
from audit.verdict import Verdict
from dpfedadamw.accounting import registry
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.registry import ACCOUNTANTS, Accountant, epsilons, leading
from dpfedadamw.cli import display
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition
from tests.audit.corruptions import finding_of
from tests.reports.data import data_of
from tests.runs import small_spec, train

DELTA = 1e-5
TOY = Accountant(
    name="toy",
    label="Toy",
    source="nowhere",
    samplings=frozenset({"poisson", "full"}),
    epsilon=lambda parts, delta: 2.0 * epsilon_pld(parts, delta),
)
AUDITORS_TOY = auditors.Accountant(
    name="toy",
    words="doubling",
    epsilon=lambda history, delta: Range(2.0 * pld(history, delta), 2.0 * pld(history, delta)),
)


def pld(history, delta: float) -> float:
    (known,) = (one for one in auditors.accountants() if one.leads)
    return known.epsilon(history, delta).least


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "toy" not in ACCOUNTANTS
    monkeypatch.setitem(ACCOUNTANTS._entries, "toy", TOY)


def test_one_accountant_leads_and_the_files_of_the_folder_are_found() -> None:
    assert [one.name for one in registry.accountants()] == ["pld", "rdp", "rdp-classic"]
    assert leading()[0].name == "pld"
    assert [one.name for one in auditors.accountants()] == ["pld", "rdp", "rdp-classic"]


@pytest.mark.usefixtures("toy")
def test_an_accountant_states_what_it_covers_and_nothing_else() -> None:
    assert epsilons(Composition(1.0, 0.02, 10), DELTA)["toy"] == pytest.approx(
        2.0 * epsilon_pld(Composition(1.0, 0.02, 10), DELTA)
    )
    assert "toy" not in epsilons(Composition(1.0, 0.02, 10, 1, "fixed-size"), DELTA)


def test_what_the_leading_accountant_does_not_cover_has_no_epsilon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ACCOUNTANTS._entries, "toy", TOY)
    monkeypatch.delitem(ACCOUNTANTS._entries, "pld")
    with pytest.raises(PrivacyError, match="exactly one accountant must lead"):
        epsilons(Composition(1.0, 0.02, 10), DELTA)


@pytest.mark.usefixtures("toy")
def test_a_new_accountant_is_in_claim_audit_and_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, outcome = train(small_spec(rounds=1), tmp_path)
    clients = outcome.claim["server"]["clients"]
    for entry in clients:
        assert entry["epsilon"]["toy"] == pytest.approx(2.0 * entry["epsilon"]["pld"])
    assert "Toy" in str([column.header for column in display._cost_by_client(clients).columns])

    alone = finding_of(training.run.path, "accounting")
    assert alone.verdict is Verdict.NOT_VERIFIED
    assert "epsilon by toy is claimed, which no accountant" in alone.measurement

    assert budget((), DELTA).epsilon.keys() == {"pld", "rdp", "rdp-classic"}
    monkeypatch.setitem(auditors._REGISTERED, "toy", AUDITORS_TOY)
    both = finding_of(training.run.path, "accounting")
    assert both.verdict is Verdict.PASS, both.measurement
    assert "doubling" in both.measurement
    for entry in both.details["clients"]:
        assert entry["epsilon"]["toy"] == pytest.approx(2.0 * entry["epsilon"]["pld"])

    report = data_of(training.run.path)
    assert {row["epsilon"]["toy"] for row in report["clients"]["rows"]} == {
        entry["epsilon"]["toy"] for entry in clients
    }
    assert "toy" in {row["name"] for row in report["accounting"]["conversions"]}


@pytest.mark.usefixtures("toy")
def test_an_understated_epsilon_by_a_new_accountant_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, _ = train(small_spec(rounds=1), tmp_path)
    dearer = auditors.Accountant(
        name="toy",
        words="trebling",
        epsilon=lambda history, delta: Range(3.0 * pld(history, delta), 3.0 * pld(history, delta)),
    )
    monkeypatch.setitem(auditors._REGISTERED, "toy", dearer)
    found = finding_of(training.run.path, "accounting")
    assert found.verdict is Verdict.FAIL
    assert "epsilon by toy is claimed" in found.measurement


# What is promised of one claim.


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ({"view_headline": "none"}, None),
        ({"server_worst_case": "server", "third_party": "third"}, 1.0),
        ({"view_headline": "server", "server_worst_case": "server", "third_party": "third"}, 1.0),
        (
            {"view_headline": "third-party", "server_worst_case": "server", "third_party": "third"},
            2.0,
        ),
        ({"tuning": {}, "server_worst_case": "server", "third_party": "third"}, 2.0),
        ({"tuning": {}, "view_headline": "none", "third_party": "third"}, None),
    ],
)
def test_the_headline_is_that_of_the_view_that_is_claimed_first(claim, expected) -> None:
    views = {
        "server": {"epsilon": {"pld": 1.0, "rdp": 8.0}, "accountant": "pld"},
        "third": {"epsilon": {"pld": 9.0, "rdp": 2.0}, "accountant": "rdp"},
    }
    stated = {
        key: views[value] if key in ("server_worst_case", "third_party") else value
        for key, value in claim.items()
    }
    assert registry.headline(stated) == expected


def test_a_view_names_its_accountant_and_promises_its_number() -> None:
    view = registry.as_claimed({"pld": 1.5, "rdp": 2.0})
    assert view == {"epsilon": {"pld": 1.5, "rdp": 2.0}, "accountant": "pld"}
    assert registry.claimed(view) == 1.5
    assert registry.label_of("pld") == "PLD"
    assert registry.label_of("unheard-of") == "unheard-of"


@pytest.mark.parametrize("epsilon", [0.0, 5.0, 999_999.0, 1_000_000.0])
def test_an_epsilon_up_to_a_million_is_no_reason_to_refuse(epsilon: float) -> None:
    registry.check_epsilon(epsilon, "the server")


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [(1_000_000.1, "an epsilon of 1e+06"), (float("inf"), "no finite epsilon"), (float("nan"), "")],
)
def test_an_epsilon_that_protects_nobody_is_refused(epsilon: float, said: str) -> None:
    with pytest.raises(PrivacyError, match=r"against the server, where 1,000,000 is the most") as e:
        registry.check_epsilon(epsilon, "the server")
    assert f"this run could spend {said}" in str(e.value)


@pytest.mark.parametrize("target", [None, 4.0, 4.1])
def test_a_run_within_its_target_is_no_reason_to_refuse(target: float | None) -> None:
    # The auditor's own room: 0.5 % and 0.001.
    registry.check_target(4.02, target, "the server")


@pytest.mark.parametrize("epsilon", [4.022, 5.0, float("inf"), float("nan")])
def test_a_run_that_could_exceed_its_target_is_refused(epsilon: float) -> None:
    with pytest.raises(PrivacyError, match=r"^privacy\.target_epsilon: is 4, but with") as refused:
        registry.check_target(epsilon, 4.0, "a third party")
    assert f"this run could spend {epsilon:.4g} against a third party" in str(refused.value)


def test_what_was_foreseen_bounds_what_was_done_where_it_covers_it(monkeypatch) -> None:
    done, foreseen = Composition(1.0, 0.02, 10), Composition(1.0, 0.02, 11)
    other = Composition(2.0, 0.02, 11)
    high = Accountant(
        name="high",
        label="High",
        source="nowhere",
        samplings=frozenset({"poisson"}),
        # An accountant whose rounding lifts the part above the whole.
        epsilon=lambda parts, _delta: 7.0 if parts[0].steps == 10 else 5.0,
    )
    monkeypatch.setitem(ACCOUNTANTS._entries, "high", high)
    assert epsilons(done, DELTA)["high"] == 7.0
    assert epsilons(done, DELTA, most=foreseen)["high"] == 5.0
    assert epsilons(foreseen, DELTA, most=done)["high"] == 5.0
    # One of less noise, or of other steps, says nothing of it.
    assert epsilons(done, DELTA, most=other)["high"] == 7.0
    found = epsilons(done, DELTA, most=foreseen)
    assert found["pld"] == epsilon_pld(done, DELTA)


def test_no_more_and_no_fewer_than_one_accountant_leads(monkeypatch) -> None:
    pld = ACCOUNTANTS["pld"]
    monkeypatch.setitem(ACCOUNTANTS._entries, "pld", replace(pld, leads=None))
    with pytest.raises(PrivacyError, match="exactly one accountant must lead"):
        leading()
    monkeypatch.setitem(ACCOUNTANTS._entries, "pld", pld)
    monkeypatch.setitem(ACCOUNTANTS._entries, "a-second", replace(pld, name="a-second"))
    with pytest.raises(PrivacyError, match="exactly one accountant must lead"):
        leading()


def test_accountants_of_others_are_found_by_their_entry_points_and_named_as_such():
    assert ACCOUNTANTS.kind == "accountant"
    assert ACCOUNTANTS.group == "dpfedadamw.accountants"
    assert ACCOUNTANTS.package == "dpfedadamw.accounting"
