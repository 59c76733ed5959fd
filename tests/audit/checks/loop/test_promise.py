"""What a loop declares, charge by charge, and what its sums were divided by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import checks_of
from audit.checks.loop.ledger import _divisors
from audit.checks.loop.ledger import _judge_promise as _judge
from audit.errors import UntrustedFileError
from audit.reading.ledger_lines import Spend
from audit.reading.units import LOOP


def charge(index: int = 0, **changes: Any) -> Spend:
    made = {
        "line": index + 2, "round": index, "client": 0, "attempt": 1, "records": 8,
        "sampling": "poisson", "sampling_rate": 0.5, "expected_batch_size": 4.0,
        "clipping_norm": 0.5, "noise_multiplier": 1.0, "steps": 1, "queries_per_step": 1,
    }  # fmt: skip
    return Spend(**{**made, **changes})


def divided(*files: list[float], charges: tuple[Spend, ...]) -> tuple[list[str], list[str]]:
    reasons: list[str] = []
    unreadable: list[str] = []
    bundle: Any = SimpleNamespace(
        readable_ledger=SimpleNamespace(spends=charges),
        loop_rounds=lambda: [
            (index, SimpleNamespace(measured_divisor=np.array(one)))
            for index, one in enumerate(files)
        ],
    )
    _divisors(bundle, reasons, unreadable)
    return [one.split(" by ")[0] for one in reasons], unreadable


OTHER = "file {}: a noised sum was not divided"
UNSEEN = "file {}: the divisor of the noised sum cannot be determined"


@pytest.mark.parametrize(
    ("files", "due", "other", "unseen"),
    [
        ([[4.0, 4.0], [4.0]], 4.0, [], []),
        ([[4.0 * (1 + 0.999e-3), 4.0 * (1 - 0.999e-3)]], 4.0, [], []),
        ([[4.0, 4.0 * (1 + 1.001e-3)]], 4.0, [0], []),
        ([[4.0 * (1 - 1.001e-3), 4.0], [4.0]], 4.0, [0], []),
        ([[4.0], [4.0, 5.0]], 4.0, [1], []),
        ([[8.0], [4.0]], 4.0, [0], []),
        ([[-4.0]], 4.0, [0], []),
        # A divisor of 1 is one like any other.
        ([[1.0, 1.0]], 1.0, [], []),
        ([[4.0, 1.0]], 4.0, [0], []),
        # Where it does not show, the others are judged.
        ([[4.0, 0.0]], 4.0, [], [0]),
        ([[0.0, 0.0], [4.0]], 4.0, [], [0]),
        ([[0.0, 5.0], [0.0, 4.0]], 4.0, [0], [0, 1]),
    ],
)
def test_every_sum_is_divided_by_the_batch_size_that_was_charged(
    files: list[list[float]], due: float, other: list[int], unseen: list[int]
) -> None:
    charges = tuple(charge(index, expected_batch_size=due) for index in range(len(files)))
    assert divided(*files, charges=charges) == (
        [OTHER.format(index) for index in other],
        [UNSEEN.format(index) for index in unseen],
    )


def test_each_file_has_the_batch_size_of_its_own_charge() -> None:
    charges = charge(0), charge(1, expected_batch_size=2.0)
    assert divided([4.0], [2.0], charges=charges) == ([], [])
    assert divided([4.0], [4.0], charges=charges) == ([OTHER.format(1)], [])
    # What was never charged is for other checks.
    assert divided([4.0], [9.0], charges=charges[:1]) == ([], [])


CLAIM = {"delta": 1e-3, "adjacency": "add-remove"}


def judged(*charges: Spend, claim: Any = CLAIM, loop_rounds: Any = list, **header: Any) -> Any:
    said = {
        "records": (8,), "sampling": "poisson", "adjacency": "add-remove", "delta": 1e-3,
        "of_clients": False, "clipping_norm": 0.5,
    }  # fmt: skip
    top = SimpleNamespace(**{**said, **header})
    top.declared = lambda name: {"delta": top.delta}[name]
    bundle: Any = SimpleNamespace(
        header=top,
        readable_ledger=SimpleNamespace(spends=charges, claim=claim),
        loop_rounds=loop_rounds,
    )
    return _judge(bundle)


def test_a_promise_that_was_kept_is_told_in_full() -> None:
    found = judged(charge(), charge(1))
    assert found.verdict.value == "PASS"
    assert found.measurement == (
        "header and every charge agree on records, sampling, delta and adjacency and C; each "
        "noised sum was divided by the public batch size"
    )
    assert found.details == {"delta_records": 8e-3, "charges": 2}
    clients = judged(charge(), of_clients=True).measurement
    assert clients.startswith("whole clients are protected, so a record is a client and a ")
    for clips, told in (((0.5, 0.5), " and C;"), ((0.5, 0.6), ", C changes during the loop;")):
        both = [charge(index, clipping_norm=clip) for index, clip in enumerate(clips)]
        assert told in judged(*both).measurement


def test_one_whose_norm_changes_at_all_is_told_to_change() -> None:
    # Also where no charge has the header's.
    assert ", C changes" in judged(charge(clipping_norm=0.6)).measurement
    assert ", C changes" in judged(charge(), clipping_norm=None).measurement


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"records": 7}, "records differ from the header's"),
        ({"sampling": "shuffled"}, "sampling differs from the header's"),
        ({"queries_per_step": 2}, "sampling differs from the header's"),
        (
            {"sampling": "shuffled", "queries_per_step": 2},
            "sampling differs from the header's",
        ),
    ],
)
def test_every_charge_is_the_header_s(changes: dict[str, Any], said: str) -> None:
    for place in (0, 1):
        charges = [charge(0), charge(1)]
        charges[place] = charge(place, **changes)
        assert judged(*charges).measurement == f"ledger.jsonl:{place + 2}: {said}"


@pytest.mark.parametrize(
    ("header", "claim", "said"),
    [
        (
            {"adjacency": "replace-one"}, {**CLAIM, "adjacency": "replace-one"},
            "poisson batches have no accounting under replace-one",
        ),
        ({"adjacency": "replace-one"}, CLAIM,
         "poisson batches have no accounting under replace-one; the claim's adjacency is not the "
         "header's"),
        ({}, {**CLAIM, "adjacency": "replace-one"}, "the claim's adjacency is not the header's"),
        ({}, {"delta": 1e-3}, "the claim's adjacency is not the header's"),
        ({}, {**CLAIM, "delta": 2e-3}, "the claim's delta is not the header's"),
        ({}, {"adjacency": "add-remove"}, "delta is missing"),
        ({}, None, "there is no claim"),
        ({"delta": 0.125}, {**CLAIM, "delta": 0.125},
         "delta is not below 1/8, the number of records"),
        ({"delta": 0.2}, {**CLAIM, "delta": 0.2}, "delta is not below 1/8, the number of records"),
        ({"delta": float(np.nextafter(0.125, 0.0))}, {**CLAIM, "delta": 0.125}, None),
    ],
)  # fmt: skip
def test_declarations_fit_each_other(header: dict[str, Any], claim: Any, said: str | None) -> None:
    found = judged(charge(), claim=claim, **header)
    assert found.verdict.value == ("PASS" if said is None else "FAIL")
    assert said is None or found.measurement == said


def test_a_sampler_that_nobody_accounts_for_has_no_adjacency() -> None:
    unknown = judged(charge(sampling="random"), sampling="random")
    assert unknown.measurement == "random batches have no accounting under add-remove"
    nothing = judged(charge(), sampling=None)
    assert nothing.measurement == (
        "ledger.jsonl:2: sampling differs from the header's; None batches have no accounting under "
        "add-remove"
    )


def test_evidence_that_cannot_be_read_leaves_the_divisors_unverified() -> None:
    def gone() -> Any:
        raise UntrustedFileError("evidence/round-00000.npz", "is missing")

    found = judged(charge(), loop_rounds=gone)
    assert (found.verdict.value, found.measurement) == (
        "NOT VERIFIED",
        "evidence/round-00000.npz: is missing",
    )


def test_the_check_is_asked_of_loops_by_its_name() -> None:
    (check,) = (one for one in checks_of(LOOP) if one.name == "promise")
    assert check.rule.__module__ == "audit.checks.loop.ledger"
