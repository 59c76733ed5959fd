"""From spend lines to the claim: sums, views, closed forms, and JSON that is finite."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.accounting.pld import epsilon_pld
from dpfedadamw.privacy.accounting.record_level import (
    claim,
    closed_forms,
    no_claim,
    spends_from_ledger,
)
from dpfedadamw.privacy.accounting.worst_case import SpendingBound
from dpfedadamw.privacy.composition import Composition

DELTA = 1e-5


def line(round: int, client: int, records: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "spend",
        "round": round,
        "client": client,
        "attempt": 1,
        "records": records,
        "sampling": "poisson",
        "sampling_rate": 16 / records,
        "expected_batch_size": 16.0,
        "clipping_norm": 1.0,
        "noise_multiplier": 1.5,
        "steps": 5,
        "queries_per_step": 1,
        **changes,
    }


def make_claim(lines: list[dict[str, Any]], records: list[int], **changes: Any) -> dict[str, Any]:
    setting: dict[str, Any] = {
        "clients": len(records),
        "clients_per_round": 2,
        "bound": SpendingBound(6, 5, 1.5),
        "delta": DELTA,
        "per_round": Composition(1.5, 16 / min(records), 5),
        "share": 16 / min(records),
        **changes,
    }
    return claim(spends_from_ledger(lines), **setting)


RECORDS = [100, 200, 400]
LINES = [line(r, c, RECORDS[c]) for r in range(6) for c in ((0, 1) if r < 2 else (1, 2))]


def test_every_spend_line_counts() -> None:
    other: list[dict[str, Any]] = [{"kind": "header"}, {"kind": "round", "round": 0}]
    spends = spends_from_ledger([*other, *LINES, line(5, 2, 400, attempt=2)])
    assert [(s.client, s.participations, s.steps) for s in spends] == [
        (0, 2, 10),
        (1, 6, 30),
        (2, 5, 25),
    ]
    assert spends[1].compositions == (Composition(1.5, 0.08, 30),)


def test_changes_during_a_run_are_kept_apart() -> None:
    lines = [line(0, 0, 100), line(1, 0, 100, noise_multiplier=2.0), line(2, 0, 100)]
    (spend,) = spends_from_ledger(lines)
    assert spend.compositions == (Composition(1.5, 0.16, 10), Composition(2.0, 0.16, 5))
    assert spend.sampling_rate == 0.16


def test_the_claim_has_every_view_and_only_json() -> None:
    made = make_claim(LINES, RECORDS)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert set(made) == {
        "view_headline",
        "delta",
        "adjacency",
        "server",
        "server_worst_case",
        "third_party",
        "closed_forms",
        "assumptions",
        "profile",
    }
    assert set(made["server"]["clients"][0]) == {
        "client",
        "records",
        "sampling_rate",
        "participations",
        "steps",
        "epsilon",
        "delta_records",
    }
    assert made["view_headline"] == "server"
    assert len(made["profile"]) == 40


def test_the_claim_is_what_the_accountants_say() -> None:
    made = make_claim(LINES, RECORDS)
    spent = {entry["client"]: entry["epsilon"]["pld"] for entry in made["server"]["clients"]}
    assert spent == {
        0: epsilon_pld(Composition(1.5, 0.16, 10), DELTA),
        1: epsilon_pld(Composition(1.5, 0.08, 30), DELTA),
        2: epsilon_pld(Composition(1.5, 0.04, 20), DELTA),
    }
    assert made["server"]["epsilon"]["pld"] == max(spent.values())
    # The worst case and the third party's view take the largest rate of ANY client.
    worst = epsilon_pld(Composition(1.5, 0.16, 30), DELTA)
    assert made["server_worst_case"]["epsilon"]["pld"] == worst
    assert made["server"]["epsilon"]["pld"] < worst
    assert 0 < made["third_party"]["epsilon"]["pld"] < worst
    assert made["third_party"]["participation"] == 2 / 3


def test_a_client_that_never_took_part_still_counts_for_the_worst_case() -> None:
    absent = [line(r, c, RECORDS[c]) for r in range(6) for c in (1, 2)]
    made = make_claim(absent, RECORDS)
    assert [entry["client"] for entry in made["server"]["clients"]] == [1, 2]
    assert made["server_worst_case"] == make_claim(LINES, RECORDS)["server_worst_case"]


def test_repeated_rounds_can_lift_the_worst_case() -> None:
    lines = [line(r, 0, 100, attempt=a) for r in range(6) for a in (1, 2)]
    made = make_claim(lines, [100, 200], clients_per_round=1)
    assert made["server"]["epsilon"]["pld"] == epsilon_pld(Composition(1.5, 0.16, 60), DELTA)
    assert made["server_worst_case"]["epsilon"]["pld"] == made["server"]["epsilon"]["pld"]


def test_a_run_in_which_nobody_took_part_spent_nothing() -> None:
    # Where clients are drawn independently, every round may have been empty.
    made = make_claim([], RECORDS, client_sampling="poisson")
    assert made["server"] == {"epsilon": {"pld": 0.0}, "accountant": "pld", "clients": []}
    assert made["server_worst_case"]["epsilon"]["pld"] > 0
    assert any("independently of the others" in note for note in made["assumptions"])


def test_shuffled_epochs_are_charged_for_the_batches_that_one_record_can_be_in() -> None:
    shuffled = {"sampling": "shuffled", "sampling_rate": 1.0}
    # 100 records in batches of 16 are 7 steps an epoch: 5 steps meet a record once, 9 twice.
    lines = [line(0, 0, 100, **shuffled), line(1, 0, 100, steps=9, **shuffled)]
    (spend,) = spends_from_ledger(lines)
    assert spend.compositions == (Composition(1.5, 1.0, 3, 1, "shuffled"),)
    made = make_claim(lines, [100], clients_per_round=1, per_round=spend.compositions[0])
    assert made["adjacency"] == "replace-one"
    assert any("no amplification" in note for note in made["assumptions"])
    assert not any("Poisson" in note for note in made["assumptions"])


def test_a_claim_without_finite_numbers_is_refused() -> None:
    with pytest.raises(PrivacyError, match="noise multiplier"):
        make_claim([line(0, 0, 100, noise_multiplier=0.0)], RECORDS)
    with pytest.raises(PrivacyError, match="delta must lie"):
        make_claim(LINES, RECORDS, delta=1e-15)


def test_no_unit_no_claim() -> None:
    assert no_claim() == {"view_headline": "none"}


def test_closed_forms_of_the_papers() -> None:
    forms = closed_forms(0.016, 1.0, 50, 5, 100, 20, DELTA)
    server = 0.016 * math.sqrt(2000 * math.log(2e5) * math.log(2e7))
    assert forms.server_noble == pytest.approx(server, rel=1e-12)
    assert forms.third_party_noble == pytest.approx(server * math.sqrt(0.1 / 50), rel=1e-12)
    # Eq. (13) is printed as the third party's and is the server's; eq. (14) multiplies by
    # sqrt(N/l) once more: 22-fold here.
    assert forms.equation_13 == forms.server_noble
    assert forms.equation_14 / forms.equation_13 == pytest.approx(22.36, abs=0.01)
    assert forms.delta_server == pytest.approx(5.5 * DELTA, rel=1e-12)
    assert forms.sampling_rate == 0.016


def test_fifty_clients_are_accounted_for_in_seconds() -> None:
    records = [100 + 7 * index for index in range(50)]
    lines = [line(r, c, size) for r in range(40) for c, size in enumerate(records)]
    start = time.perf_counter()
    made = make_claim(lines, records, clients_per_round=50, bound=SpendingBound(40, 5, 1.5))
    # A tenth of this on an idle core.
    assert time.perf_counter() - start < 40
    epsilons = [entry["epsilon"]["pld"] for entry in made["server"]["clients"]]
    assert epsilons == sorted(epsilons, reverse=True)
