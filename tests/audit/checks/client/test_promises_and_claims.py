"""Whole clients: each number of spec, header, charges and claim is held to the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.accounting.budget import Steps, budget
from audit.accounting.selection import Law, selection_cost
from audit.checks.client.accounting import (
    composed_multiplier,
    over_rounds,
    third_party_history,
    uploads,
    worst_uploads,
)
from audit.checks.client.views import TRUSTED_SERVER
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger import Ledger, Stopped, Trial
from audit.reading.sparsification import Sparsification
from audit.reading.spends import Spend
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_client_run import ClientSettings, build_client_run

Document = dict[str, Any]
OFF = 1.0 + 1.1e-9
WITHIN = 1.0 + 0.9e-9


def charge(bundle: Bundle, place: int, **changes: Any) -> Bundle:
    spends = list(bundle.readable_ledger.round_spends)
    spends[place] = replace(spends[place], **changes)
    return changed(bundle, ledger={"round_spends": tuple(spends)})


def ended(bundle: Bundle, place: int, **changes: Any) -> Bundle:
    rounds = list(bundle.readable_ledger.rounds)
    rounds[place] = replace(rounds[place], **changes)
    return changed(bundle, ledger={"rounds": tuple(rounds)})


# The promise.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s["privacy"].update(clipping_norm=0.5 * OFF), "clipping_norm: the spec says"),
        (lambda s: s["privacy"].update(noise_multiplier=1.5 * OFF), "noise_multiplier: the spec"),
        (lambda s: s["privacy"].update(delta=1e-3 * OFF), "delta: the spec says"),
        (lambda s: s["privacy"].update(adjacency="replace-one"), "adjacency: the spec says"),
        (lambda s: s["privacy"].update(noise_added_by="clients"), "noise_added_by: the spec says"),
        (lambda s: s["privacy"]["sampling"].update(kind="poisson"), "sampling: the spec says"),
        (lambda s: s["privacy"].update(unit="record"), "unit: the spec says record"),
        (lambda s: s["federation"].update(rounds=25), "rounds: the spec says 25, the ledger 24"),
        (lambda s: s["federation"].update(local_steps=2), "local_steps: the spec says 2"),
        (lambda s: s["data"].update(clients=13), "clients: the spec says 13, the ledger 12"),
        (
            lambda s: s.update(tune={"selection": "private", "mean_trials": 3, "shape": 1.0}),
            "tuning: only one of spec and ledger says that this is a trial of a selection",
        ),
        (
            lambda s: s.update(budget={"file": "spent.db", "epsilon": 9.0, "delta": 1e-3}),
            "budget: only one of spec and ledger names one",
        ),
        (lambda s: s["federation"].update(max_epsilon=99.0), "max_epsilon: the spec says 99.0"),
    ],
)
def test_a_spec_that_promises_another_number_is_named(
    of_clients: Bundle, change: Callable[[Document], object], said: str
) -> None:
    verdict, text = says(changed(of_clients, spec=change), "promise")
    assert verdict == "FAIL"
    assert text.startswith(said)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"participation": 0.25 * OFF}, "participation: the ledger's is not clients_per_round / "),
        ({"participation": None}, "participation: the ledger's is not clients_per_round / clients"),
        (
            {"client_sampling": "fixed-size"},
            "only Poisson sampling of clients under add-remove has this accounting",
        ),
        (
            {"sparsification": Sparsification("random", 340, 170, 0)},
            "sparsification: the ledger's is not the spec's",
        ),
        (
            {"tuning": Trial(1, 3, "0" * 64)},
            "tuning: only one of spec and ledger says that this is a trial of a selection",
        ),
    ],
)
def test_a_header_that_declares_another_mechanism_is_named(
    of_clients: Bundle, header: Document, said: str
) -> None:
    verdict, text = says(changed(of_clients, header=header), "promise")
    assert verdict == "FAIL"
    assert said in text


def test_another_adjacency_than_add_remove_has_no_accounting(of_clients: Bundle) -> None:
    run = changed(
        of_clients,
        spec=lambda s: s["privacy"].update(adjacency="replace-one"),
        header={"adjacency": "replace-one"},
    )
    assert says(run, "promise") == (
        "FAIL",
        "only Poisson sampling of clients under add-remove has this accounting",
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clipping_norm": 0.5 * OFF}, "clipping_norm differs from the header's"),
        ({"noise_multiplier": 1.5 * OFF}, "noise_multiplier differs from the header's"),
        ({"sampling_rate": 0.25 * OFF}, "sampling_rate differs from the header's"),
        ({"expected_clients": 3.0 * OFF}, "expected_clients differs from the header's"),
        ({"sampling": "fixed-size"}, "sampling differs from the header's client_sampling"),
        ({"upload_noise_multiplier": 1.5}, "upload_noise_multiplier where no upload carries noise"),
    ],
)
def test_each_number_of_a_charge_is_the_headers(
    of_clients: Bundle, change: Document, said: str
) -> None:
    run = charge(of_clients, 0, **change)
    line = of_clients.readable_ledger.round_spends[0].line
    assert says(run, "promise") == ("FAIL", f"ledger.jsonl:{line}: {said}")
    assert says(charge(of_clients, 0, noise_multiplier=1.5 * WITHIN), "promise")[0] == "PASS"


def test_each_upload_carries_a_share_of_sigma_over_the_root_of_m(
    noised_by_clients: Bundle,
) -> None:
    first = noised_by_clients.readable_ledger.round_spends[0]
    share = 1.5 / len(first.clients) ** 0.5
    assert first.upload_noise_multiplier == pytest.approx(share)
    wrong = f"ledger.jsonl:{first.line}: upload_noise_multiplier is not sigma over the root of m"
    for other, verdict in ((share * OFF, "FAIL"), (share * WITHIN, "PASS"), (None, "FAIL")):
        found = says(charge(noised_by_clients, 0, upload_noise_multiplier=other), "promise")
        assert found[0] == verdict
        assert verdict == "PASS" or found[1] == wrong
    adds = says(charge(noised_by_clients, 0, noise_added_by="server"), "promise")[1]
    assert f"ledger.jsonl:{first.line}: noise_added_by differs from the header's" in adds


def test_nobody_noises_an_upload_in_an_empty_round(noised_by_clients: Bundle) -> None:
    spends = noised_by_clients.readable_ledger.round_spends
    place = next(at for at, spend in enumerate(spends) if not spend.clients)
    assert says(noised_by_clients, "promise")[0] == "PASS"
    verdict, text = says(charge(noised_by_clients, place, upload_noise_multiplier=1.5), "promise")
    assert verdict == "FAIL"
    assert "upload_noise_multiplier where no upload carries noise" in text


def test_a_client_makes_no_more_steps_than_were_promised(of_clients: Bundle) -> None:
    first = of_clients.readable_ledger.rounds[0]
    steps = (4, *first.steps[1:])
    assert says(ended(of_clients, 0, steps=steps), "promise") == (
        "FAIL",
        f"ledger.jsonl:{first.line}: a client made more steps than promised",
    )
    assert says(ended(of_clients, 0, steps=(2, *first.steps[1:])), "promise")[0] == "PASS"


def test_delta_is_below_one_over_the_clients(of_clients: Bundle) -> None:
    def said(delta: float) -> str:
        def claim(one: Document) -> None:
            one["delta"] = delta

        spec = changed(
            of_clients,
            spec=lambda s: s["privacy"].update(delta=delta),
            header={"delta": delta},
            claim=claim,
        )
        return says(spec, "promise")[1]

    assert said(1 / 12) == "delta is not below 1/12, one over the number of clients"
    assert "delta is not below" not in said(0.99 / 12)
    details = judged(of_clients, "promise").details
    assert details["delta_clients"] == pytest.approx(12e-3)
    no_claim = changed(of_clients, ledger={"claim": None})
    assert says(no_claim, "promise")[1] == "there is no claim"


def test_a_target_that_a_restarted_round_exceeds_says_so(tmp_path: Path) -> None:
    run = open_bundle(build_client_run(tmp_path / "run", ClientSettings(resumed_round=5)))

    def said(bundle: Bundle) -> tuple[str, str]:
        return says(
            changed(bundle, spec=lambda s: s["privacy"].update(target_epsilon=0.5)), "promise"
        )

    once = (
        "FAIL",
        "the claimed epsilon exceeds the promised target of 0.5 (1 rounds were charged again "
        "after a crash)",
    )
    assert said(run) == once
    # Of a run that was never cut off there is nothing to explain.
    spends = [spend for spend in run.readable_ledger.round_spends if spend.attempt == 1]
    straight = changed(run, ledger={"round_spends": tuple(spends)})
    assert said(straight) == ("FAIL", "the claimed epsilon exceeds the promised target of 0.5")


@pytest.mark.parametrize(("factor", "verdict"), [(OFF, "FAIL"), (WITHIN, "PASS"), (0.5, "FAIL")])
def test_sums_are_divided_by_the_public_number_of_clients(
    of_clients: Bundle, factor: float, verdict: str
) -> None:
    run = changed(of_clients, evidence={7: {"divisor": 3.0 * factor}})
    found = says(run, "promise")
    assert found[0] == verdict
    if verdict == "FAIL":
        assert found[1].startswith("round 7: the noisy sum was divided by something else")


# Integrity.


def integrity(bundle: Bundle) -> list[str]:
    found = judged(bundle, "integrity")
    return found.measurement.split("; ") if found.verdict.value == "FAIL" else []


def test_every_round_is_charged_once_an_attempt_by_its_clients(of_clients: Bundle) -> None:
    first = of_clients.readable_ledger.rounds[0]
    spend = of_clients.readable_ledger.round_spends[0]
    where = f"ledger.jsonl:{first.line}: round 0"
    assert integrity(of_clients) == []
    assert integrity(charge(of_clients, 0, clients=(*spend.clients[1:], 12)))[:2] == [
        f"ledger.jsonl:{spend.line}: charges a client that does not exist",
        f"{where}: the clients charged are not the clients that took part",
    ]
    assert f"{where}: the clients charged are not the clients that took part" in integrity(
        charge(of_clients, 0, clients=spend.clients[1:])
    )
    uncounted = f"{where} is not charged once for each of its attempts 1, 2, …"
    assert uncounted in integrity(charge(of_clients, 0, attempt=2))
    spends = of_clients.readable_ledger.round_spends
    assert uncounted in integrity(changed(of_clients, ledger={"round_spends": spends[1:]}))
    assert uncounted in integrity(changed(of_clients, ledger={"round_spends": (spend, *spends)}))
    late = integrity(charge(of_clients, 0, line=first.line + 1))
    assert late == [f"ledger.jsonl:{first.line + 1}: charged after its round had ended"]


def test_a_charge_of_single_records_has_no_place_among_whole_clients(of_clients: Bundle) -> None:
    single = Spend(3, 0, 1, 1, 30, "poisson", 0.1, 3.0, 0.5, 1.5, 3, 1)
    run = changed(of_clients, ledger={"spends": (single,)})
    assert integrity(run) == ["ledger.jsonl:3: charges a single client's records"]


def test_the_round_that_a_limit_cut_off_may_have_been_charged(of_clients: Bundle) -> None:
    read = of_clients.readable_ledger

    def faults(rounds: int, over: int) -> list[str]:
        spends = [spend for spend in read.round_spends if spend.round < rounds]
        further = replace(spends[-1], round=over, line=900)
        ledger = {
            "rounds": read.rounds[:rounds],
            "round_spends": (*spends, further),
            "stopped": Stopped(rounds, 1.0),
        }
        return integrity(changed(of_clients, ledger=ledger, header={"max_epsilon": 1.0}))

    assert faults(20, 20) == []
    assert faults(20, 21) == ["ledger.jsonl:900: round 21 was not finished"]
    # Beyond the last of all rounds none can have been begun.
    assert "ledger.jsonl:900: round 24 was not finished" in faults(24, 24)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clients": np.array([0, 1, 2, 10])}, "its clients are not the ledger's"),
        ({"attempt": 2}, "is not of the last attempt charged"),
        (
            {"upload_noise_sum_squares": np.ones((4, 3))},
            "has noise of uploads that the ledger knows nothing of",
        ),
    ],
)
def test_evidence_of_a_round_is_of_its_clients_and_its_last_attempt(
    of_clients: Bundle, change: Document, said: str
) -> None:
    run = changed(of_clients, evidence={0: change})
    assert integrity(run) == [f"evidence/round-00000.npz: {said}"]


def test_noise_of_uploads_is_recorded_where_clients_add_it(noised_by_clients: Bundle) -> None:
    assert integrity(noised_by_clients) == []
    silent = changed(noised_by_clients, evidence={0: {"upload_noise_sum_squares": None}})
    found = judged(silent, "integrity")
    assert found.verdict.value == "NOT VERIFIED"
    assert "evidence/round-00000.npz: upload_noise_sum_squares is missing" in found.measurement


# What is claimed towards whom.


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
        (lambda c: c.update(closed_forms={}), "closed_forms is of the record level"),
        (lambda c: c.update(server_worst_case={}), "server_worst_case is of the record level"),
        (lambda c: c["server"].update(epsilon={"pld": 9.0}), "an epsilon is claimed towards the"),
        (lambda c: c["server"].update(clients=[{"client": 1}]), "an epsilon is claimed towards"),
        (lambda c: c.update(tuning={}), "the claim is of a selection, and the spec knows of none"),
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
    rounds = [(item, 1) for item in third_party_history(bundle.readable_ledger)]
    alone = budget([item for item, _ in rounds], 1e-3).headline
    chosen = selection_cost(rounds, 1.0, 1e-3, Law(3.0, 1.0)).least

    def claim(c: Document) -> None:
        c["third_party"].update(epsilon={"rdp": factor * chosen}, accountant="rdp")
        one = {"epsilon": {"pld": alone}, "accountant": "pld"}
        c.update(tuning={"one_trial": one, **all_trials})

    law = {"selection": "private", "mean_trials": 3.0, "shape": 1.0}
    trial = changed(
        bundle,
        spec=lambda s: s.update(tune=law),
        claim=claim,
        header={"tuning": Trial(1, 4, "0" * 64)},
    )
    return says(trial, "views")


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
    assert says(other, "views") == ("FAIL", "the accountant towards the server is not pld")


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


# Accounting.


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
            "client 0: is claimed twice or without having taken part",
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
            lambda c: c["server"]["epsilon"].update(pld=c["server"]["epsilon"]["pld"] * 0.999),
            "the epsilon towards the server is not the largest of the clients'",
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
    assert "client 0: is claimed twice or without having taken part" in says(run, "accounting")[1]
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


# Public coordinates.


def coordinates(bundle: Bundle) -> tuple[str, str]:
    return says(bundle, "coordinates")


def test_a_run_without_public_coordinates_names_none(of_clients: Bundle) -> None:
    found = judged(of_clients, "coordinates")
    assert found.verdict.value == "NOT APPLICABLE"
    assert found.measurement.startswith("updates are released whole: there is no public choice")
    assert found.details == {"kind": None, "kept": 340, "parameters": 340}
    private = changed(
        of_clients, header={"sparsification": Sparsification("local-top", 340, 170, 0)}
    )
    found = judged(private, "coordinates")
    assert found.measurement.startswith("each client chose its own coordinates, which stay private")
    assert found.details == {"kind": "local-top", "kept": 170, "parameters": 340}
    for run in (of_clients, private):
        named = changed(run, evidence={3: {"kept_digest": bytes(32)}})
        assert coordinates(named) == (
            "FAIL",
            "round 3: names kept coordinates, which the ledger knows nothing of",
        )


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A run whose updates are cut to public coordinates."""
    path = tmp_path_factory.mktemp("sparse") / "run"
    return open_bundle(build_client_run(path, ClientSettings(sparsification="random", rounds=4)))


@pytest.mark.parametrize(
    ("change", "verdict", "said"),
    [
        ({"kept_digest": None}, "NOT VERIFIED", "the coordinates that were kept are not recorded"),
        (
            {"upload_kept_digests": None},
            "NOT VERIFIED",
            "the coordinates that were kept are not recorded",
        ),
        (
            {"elsewhere_sum_squares": None},
            "NOT VERIFIED",
            "what was released elsewhere is not recorded",
        ),
        (
            {"kept_digest": bytes(32)},
            "FAIL",
            "the server read other coordinates than the public ones",
        ),
        (
            {"upload_kept_digests": (bytes(32),)},
            "FAIL",
            "a client kept other coordinates than the public ones",
        ),
        (
            {"elsewhere_sum_squares": 1e-300},
            "FAIL",
            "the release is not 0 off the public coordinates",
        ),
    ],
)
def test_public_coordinates_are_the_same_for_all_and_nothing_lies_elsewhere(
    sparse: Bundle, change: Document, verdict: str, said: str
) -> None:
    assert coordinates(sparse)[0] == "PASS"
    assert judged(sparse, "coordinates").details == {
        "kind": "random",
        "kept": 170,
        "parameters": 340,
    }
    assert coordinates(changed(sparse, evidence={1: change})) == (verdict, f"round 1: {said}")
