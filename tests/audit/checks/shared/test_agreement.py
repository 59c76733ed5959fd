"""Spec and ledger agree: each number, each word, and how far a number may be off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks.shared.agreement import (
    agree_on_unit,
    claimed_delta,
    differs,
    divisor_fault,
    number_faults,
    target_fault,
    word_faults,
)
from audit.untrusted.fields import FieldError


def test_numbers_that_were_written_and_read_again_are_the_same_to_a_billionth() -> None:
    # A billionth of 1e9 is 1, and both are exact.
    assert not differs(1e9, 1e9)
    assert not differs(1e9, 1e9 - 1.0)
    assert not differs(1e9 - 1.0, 1e9)
    assert differs(1e9, 1e9 - 1.5)
    assert differs(1e9 - 1.5, 1e9)
    assert differs(-1.0, 1.0)
    assert not differs(0.0, 0.0)
    assert differs(None, 0.0)


SPEC = {
    "federation": {"rounds": 4, "local_steps": 3, "clients_per_round": 2},
    "data": {"clients": 5},
    "privacy": {"unit": "record"},
}


def header(unit: str = "record", **changes: int) -> Any:
    counts = {"rounds": 4, "local_steps": 3, "clients_per_round": 2, "clients": 5}
    return SimpleNamespace(**{**counts, **changes}, unit=SimpleNamespace(name=unit))


@pytest.mark.parametrize(
    ("name", "promised"),
    [("rounds", 4), ("local_steps", 3), ("clients_per_round", 2), ("clients", 5)],
)
def test_each_count_is_the_spec_s(name: str, promised: int) -> None:
    reasons: list[str] = []
    assert agree_on_unit(SPEC, header(), reasons) is True
    assert reasons == []
    assert agree_on_unit(SPEC, header(**{name: 9}), reasons) is True
    assert reasons == [f"{name}: the spec says {promised}, the ledger 9"]
    for section in ("federation", "data"):
        lacking = {key: value for key, value in SPEC[section].items() if key != name}
        if lacking != SPEC[section]:
            with pytest.raises(FieldError, match=f"{name} is missing"):
                agree_on_unit({**SPEC, section: lacking}, header(), [])


def test_one_unit_is_named() -> None:
    reasons: list[str] = []
    assert agree_on_unit(SPEC, header("client"), reasons) is False
    assert reasons == ["unit: the spec says record, the ledger client"]
    for section in ("federation", "data", "privacy"):
        with pytest.raises(FieldError, match=f"{section} is missing"):
            agree_on_unit({key: SPEC[key] for key in SPEC if key != section}, header(), [])
    with pytest.raises(FieldError, match="unit is missing"):
        agree_on_unit({**SPEC, "privacy": {}}, header(), [])


def test_numbers_and_words_that_differ_are_named_one_by_one() -> None:
    reasons: list[str] = []
    number_faults([("a", 1.0, 1.0 + 1e-12), ("b", 2.0, 2.1), ("c", 3.0, None)], reasons)
    assert reasons == ["b: the spec says 2, the ledger 2.1", "c: the spec says 3, the ledger None"]
    reasons.clear()
    word_faults([("a", "x", "x"), ("b", "x", "y"), ("c", "x", None)], reasons)
    assert reasons == ["b: the spec says x, the ledger y", "c: the spec says x, the ledger None"]


def claiming(epsilon: float | None) -> Any:
    view = {"server": {"epsilon": {"pld": epsilon}, "accountant": "pld"}}
    return SimpleNamespace(claim=None if epsilon is None else view)


@pytest.mark.parametrize(
    ("target", "epsilon", "exceeds"),
    [
        (2.0, 2.0 * 1.005 + 1e-3, False),
        (2.0, np.nextafter(2.0 * 1.005 + 1e-3, 9.0), True),
        (200.0, 201.0, False),
        (200.0, 201.0011, True),
        (2.0, 0.1, False),
        (None, 9.0, False),
        (2.0, None, False),
        (None, None, False),
    ],
)
def test_the_epsilon_claimed_may_exceed_its_target_by_what_accountants_differ(
    target: float | None, epsilon: float | None, exceeds: bool
) -> None:
    reasons: list[str] = []
    spec = {"privacy": {"target_epsilon": target}}
    target_fault(spec, claiming(epsilon), "server", reasons, ", whatever")
    told = f"the claimed epsilon exceeds the promised target of {target or 0.0:g}, whatever"
    assert reasons == [told] * exceeds


def test_a_target_stands_in_the_section_on_privacy_and_is_above_zero() -> None:
    with pytest.raises(FieldError, match="privacy is missing"):
        target_fault({}, claiming(1.0), "server", [])
    for wrong in (0.0, -1.0, "two"):
        with pytest.raises(FieldError, match="target_epsilon is not"):
            target_fault({"privacy": {"target_epsilon": wrong}}, claiming(1.0), "server", [])
    with pytest.raises(FieldError, match="third_party is missing"):
        target_fault({"privacy": {"target_epsilon": 2.0}}, claiming(1.0), "third_party", [])


@pytest.mark.parametrize(
    ("divisors", "said"),
    [
        ([[12.0, 12.0], [12.0, 12.0]], []),
        ([[12.0 * (1 + 0.9e-9), 12.0 * (1 - 0.9e-9)]], []),
        ([[12.0, 12.0 * (1 + 1.1e-9)]], ["round 3: other"]),
        ([[12.0 * (1 - 1.1e-9), 12.0]], ["round 3: other"]),
        ([[-12.0]], ["round 3: other"]),
        ([[24.0]], ["round 3: other"]),
        # The first round is told, and no other.
        ([[12.0], [13.0], [14.0]], ["round 4: other"]),
    ],
)
def test_every_sum_of_every_round_is_divided_by_the_public_number(
    divisors: list[list[float]], said: list[str]
) -> None:
    reasons: list[str] = []
    rounds = [
        (index, SimpleNamespace(divisor=np.array(one))) for index, one in enumerate(divisors, 3)
    ]
    divisor_fault(rounds, 12.0, "other", reasons)
    assert reasons == said


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"delta": 1e-5}, []),
        ({"delta": 1e-5 * (1 + 1e-12)}, []),
        ({"delta": 1.1e-5}, ["the claim's delta is not the header's"]),
        (None, ["there is no claim"]),
    ],
)
def test_there_is_a_claim_at_the_header_s_delta(claim: Any, said: list[str]) -> None:
    reasons: list[str] = []
    claimed_delta(SimpleNamespace(claim=claim), 1e-5, reasons)  # type: ignore[arg-type] # The claim alone is read.
    assert reasons == said


def test_a_claim_without_a_delta_is_refused() -> None:
    empty: Any = SimpleNamespace(claim={})
    with pytest.raises(FieldError, match="delta is missing"):
        claimed_delta(empty, 1e-5, [])
