"""How much rounding explains of what was computed again, number by number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.checks.shared.recomputed import (
    UNIT,
    Recomputed,
    _clean,
    _clipping,
    _noise,
    _norms,
)
from audit.reexecution.base import (
    QueryAgain,
    UpdateAgain,
)


def test_a_unit_of_rounding_is_float32s_and_hardly_more() -> None:
    assert 2.0**-24 < UNIT < 2.0**-24 * (1.0 + 2.0**-19)


@pytest.mark.parametrize(
    ("spacing", "off", "right"),
    [
        # Two units of noise, clean sum and what is noted: 1 + 2 + 1, then half a spacing.
        (0.0, 7.9 * UNIT, True),
        (0.0, 8.1 * UNIT, False),
        (0.0, -7.9 * UNIT, True),
        (0.0, -8.1 * UNIT, False),
        (1e-3, 0.499e-3, True),
        (1e-3, 0.502e-3, False),
    ],
)
def test_noise_that_is_noted_may_be_off_by_its_rounding(
    spacing: float, off: float, right: bool
) -> None:
    tally, one = Recomputed(), np.ones(1)
    _noise("here", one, one + off, 2.0 * one, spacing, tally)
    assert tally.reasons == ([] if right else ["here: its noise is not what the key gives"])


def _query(**changes: Any) -> QueryAgain:
    given = {
        "records": np.arange(1), "gradient": np.array([2.0], np.float32), "noise": np.zeros(1),
        "spacing": 0.0, "divisor": 2.0, "clean": np.array([4.0]), "bound": 0.0,
        "norms": np.ones(1, np.float32), "raw_norms": np.ones(1), "norm_errors": np.zeros(1),
        "moved": lambda: np.zeros(1),
    }  # fmt: skip
    return QueryAgain(**{**given, **changes})


def test_a_gradient_may_be_off_by_two_roundings_and_half_a_spacing() -> None:
    # Two units of a noisy sum of 4.
    assert _clean(_query(clean=np.array([4.0 - 7.9 * UNIT])), 1.0)[0] == 0.0
    assert _clean(_query(clean=np.array([4.0 - 9.0 * UNIT])), 1.0)[0] == pytest.approx(UNIT)
    wide = _query(clean=np.array([4.0 - 0.499]), spacing=1.0)
    assert _clean(wide, 1.0)[0] == 0.0
    assert _clean(replace(wide, clean=np.array([3.4])), 1.0)[0] == pytest.approx(0.1, rel=1e-4)
    # As far as its bound explains, no kink is looked for.
    assert _clean(_query(clean=np.array([4.0 - 9.0 * UNIT]), bound=1.0), 1.0)[1] == 1.0


def test_a_record_beside_a_kink_counts_before_and_after_and_clipped() -> None:
    off = _query(clean=np.zeros(1), raw_norms=np.array([4.0]), moved=lambda: np.array([0.5]))
    # Of a record of norm 4 clipping to 1 leaves a quarter.
    assert _clean(off, 1.0)[1] == pytest.approx(2.0 * 0.5 / 4.0)
    assert _clean(replace(off, raw_norms=np.array([0.5])), 1.0)[1] == pytest.approx(2.0 * 0.5)


def test_norms_that_are_no_numbers_are_the_same_and_weigh_nothing() -> None:
    def said(norms: list[float], raw: list[float], noted: list[float]) -> Recomputed:
        tally = Recomputed()
        query = _query(
            norms=np.array(norms, np.float32),
            raw_norms=np.array(raw),
            norm_errors=np.zeros(len(raw)),
            # It takes long, and nothing here needs it.
            moved=lambda: pytest.fail("was asked how far kinks move a norm"),
        )
        _norms("here", [(query, np.array(noted))], True, tally)
        return tally

    assert said([np.nan, 1.0], [np.nan, 1.0], [np.nan, 1.0]).reasons == []
    one_infinite = said([np.inf], [1.0], [np.inf])
    assert (one_infinite.reasons, one_infinite.lengthened) == ([], 0.0)
    # A batch may be empty, and a record's gradient zero.
    assert said([], [], []).reasons == []
    assert said([0.0], [0.0], [0.0]).lengthened == 0.0


def _clipped(taken: list[float], clipped: list[float], **more: Any) -> list[str]:
    made = np.array(taken, np.float32)
    sent = np.array(clipped, np.float32)
    given = {
        "update": made, "reference": made.astype(np.float64), "bound": 0.0,
        "moved": lambda: 0.0, "taken": made, "clipped": sent, "noise": None, "upload": sent,
        "spacing": 0.0, "bits": None,
    }  # fmt: skip
    return _clipping(UpdateAgain(**{**given, **more}), 1.0)


def test_what_is_kept_of_an_update_is_what_is_largest() -> None:
    wrong = ["what was left out of its update is larger than what was kept"]
    assert _clipped([0.5, 0.5], [0.5, 0.0]) == []
    assert _clipped([0.8, 0.1, 0.5], [0.8, 0.1, 0.0]) == wrong
    # Nothing was kept of an update of nothing.
    assert _clipped([0.0, 0.0], [0.0, 0.0]) == []


def test_one_coordinate_that_is_not_scaled_like_the_others_is_found() -> None:
    wrong = ["its update was not clipped to the clipping norm"]
    assert _clipped([0.5, 0.25], [0.5, 0.26]) == wrong
    assert _clipped([0.5, 0.25], [0.51, 0.25]) == wrong
    # Eight roundings of float32.
    near = float(np.float32(0.5 * (1.0 + 7.0 * 2.0**-24)))
    far = float(np.float32(0.5 * (1.0 + 20.0 * 2.0**-24)))
    assert _clipped([0.5, 0.25], [near, 0.25]) == []
    assert _clipped([0.5, 0.25], [far, 0.25]) == wrong


@pytest.mark.parametrize(
    ("noise", "spacing", "bits", "right"),
    [
        # The upload is 0.5 + 1.5; what it may be off by is a share of its size, 2.
        (1.5 + 3.9 * UNIT, 0.0, None, True),
        (1.5 + 4.1 * UNIT, 0.0, None, False),
        (1.5 + 0.499e-3, 1e-3, None, True),
        (1.5 + 0.502e-3, 1e-3, None, False),
        (1.5 + 0.99 * 2.0**-7, 0.0, 8, True),
        (1.5 + 1.01 * 2.0**-7, 0.0, 8, False),
    ],
)
def test_an_upload_is_the_clipped_update_and_the_keys_noise_as_it_was_written(
    noise: float, spacing: float, bits: int | None, right: bool
) -> None:
    found = _clipped(
        [0.5], [0.5], noise=np.array([noise]), upload=np.array([2.0], np.float32),
        spacing=spacing, bits=bits,
    )  # fmt: skip
    wrong = ["its upload is not its clipped update and the noise that the key gives"]
    assert found == ([] if right else wrong)
    # Where the server adds the noise, the upload is the clipped update exactly.
    assert _clipped([0.5], [0.5], upload=np.array([0.5 + 2.0**-24])) == wrong
