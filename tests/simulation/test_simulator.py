"""Schedules of crashes hold, and a step that is taken out of the product is missed."""

from __future__ import annotations

import pytest

from tests.simulation.mutations import MUTATIONS, applied
from tests.simulation.simulator import ScheduleError, run_all

SCHEDULES = 10_000
PARTS = 100
# A mutation must be noticed within so many.
FEW = 200


@pytest.mark.sampled(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_or_spent_twice_in_ten_thousand_schedules(part):
    size = SCHEDULES // PARTS
    tally = run_all(range(part * size, (part + 1) * size))
    assert tally["schedules"] == size
    # About three a schedule: were it none, nothing would have been tried.
    assert tally["draws of noise"] > 2 * size


@pytest.mark.sampled(7)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_step_that_is_taken_out_or_moved_is_noticed(mutation):
    with applied(mutation), pytest.raises(ScheduleError, match="--schedules 1 --seed "):
        run_all(range(mutation.seed, mutation.seed + FEW))


def test_a_failure_is_shown_again_by_its_seed():
    mutation = next(one for one in MUTATIONS if one.name == "later metrics are not forgotten")
    with applied(mutation):
        with pytest.raises(ScheduleError) as first:
            run_all(range(mutation.seed, mutation.seed + FEW))
        with pytest.raises(ScheduleError) as again:
            run_all([first.value.seed])
    assert again.value.what == first.value.what
