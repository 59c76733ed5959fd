"""Whole clients: every number of the claim is what its charges cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audit.accounting.budget import Steps, budget
from audit.checks.client.accounting import (
    composed_multiplier,
    over_rounds,
    third_party_history,
    uploads,
    worst_uploads,
)
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger import Ledger
from tests.audit.checks.opened import changed, charge, judged, says
from tests.audit.synthetic_client_run import ClientSettings, build_client_run

Document = dict[str, Any]


def test_a_clients_uploads_are_its_shares_of_the_noise(noised_by_clients: Bundle) -> None:
    ledger = noised_by_clients.readable_ledger
    spends = [
        replace(ledger.round_spends[0], round=0, clients=(2,), noise_multiplier=1.5),
        replace(ledger.round_spends[0], round=1, clients=(2, 0, 5, 7), noise_multiplier=3.0),
        replace(ledger.round_spends[0], round=2, clients=(), noise_multiplier=1.5),
    ]
    read: Ledger = replace(ledger, round_spends=tuple(spends))
    assert uploads(read) == {0: [1.5], 2: [1.5, 1.5], 5: [1.5], 7: [1.5]}
    assert list(uploads(read)) == [0, 2, 5, 7]
    assert uploads(read, 1) == {2: [1.5]}
    # 1/σ² adds up: two queries of 1.5 are one of 1.5/√2.
    assert composed_multiplier([1.5, 1.5]) == pytest.approx(1.5 / 2**0.5, rel=1e-11)
    assert worst_uploads(read) == (Steps(1.0, composed_multiplier([1.5, 1.5]), 1),)
    assert worst_uploads(read, 0) == ()
    history = third_party_history(read)
    assert sorted((one.noise_multiplier, one.steps) for one in history) == [(1.5, 2), (3.0, 1)]


def test_losses_over_rounds_count_the_charges_up_to_each_round(
    of_clients: Bundle, noised_by_clients: Bundle
) -> None:
    rows = over_rounds(of_clients.readable_ledger, of_clients.header, 1e-3)
    assert [row["round"] for row in rows] == list(range(1, 25))
    share = Steps(0.25, 1.5, 1)
    for row in (rows[0], rows[11], rows[-1]):
        spent = budget([replace(share, steps=row["round"])], 1e-3).headline
        assert row["third_party"] == pytest.approx(spent, rel=2e-3)
        assert row["server"] is None
    ledger = noised_by_clients.readable_ledger
    seen = over_rounds(ledger, noised_by_clients.header, 1e-3)
    assert seen[4]["server"] == budget(worst_uploads(ledger, 5), 1e-3).headline
    # Of a long run forty points are drawn.
    long = replace(of_clients.header, rounds=400)
    many = over_rounds(replace(of_clients.readable_ledger, header=long), long, 1e-3)
    assert (len(many), many[0]["round"], many[-1]["round"]) == (40, 1, 400)


def accounting(bundle: Bundle, change: Callable[[Document], object]) -> str:
    verdict, text = says(changed(bundle, claim=change), "accounting")
    return text if verdict == "FAIL" else verdict


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["third_party"].update(rounds=25),
            "the claim's rounds are not those that were charged",
        ),
        (
            lambda c: c["third_party"].update(delta_clients=12e-3 + 1.1e-9),
            "the claim's delta_clients is not delta times clients",
        ),
        (lambda c: c["third_party"].update(delta_clients=12e-3 + 0.9e-9), "PASS"),
        (lambda c: c["third_party"].pop("rounds"), "claim: rounds is missing"),
    ],
)
def test_the_claim_towards_third_parties_is_recomputed(
    of_clients: Bundle, change: Callable[[Document], object], said: str
) -> None:
    assert accounting(of_clients, change) == said


def _client(claim: Document, place: int = 0) -> Document:
    found: Document = claim["server"]["clients"][place]
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c["server"]["clients"].append(_client(c)),
            "client 0: has a claim twice, or did not take part",
        ),
        (
            lambda c: _client(c).update(client=12),
            "claim: client is not a whole number from 0 to 11",
        ),
        (
            lambda c: _client(c).update(participations=_client(c)["participations"] + 1),
            "client 0: the claim's participations are not those charged",
        ),
        (
            lambda c: c["server"]["clients"].pop(0),
            "the claim leaves out client 0, who took part",
        ),
        (
            lambda c: c["server"]["epsilon"].update(pld=c["server"]["epsilon"]["pld"] * 0.99995),
            "the epsilon against the server is not the largest of the clients'",
        ),
    ],
)
def test_the_claim_towards_the_server_is_recomputed_client_by_client(
    noised_by_clients: Bundle, change: Callable[[Document], object], said: str
) -> None:
    assert accounting(noised_by_clients, change) == said


def test_a_client_that_took_no_part_is_not_claimed(noised_by_clients: Bundle) -> None:
    ledger = noised_by_clients.readable_ledger
    without = tuple(
        replace(one, clients=tuple(client for client in one.clients if client))
        for one in ledger.round_spends
    )
    run = changed(noised_by_clients, ledger={"round_spends": without})
    assert "client 0: has a claim twice, or did not take part" in says(run, "accounting")[1]
    assert run.readable_ledger.round_spends != ledger.round_spends


def test_participations_may_be_counted_with_or_without_attempts_that_were_cut(
    tmp_path: Path,
) -> None:
    settings = ClientSettings(noise_added_by="clients", resumed_round=5)
    run = open_bundle(build_client_run(tmp_path / "run", settings))
    twice = [one for one in run.readable_ledger.round_spends if one.round == 5]
    client = next(iter(set(twice[0].clients) & set(twice[1].clients)))
    place = next(
        at
        for at, row in enumerate((run.readable_ledger.claim or {})["server"]["clients"])
        if row["client"] == client
    )
    charged = sum(client in one.clients for one in run.readable_ledger.round_spends)

    def said(count: int) -> str:
        return accounting(run, lambda c: _client(c, place).update(participations=count))

    assert [said(charged), said(charged - 1)] == ["PASS", "PASS"]
    wrong = f"client {client}: the claim's participations are not those charged"
    assert [said(charged + 1), said(charged - 2)] == [wrong, wrong]


def test_a_charge_of_a_client_that_there_is_not_is_not_accounted(of_clients: Bundle) -> None:
    run = charge(of_clients, 0, clients=(12,))
    assert says(run, "accounting") == (
        "NOT VERIFIED",
        "a charge names a client that does not exist",
    )
    assert says(charge(of_clients, 0, clients=(11,)), "accounting")[0] == "PASS"


def test_the_finding_lists_what_each_client_spent_and_claims(noised_by_clients: Bundle) -> None:
    details = judged(noised_by_clients, "accounting").details
    ledger = noised_by_clients.readable_ledger
    claimed = {row["client"]: row for row in (ledger.claim or {})["server"]["clients"]}
    assert [row["client"] for row in details["clients"]] == sorted(claimed)
    for row in details["clients"]:
        own = uploads(ledger)[row["client"]]
        assert row["participations"] == len(own)
        assert row["epsilon"] == budget([Steps(1.0, composed_multiplier(own), 1)], 1e-3).epsilon
        assert row["claimed"] == claimed[row["client"]]["epsilon"]["pld"]
    assert details["third_party"]["rounds"] == 24
    assert details["delta"] == 1e-3
    assert details["epsilon"] == details["over_rounds"][-1]["third_party"]
    assert [row["round"] for row in details["over_rounds"]] == list(range(1, 25))
