"""Batches of a loop: which counts they may have, and how soon equal ones are no chance."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import checks_of
from audit.checks.loop import steps
from audit.checks.loop.steps import _Draws, _file
from audit.checks.loop.steps import _judge_sampling as _judge
from audit.errors import UnverifiedError
from audit.reading.ledger_lines import Spend
from audit.reading.loop_evidence import LoopEnd
from audit.reading.units import LOOP

NOTHING_LEFT = LoopEnd(None, 0, 0)
AGAIN = "steps have exactly the batch of an earlier one"


def told(draws: _Draws) -> list[str]:
    reasons: list[str] = []
    draws.judge(reasons)
    return [reason.split(":")[0] for reason in reasons]


@pytest.mark.parametrize("batches", [2, 3, 5])
@pytest.mark.parametrize("rate", [0.3, 0.5, 0.9])
def test_equal_batches_are_told_where_chance_makes_any_more_rarely(
    monkeypatch: pytest.MonkeyPatch, batches: int, rate: float
) -> None:
    records = 30
    # Each record is in both batches or in neither, for each pair of batches.
    chance = comb(batches, 2) * (rate * rate + (1.0 - rate) * (1.0 - rate)) ** records
    draws = _Draws(records)
    for number in range(batches):
        draws.add(np.array([max(number, 1)]), 0, rate)
    for share, said in ((1.0 + 1e-9, [AGAIN]), (1.0 - 1e-9, [])):
        monkeypatch.setattr(steps, "_BY_CHANCE", chance * share)
        assert told(draws) == said


def test_batches_that_are_equal_in_one_loop_of_a_million_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def twice(records: int) -> _Draws:
        draws = _Draws(records)
        draws.add(np.array([0]), 0, 0.5)
        draws.add(np.array([0]), 0, 0.5)
        return draws

    # 2^-20 is a little less than a millionth, 2^-19 is not.
    assert told(twice(20)) == [AGAIN]
    assert told(twice(19)) == []
    monkeypatch.setattr(steps, "_BY_CHANCE", 2.0**-20)
    assert told(twice(20)) == []
    # An epoch in order, drawn whole: equal batches are what it always has.
    whole = _Draws(150)
    for _ in range(3):
        whole.add(np.arange(150), 0, 1.0)
    assert told(whole) == []


def test_batches_of_several_rates_are_as_equal_as_those_of_the_rate_that_repeats_most() -> None:
    for rates, said in (((0.5, 0.5), [AGAIN]), ((0.5, 0.9), []), ((0.9, 0.5), [])):
        draws = _Draws(60)
        for rate in rates:
            draws.add(np.array([3, 4]), 0, rate)
        assert told(draws) == said


def test_batches_that_are_equal_early_and_not_late_are_equal() -> None:
    draws = _Draws(60)
    for first in (1, 1, 2, 3):
        draws.add(np.array([first, 4]), 0, 0.5)
    assert told(draws) == [AGAIN]
    twice = _Draws(60)
    for batch in ([1, 1], [2, 3], [4, 5]):
        twice.add(np.array(batch), 0, 0.5)
    assert told(twice) == ["a record is in the batch of one step twice"]


def test_the_first_batch_of_each_attachment_is_held_against_usual_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def seeded(rows: Any, records: int, rate: float) -> bool:
        asked.append((rows.tolist(), records, rate))
        return bool(rows[0] == 7)

    monkeypatch.setattr(steps, "seeded_batch", seeded)
    draws = _Draws(60)
    for first, attachment in ((3, 1), (7, 1), (2, 0), (8, 0), (1, 1)):
        draws.add(np.array([first, 0]), attachment, 0.25 if attachment else 0.5)
    assert told(draws) == []
    assert asked == [([0, 3], 60, 0.25), ([0, 2], 60, 0.5), ([0, 1], 60, 0.25)]
    draws.add(np.array([7, 9]), 5, 0.25)
    assert len(told(draws)) == 1


def charge(**changes: Any) -> Spend:
    made = Spend(
        line=2, round=0, client=0, attempt=1, records=5, sampling="poisson", sampling_rate=0.5,
        expected_batch_size=2.5, clipping_norm=1.0, noise_multiplier=1.0, steps=1,
        queries_per_step=1,
    )  # fmt: skip
    return replace(made, **changes)


def a_file(batches: list[list[int]], **changes: Any) -> Any:
    """A file whose steps have these batches."""
    sizes = [len(batch) for batch in batches]
    made = {
        "rows": np.array([row for batch in batches for row in batch], dtype=np.int64),
        "row_offsets": np.cumsum([0, *sizes]),
        "batch_size": np.array([sizes]),
        "attachment": 3,
        "unused": np.zeros(len(batches), np.int64),
        "skipped": np.zeros(len(batches), np.int64),
    }
    return SimpleNamespace(**{**made, **changes})


class Noted:
    """Stands for batches or draws, and notes what was added."""

    def __init__(self) -> None:
        self.added: list[Any] = []

    def add(self, *given: Any) -> None:
        self.added.append(given)


def filed(evidence: Any, **changes: Any) -> tuple[list[str], list[Any], list[Any]]:
    batches: Any = Noted()
    draws: Any = Noted()
    reasons: list[str] = []
    _file(4, evidence, charge(**changes), batches, draws, reasons)
    return reasons, batches.added, draws.added


def test_every_batch_of_a_file_is_added_with_its_size_and_how_often_records_were_used() -> None:
    reasons, batches, draws = filed(a_file([[0, 2], [], [2, 3, 1]]))
    assert reasons == []
    ((where, paid, sizes, used, into),) = batches
    assert (where, paid.records, into) == ("file 4", 5, [])
    assert (sizes.tolist(), used.tolist()) == ([2, 0, 3], [1, 1, 2, 1, 0])
    due = [([0, 2], 3, 0.5), ([], 3, 0.5), ([2, 3, 1], 3, 0.5)]
    assert [(rows.tolist(), at, rate) for rows, at, rate in draws] == due


def test_a_file_of_empty_batches_is_one_too() -> None:
    reasons, batches, draws = filed(a_file([[], []]), records=1)
    assert reasons == []
    assert batches[0][2].tolist() == [0, 0]
    assert batches[0][3].tolist() == [0]
    assert len(draws) == 2


@pytest.mark.parametrize(("row", "right"), [(4, True), (5, False), (6, False)])
def test_a_batch_names_records_that_exist(row: int, right: bool) -> None:
    reasons, batches, draws = filed(a_file([[0, row]]))
    assert reasons == ([] if right else ["file 4: a batch names a record that does not exist"])
    assert (len(batches), len(draws)) == ((1, 1) if right else (0, 0))


@pytest.mark.parametrize(
    ("sizes", "right"), [([[2, 1]], True), ([[2, 2]], False), ([[1, 1]], False)]
)
def test_a_step_has_as_many_gradients_as_its_batch_has_records(
    sizes: list[list[int]], right: bool
) -> None:
    reasons, batches, _ = filed(a_file([[0, 1], [2]], batch_size=np.array(sizes)))
    assert [reason.split(" (")[0] for reason in reasons] == (
        [] if right else ["file 4: a step does not have as many gradients as its batch has records"]
    )
    # The batches are judged by themselves.
    assert batches[0][2].tolist() == [2, 1]


def test_counts_of_up_to_a_hundred_million_records_fit_into_memory() -> None:
    evidence = a_file([[100_000_000]])
    with pytest.raises(UnverifiedError, match="too many records to count"):
        filed(evidence, records=100_000_001)
    # One less is looked at: the batch names a record behind the last.
    assert filed(evidence, records=100_000_000)[0] == [
        "file 4: a batch names a record that does not exist"
    ]
    with pytest.raises(UnverifiedError, match="which records each batch held is not recorded"):
        filed(a_file([[0]], rows=None))


def a_loop(files: list[Any], end: LoopEnd = NOTHING_LEFT, **header: Any) -> Any:
    said = {"sampling": "poisson", "records": (5,), "sampling_rate": 0.5}
    paid = tuple(charge(round=index, line=index + 2) for index in range(len(files)))
    return SimpleNamespace(
        header=SimpleNamespace(**{**said, **header}),
        readable_ledger=SimpleNamespace(spends=paid),
        loop_end=lambda: end,
        loop_rounds=lambda: list(enumerate(files)),
    )


def test_batches_without_a_step_are_added_up_over_all_files_and_the_end() -> None:
    files = [
        a_file([[0], [1, 2]], unused=np.array([1, 2]), skipped=np.array([0, 10])),
        a_file([[3], [4]], unused=np.array([0, 4]), skipped=np.array([20, 40])),
    ]
    found = _judge(a_loop(files, LoopEnd(None, 8, 80)))
    assert (found.private["looked_at"], found.private["passed_over"]) == (15, 150)
    assert found.details == {"steps": 4}
    assert found.verdict.value == "FAIL"
    assert found.measurement == f"{steps._LOOKED_AT}; {steps._PASSED_OVER}"


def test_a_loop_whose_batches_are_not_known_has_no_power() -> None:
    found = _judge(a_loop([a_file([[0], [1]], rows=None)]))
    assert (found.verdict.value, found.power) == ("NOT VERIFIED", "none")
    assert found.private == {"looked_at": 0, "passed_over": 0}
    assert found.details == {"steps": 0}
    # What is known of others is told, and not taken for all.
    both = _judge(a_loop([a_file([[0], [1]], rows=None), a_file([[1], [1]])]))
    assert both.measurement == "which records each batch held is not recorded"
    assert both.details == {"steps": 2}
    assert both.power not in (None, "none")


def test_the_rate_is_that_of_the_charges_whatever_the_header_leaves_out() -> None:
    """Sixty records, of which two batches in a row are the same."""
    batch = list(range(0, 60, 2))
    for rate in (None, 0.5):
        told = a_loop([a_file([batch, batch])], records=(60,), sampling_rate=rate)
        told.readable_ledger.spends = (charge(records=60, expected_batch_size=30.0, steps=2),)
        assert AGAIN in _judge(told).measurement


def test_the_loop_s_check_on_sampling_is_known_by_its_name() -> None:
    assert [one.name for one in checks_of(LOOP)] == [
        "integrity", "promise", "sampling", "sensitivity", "noise-scale", "steps", "weights",
        "reexecution", "accounting", "disclosure", "randomness", "outside-budget",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["reexecution", "outside-budget"])
def test_what_is_not_judged_of_a_loop_has_no_power(name: str) -> None:
    (check,) = (one for one in checks_of(LOOP) if one.name == name)
    assert check.power == "none"
