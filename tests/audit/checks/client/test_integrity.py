"""Whole clients: rounds are charged, finished and evidenced, each of them once an attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.reading.bundle import Bundle
from audit.reading.ledger import Stopped
from audit.reading.ledger_lines import Spend
from tests.audit.checks.opened import changed, charge, judged

Document = dict[str, Any]


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
            "has noise of uploads of which the ledger says nothing",
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
