"""The check "outside-budget": each number by which scaling and known test records are told."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import Judgement, unaccounted_processing
from audit.checks.unaccounted_processing import (
    _statements,
    between_its_extremes,
    scaled_by_themselves,
)
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.evidence import Moments, Reach
from audit.reading.units import PERSON, RECORD, Unit
from audit.statistics.intervals import FALSE_ALARM
from audit.untrusted.fields import FieldError
from tests.audit.checks.opened import changed, judged, says

NAME = "outside-budget"
ALL = "the records that the models read have mean 0 and deviation 1 to the last digit"
EACH = "each client's records have mean 0 and deviation 1 to the last digit"
ALL_ENDS = "the records that the models read range from exactly 0 (or -1) to exactly 1"
EACH_ENDS = "each client's records range from exactly 0 (or -1) to exactly 1"
UNTOLD = "how the records were scaled was not measured, because they are tokens or too many"
# By the clients of the run, and of all together.
FAR, SCALED = (0.25, 1.0), (0.0, 1.0)


def with_moments(
    bundle: Bundle, rows: list[tuple[float, float]], numbers: list[int] | None = None
) -> Bundle:
    """The run with means and deviations of the last rows; those before are not scaled."""
    many = bundle.header.clients + 1
    given = [FAR] * (many - len(rows)) + rows
    counts = np.array([64] * (many - len(numbers or [])) + (numbers or []))
    found = Moments(
        numbers=counts,
        mean=np.array([mean for mean, _ in given]),
        deviation=np.array([deviation for _, deviation in given]),
        varying=counts,
    )
    return changed(bundle, files={"moments": found})


def test_a_mean_and_a_variance_at_the_tolerance_are_within_it() -> None:
    def scaled(mean: float, deviation: float, tolerance: float) -> bool:
        one = Moments(np.array([9]), np.array([mean]), np.array([deviation]), np.array([9]))
        return scaled_by_themselves(one, 0, tolerance)

    assert scaled(0.25, 1.0, 0.25) is scaled(-0.25, 1.0, 0.25) is True
    # 1.5 squared is 2.25 and 0.5 squared 0.25: both exact in binary.
    assert scaled(0.0, 1.5, 0.625) is scaled(0.0, 0.5, 0.375) is True
    assert scaled(0.0, 1.5, math.nextafter(0.625, 0.0)) is False
    assert scaled(0.0, 0.5, math.nextafter(0.375, 0.0)) is False


@pytest.mark.parametrize(
    ("mean", "exact", "printed"),
    [
        (4.9e-6, True, True),
        (5.1e-6, False, True),
        (9e-6, False, True),
        (1.9e-3, False, True),
        (2.1e-3, False, False),
        (3.9e-3, False, False),
    ],
)
def test_only_statistics_of_their_own_leave_a_mean_below_five_millionths(
    of_records: Bundle, mean: float, exact: bool, printed: bool
) -> None:
    found = judged(with_moments(of_records, [(mean, 1.0)]), NAME)
    assert found.verdict.value == ("FAIL" if exact else "PASS")
    assert found.measurement.startswith(ALL) is exact
    assert found.private["mean"] == mean
    assert found.private["deviation"] == 1.0
    assert found.private["as_printed_constants_would"] is printed
    assert set(found.private) == {
        "mean", "deviation", "as_printed_constants_would", "test_records_in_training",
        "share_of_records_with_an_equal",
    }  # fmt: skip


def test_all_records_together_are_the_last_row_and_no_client_is(of_records: Bundle) -> None:
    last_client = judged(with_moments(of_records, [SCALED, FAR]), NAME)
    assert last_client.verdict.value == "PASS"
    assert last_client.private["mean"] == 0.25
    both = [*[SCALED] * of_records.header.clients, FAR]
    assert says(with_moments(of_records, both), NAME)[1].startswith(EACH)


def test_clients_with_a_single_number_do_not_clear_the_others(of_records: Bundle) -> None:
    clients = of_records.header.clients
    rows = [*[SCALED] * clients, FAR]

    def said(first: int) -> str:
        numbers = [first, *[64] * clients]
        return says(with_moments(of_records, rows, numbers), NAME)[1]

    assert said(0).startswith(EACH)
    assert said(1).startswith(EACH)
    # Two numbers have a deviation, and this client's are not scaled.
    far = [FAR, *rows[1:]]
    two = with_moments(of_records, far, [2, *[64] * clients])
    assert says(two, NAME)[0] == "PASS"


def reaching(bundle: Bundle, spanning: list[int]) -> tuple[str, str]:
    """What is said where so many of ten columns reach from end to end, by row."""
    values = {"least": -2.5, "greatest": 3.1, "lowest": 1, "highest": 1, "continuous": 10}
    arrays = {name: np.array([value] * len(spanning)) for name, value in values.items()}
    reach = Reach(**arrays, spanning=np.array(spanning))
    return says(changed(bundle, files={"moments": replace(bundle.moments(), reach=reach)}), NAME)


def test_ends_of_all_records_are_told_once_and_those_of_each_client_else(
    of_records: Bundle,
) -> None:
    verdict, text = reaching(of_records, [0, 0, 0, 0, 0, 10])
    assert (verdict, text.startswith(ALL_ENDS)) == ("FAIL", True)
    verdict, text = reaching(of_records, [10] * 6)
    assert (verdict, EACH_ENDS in text, text.startswith(ALL_ENDS)) == ("FAIL", False, True)
    verdict, text = reaching(of_records, [10, 10, 10, 10, 10, 0])
    assert (verdict, text.startswith(EACH_ENDS)) == ("FAIL", True)
    # From two clients on.
    assert reaching(of_records, [10, 10, 0])[1].startswith(EACH_ENDS)
    assert reaching(of_records, [10, 0])[0] == "PASS"
    assert reaching(of_records, [10, 10, 9, 10, 10, 0])[0] == "PASS"


@pytest.mark.parametrize(
    ("columns", "verdict"),
    [
        ([{"name": "a", "kind": "number", "low": -2.0, "high": 2.0}], "PASS"),
        (
            [{"name": "a", "kind": "boolean"}, {"name": "b", "kind": "date", "low": "2015-01-01"}],
            "PASS",
        ),
        ([{"name": "a", "kind": "boolean"}], "FAIL"),
        ([], "FAIL"),
        (None, "FAIL"),
        ("low", "FAIL"),
    ],
)
def test_numbers_cut_at_bounds_that_the_spec_states_may_reach_both(
    of_records: Bundle, columns: Any, verdict: str
) -> None:
    stated = changed(of_records, spec=lambda spec: spec["data"].update(columns=columns))
    assert reaching(of_records, [10] * 6)[0] == "FAIL"
    assert reaching(stated, [10] * 6)[0] == verdict
    if verdict == "PASS":
        assert "no run can show" in reaching(stated, [10] * 6)[1]


def test_an_end_may_be_reached_twice_at_both_sides() -> None:
    def between(lowest: int, highest: int) -> bool:
        values = {"least": -1.0, "greatest": 1.0, "continuous": 3, "spanning": 0}
        arrays = {name: np.array([value]) for name, value in values.items()}
        reach = Reach(**arrays, lowest=np.array([lowest]), highest=np.array([highest]))
        return between_its_extremes(reach, 0)

    assert between(2, 2) is between(1, 2) is between(2, 1) is True
    assert between(3, 1) is between(1, 3) is False


# Records that accuracy is measured on.


def compared(bundle: Bundle, contents: list[int], tested: list[int]) -> Judgement:
    """The finding where records are told apart by one byte."""
    made = {
        name: np.array([[one] * 16 for one in values], np.int64).reshape(-1, 16)
        for name, values in (("contents", contents), ("test_contents", tested))
    }
    return judged(changed(bundle, files={"records": replace(bundle.records(), **made)}), NAME)


@pytest.mark.parametrize(
    ("contents", "share"),
    [([1, 2, 3, 4], 0.0), ([1, 1, 2, 3], 0.5), ([1, 1, 2, 2], 1.0), ([1, 1, 1, 2], 0.75)],
)
def test_a_pair_of_equal_records_counts_as_two(
    of_records: Bundle, contents: list[int], share: float
) -> None:
    found = compared(of_records, contents, [9, 9])
    assert found.private["share_of_records_with_an_equal"] == share
    assert found.private["test_records_in_training"] == 0


def test_without_records_nothing_was_trained_on(of_records: Bundle) -> None:
    found = compared(of_records, [], [9])
    assert found.verdict.value == "PASS"
    assert found.private["share_of_records_with_an_equal"] == 0.0


def test_known_test_records_fail_below_the_false_alarms_and_not_at_them(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, ...]] = []

    def said(value: float, tested: list[int]) -> str:
        def at_least(below: float, many: float, rate: float) -> float:
            asked.append((below, many, rate))
            return value

        law = SimpleNamespace(sf=at_least)
        monkeypatch.setattr(unaccounted_processing, "binom", law)
        return compared(of_records, [1, 1, 2, 3], tested).measurement

    known = "records used to measure accuracy were also used for training"
    assert said(np.nextafter(FALSE_ALARM, 0.0), [1, 2, 9]).startswith(known)
    assert known not in said(FALSE_ALARM, [1, 2, 9])
    # Two of three at least, where half of the records have an equal and one in a hundred more.
    assert asked == [(1, 3, pytest.approx(0.51))] * 2
    # None of them, and no law is asked.
    assert known not in said(0.0, [8, 9])
    assert len(asked) == 2


def test_where_every_record_has_an_equal_test_records_have_them_too(of_records: Bundle) -> None:
    assert compared(of_records, [1, 1, 2, 2], [1] * 50).verdict.value == "PASS"
    assert compared(of_records, [1, 2, 3, 4], [1] * 50).verdict.value == "FAIL"


# What the claim says.


def assuming(bundle: Bundle, assumptions: list[Any]) -> tuple[str, str]:
    return says(changed(bundle, claim=lambda c: c.update(assumptions=assumptions)), NAME)


def test_a_claim_has_a_thousand_assumptions_at_most(of_records: Bundle) -> None:
    said = list((of_records.readable_ledger.claim or {})["assumptions"])
    more = ["another"] * 1000
    assert assuming(of_records, (said + more)[:1000])[0] == "PASS"
    verdict, text = assuming(of_records, (said + more)[:1001])
    assert verdict == "FAIL"
    assert text.startswith("claim: assumptions is not a list of at most 1000 items")


def test_an_assumption_is_read_up_to_4096_characters(of_records: Bundle) -> None:
    said = [
        one for one in (of_records.readable_ledger.claim or {})["assumptions"] if "tuned" not in one
    ]
    words = "hyper-parameters tuned"
    at_the_end = " " * (4096 - len(words)) + words
    assert assuming(of_records, [*said, at_the_end])[0] == "PASS"
    assert assuming(of_records, [*said, at_the_end + " elsewhere"])[0] == "PASS"
    assert assuming(of_records, [*said, at_the_end.upper()])[0] == "PASS"
    beyond = assuming(of_records, [*said, " " + at_the_end])
    assert beyond[1].startswith("the claim does not say that hyper-parameters were not tuned")


DERIVED = "the number of records R of each client is public. The sampling rate q = B/R follows"
FIRST = "the number of records of each client, and so its sampling rate, is public metadata"
OF_PEOPLE = "the number of people of each client is public, and the sampling rate follows"
STATED = "the sampling rate q and the divisor B are public constants that the spec states"


@pytest.mark.parametrize(
    ("rate", "unit", "right"),
    [
        (None, RECORD, (DERIVED, FIRST)),
        (0.2, RECORD, (STATED,)),
        (None, PERSON, (OF_PEOPLE,)),
        (0.2, PERSON, (STATED,)),
    ],
)
def test_what_is_said_of_the_sampling_rate_follows_from_the_header(
    rate: float | None, unit: Unit, right: tuple[str, ...]
) -> None:
    header: Any = SimpleNamespace(
        unit=unit, sampling="poisson", sampling_rate=rate, rate_assumption=None
    )
    others = ["hyperparameters were not tuned", "neighbouring data sets differ by one"]
    for sentence in (DERIVED, FIRST, OF_PEOPLE, STATED):
        reasons: list[str] = []
        _statements({"assumptions": [*others, sentence]}, header, reasons)
        what = "is a constant that the spec states" if rate else "follows from public sizes"
        said = [f"the claim does not say that the sampling rate {what}"]
        assert reasons == ([] if sentence in right else said)
    # Nothing is said of it where it does not move.
    header.sampling, reasons = "fixed-size", []
    _statements({"assumptions": others}, header, reasons)
    assert reasons == []


# Records of which nothing was measured.


def test_records_that_were_not_measured_are_told_apart_from_those_that_were(
    of_records: Bundle,
) -> None:
    many = of_records.header.clients + 1
    none = replace(of_records.moments(), numbers=np.zeros(many, np.int64), reach=None)
    untold = changed(of_records, files={"moments": none})
    found = judged(untold, NAME)
    assert (found.verdict.value, UNTOLD in found.measurement) == ("PASS", True)
    assert found.power == "a claim that omits its assumptions"
    # A client without records is no reason to say so of the others.
    one_without = with_moments(of_records, [FAR], [0, *[64] * (many - 1)])
    passed = judged(one_without, NAME)
    assert (passed.verdict.value, UNTOLD in passed.measurement) == ("PASS", False)
    assert passed.power is None
    # Nor does it help who says nothing of what the claim rests on.
    silent = changed(untold, claim=lambda c: c.update(assumptions=[]))
    verdict, text = says(silent, NAME)
    assert (verdict, text.startswith("the claim does not say that hyper-parameters")) == (
        "FAIL", True,
    )  # fmt: skip


@pytest.mark.parametrize("measured", [True, False])
def test_what_stands_beside_the_claim_stands_beside_the_verdict(
    of_records: Bundle, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unaccounted_processing, "statement_faults", lambda *_: ("said beside",))
    many = of_records.header.clients + 1
    numbers = np.full(many, 64 if measured else 0)
    found = replace(of_records.moments(), numbers=numbers, reach=None)
    passed = judged(changed(of_records, files={"moments": found}), NAME)
    assert (passed.verdict.value, passed.qualifications) == ("PASS", ("said beside",))


def test_a_spec_that_cannot_be_read_of_its_tuning_fails(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faults(spec: Any, claim: Any, reasons: list[str]) -> tuple[str, ...]:
        assert spec is of_records.readable_spec
        assert claim is of_records.readable_ledger.claim
        raise FieldError("tune is not a mapping")

    monkeypatch.setattr(unaccounted_processing, "statement_faults", faults)
    assert says(of_records, NAME) == ("FAIL", "tune is not a mapping")


def test_records_that_cannot_be_read_are_not_verified_and_a_fault_is_told_first(
    of_records: Bundle,
) -> None:
    run = changed(of_records)

    def unreadable() -> Any:
        raise UntrustedFileError("evidence/inputs.npz", "it is not there")

    run.moments = unreadable
    assert says(run, NAME) == ("NOT VERIFIED", "evidence/inputs.npz: it is not there")
    silent = changed(of_records, claim=lambda c: c.update(assumptions=[]))
    silent.moments = unreadable
    assert says(silent, NAME)[0] == "FAIL"
