"""The running error analysis: what float32 cannot hold is known no more, from there on."""

from __future__ import annotations

import numpy as np
import pytest

from audit.replay.participation import Tally
from audit.replay.rounding import OVERFLOW, exact, mean_of

HUGE = exact(np.array([1.0, 0.6 * OVERFLOW]))


def test_half_of_the_largest_float32_is_where_a_result_may_be_infinite() -> None:
    assert 2.0 * float(np.finfo(np.float32).max) > 2.0 * OVERFLOW > np.finfo(np.float32).max
    assert np.isfinite((HUGE * 1.6).value).all()
    assert np.isnan((HUGE * 1.7).value).tolist() == [False, True]


@pytest.mark.parametrize(
    "further",
    [
        lambda found: found * 0.0,
        lambda found: found / HUGE,
        lambda found: exact(1.0) / found,
        lambda found: found.square().root(),
        lambda found: found.at_least(0.0),
        lambda found: found.signs(),
        lambda found: mean_of([found, HUGE]),
        lambda found: found - found,
    ],
)
def test_what_is_made_of_it_is_not_known_either_and_nothing_else_is_touched(further) -> None:
    found = further(HUGE + HUGE)
    assert np.isnan(found.value).tolist() == [False, True]


def test_a_tally_compares_what_it_can_and_says_from_where_on_it_could_not() -> None:
    tally = Tally()
    tally.compare("round 0, the upload", HUGE.value, HUGE)
    assert (tally.diverged, tally.reasons) == ((), [])
    tally.compare("round 1, the upload,", np.array([2.0, np.inf]), HUGE + HUGE)
    tally.compare("round 2, the upload", np.array([2.0, 7.0]), HUGE + HUGE)
    assert tally.reasons == []
    assert "training diverged: round 1, the upload is out of float32's range" in tally.diverged[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3.0])
def test_numbers_that_are_none_where_there_should_be_some_fail(bad: float) -> None:
    tally = Tally()
    tally.compare("round 1, the upload,", np.array([bad, np.inf]), HUGE + HUGE)
    assert tally.reasons == [
        "round 1, the upload, is not what follows from the released values, at 1 of 2 coordinates"
    ]
