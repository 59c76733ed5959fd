"""Whole clients: what is claimed towards whom, and what no claim holds for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from audit.accounting.budget import Budget, Law, Steps, budget, selection_cost
from audit.accounting.registry import Range
from audit.checks.client.accounting import (
    third_party_history,
    worst_uploads,
)
from audit.checks.client.views import TRUSTED_SERVER, _all_trials
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header
from audit.reading.ledger_lines import Trial
from tests.audit.checks.opened import changed, judged, says

Document = dict[str, Any]
OFF = 1.0 + 1.1e-9
WITHIN = 1.0 + 0.9e-9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c.update(view_headline="server"),
            "the headline is not the third party's view",
        ),
        (
            lambda c: c["third_party"].update(participation=0.25 * OFF),
            "the third party's participation is not S/N",
        ),
        (lambda c: c.update(closed_forms={}), "the claim states closed_forms, which no check"),
        (lambda c: c.update(server_worst_case={}), "the claim states server_worst_case, which no"),
        (lambda c: c.update(unit="person"), "the claim states unit, which no check"),
        (lambda c: c.update(adjacency="replace-one"), "the claim states adjacency, which no check"),
        (lambda c: c.update(person={"records": 10**6}), "the claim states person, which no check"),
        (lambda c: c.update(budget={"charged": 0.1}), "the claim states budget, which no check"),
        (lambda c: c["server"].update(epsilon={"pld": 9.0}), "an epsilon is claimed against the"),
        (lambda c: c["server"].update(clients=[{"client": 1}]), "an epsilon is claimed against"),
        (lambda c: c.update(tuning={}), "the claim is of a selection, but the spec has none"),
        (lambda c: c.pop("third_party"), "claim: third_party is missing"),
    ],
)
def test_what_is_claimed_too_far_is_named(
    of_clients: Bundle, change: Callable[[Document], object], said: str
) -> None:
    verdict, text = says(changed(of_clients, claim=change), "views")
    assert verdict == "FAIL"
    assert text.startswith(said)
    within = changed(
        of_clients, claim=lambda c: c["third_party"].update(participation=0.25 * WITHIN)
    )
    assert says(within, "views")[0] == "PASS"


def selected(bundle: Bundle, factor: float, **all_trials: Any) -> tuple[str, str]:
    """What is said of a claim of so many times what a selection over the run's rounds costs."""
    return says(trial(bundle, factor, **all_trials), "views")


def trial(bundle: Bundle, factor: float, **all_trials: Any) -> Bundle:
    """The run as the published trial of a selection."""
    rounds = [(item, 1) for item in third_party_history(bundle.readable_ledger)]
    alone = budget([item for item, _ in rounds], 1e-3).headline
    chosen = selection_cost(rounds, 1.0, 1e-3, Law(3.0, 1.0)).least

    def claim(c: Document) -> None:
        c["third_party"].update(epsilon={"rdp": factor * chosen}, accountant="rdp")
        one = {"epsilon": {"pld": alone}, "accountant": "pld"}
        c.update(tuning={"one_trial": one, **all_trials})

    law = {"selection": "private", "mean_trials": 3.0, "shape": 1.0}
    return changed(
        bundle,
        spec=lambda s: s.update(tune=law),
        claim=claim,
        header={"tuning": Trial(1, 4, "0" * 64)},
    )


def test_the_finding_of_a_selection_has_the_cost_of_the_best_and_of_one_trial(
    of_clients: Bundle,
) -> None:
    rounds = [(item, 1) for item in third_party_history(of_clients.readable_ledger)]
    alone = budget([item for item, _ in rounds], 1e-3).headline
    chosen = selection_cost(rounds, 1.0, 1e-3, Law(3.0, 1.0)).least
    found = judged(trial(of_clients, 1.0), "views")
    assert found.details["third_party"] == chosen > alone
    assert found.details["one_trial"] == alone
    assert f"third party {chosen:.4g} for the best of a random number of trials, which" in (
        found.measurement
    )
    single = judged(of_clients, "views")
    assert single.details["third_party"] == alone
    assert "one_trial" not in single.details
    assert f"third party {alone:.4g}, which is the headline" in single.measurement


def test_all_trials_are_those_of_the_header_and_cost_what_was_realised_at_least(
    of_clients: Bundle,
) -> None:
    header = of_clients.header
    multiplier = header.declared("noise_multiplier")

    def cost(trials: float) -> float:
        uploads = header.clients * header.rounds * trials
        return budget([Steps(1.0, multiplier / uploads**0.5, 1)], 1e-3).headline

    def realised(epsilon: float) -> Budget:
        return Budget({"pld": Range(epsilon, epsilon)})

    def all_trials(header: Header, epsilon: float, uploads: float = 1.0) -> float:
        return _all_trials(header, 1e-3, realised(epsilon), multiplier / uploads**0.5)(0)

    assert all_trials(header, 0.0) == cost(1)
    four = replace(header, tuning=Trial(1, 4, "0" * 64))
    assert all_trials(four, 0.0) == cost(4)
    assert all_trials(four, 1e6) == 1e6
    # Rounds that this trial repeated: half as many uploads again as one trial is to have.
    half_as_many = 1.5 * header.clients * header.rounds
    assert all_trials(four, 0.0, half_as_many) == pytest.approx(cost(4.5), rel=1e-9)
    assert all_trials(header, 0.0, half_as_many) == pytest.approx(cost(1.5), rel=1e-9)


def test_a_selection_is_claimed_at_what_its_rounds_cost(
    of_clients: Bundle, noised_by_clients: Bundle
) -> None:
    assert selected(of_clients, 1.0)[0] == "PASS"
    assert "the third party's epsilon, of the selection" in selected(of_clients, 0.98)[1]
    header = noised_by_clients.header
    uploads = 4 * header.rounds * header.clients
    least = header.declared("noise_multiplier") / uploads**0.5
    every = budget([Steps(1.0, least, 1)], 1e-3).headline

    def towards_server(factor: float) -> Document:
        return {"epsilon": {"pld": factor * every}, "accountant": "pld"}

    right, low = towards_server(1.0), towards_server(0.98)
    assert selected(noised_by_clients, 1.0, server_all_trials=right)[0] == "PASS"
    said = selected(noised_by_clients, 1.0, server_all_trials=low)[1]
    assert "the server's epsilon of all trials" in said
    assert "none holds" in selected(of_clients, 1.0, server_all_trials=right)[1]


def test_towards_a_server_that_adds_no_noise_an_epsilon_is_claimed_by_pld(
    of_clients: Bundle, noised_by_clients: Bundle
) -> None:
    trusted, untrusted = judged(of_clients, "views"), judged(noised_by_clients, "views")
    assert (trusted.qualifications, untrusted.qualifications) == ((TRUSTED_SERVER,), ())
    assert trusted.details["server"] is None
    worst = budget(worst_uploads(noised_by_clients.readable_ledger), 1e-3)
    assert untrusted.details["server"] == {"epsilon": worst.epsilon}
    other = changed(noised_by_clients, claim=lambda c: c["server"].update(accountant="rdp"))
    assert says(other, "views") == ("FAIL", "the accountant against the server is not pld")


@pytest.mark.parametrize("check", ["views", "accounting"])
def test_without_a_claim_charges_or_a_delta_below_one_nothing_is_verified(
    of_clients: Bundle, check: str
) -> None:
    lacking = ("NOT VERIFIED", "the ledger lacks a claim, charges or a delta below 1")
    for run in (
        changed(of_clients, ledger={"claim": None}),
        changed(of_clients, ledger={"round_spends": ()}),
        changed(of_clients, header={"delta": None}),
        changed(of_clients, header={"delta": 1.0}),
    ):
        assert says(run, check) == lacking


@pytest.mark.parametrize(("factor", "verdict"), [(1.03, "PASS"), (1.06, "FAIL")])
def test_what_is_claimed_a_little_too_high_is_for_the_accounting_to_say(
    of_clients: Bundle, factor: float, verdict: str
) -> None:
    exact = judged(trial(of_clients, 1.0), "views")
    one = {"epsilon": {"pld": factor * exact.details["one_trial"]}, "accountant": "pld"}
    high = judged(trial(of_clients, 1.0, one_trial=one), "views")
    assert (exact.verdict.value, high.verdict.value) == ("PASS", verdict)
    assert (high.measurement == exact.measurement) is (verdict == "PASS")
