"""How much rounding explains of what was computed again, number by number."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks.shared.recomputed import (
    _NOTED,
    _SUMMED,
    UNIT,
    Recomputed,
    _clean,
    _clipping,
    _noise,
    _norms,
    _release,
    _update,
)
from audit.recomputed import RecomputedQuery, RecomputedRelease, RecomputedUpdate


def test_a_unit_of_rounding_is_float32s_and_hardly_more() -> None:
    # Half a unit in the last place of float32, and a millionth of that for float64's roundings.
    assert UNIT == 2.0**-24 + 2.0**-44
    # A norm or noise is noted with two of them, and sums of float64 agree to a billionth.
    assert (_NOTED, _SUMMED) == (2.0**-23 + 2.0**-43, 1e-9)


def test_a_tally_begins_with_nothing() -> None:
    tally = Recomputed()
    assert tally == Recomputed([], [], 0, 0, 0, 0.0, 0.0, 0.0, False)
    assert tally.reasons is not Recomputed().reasons


@pytest.mark.parametrize("bound", [np.nan, np.inf])
def test_where_rounding_explains_anything_nothing_was_compared(bound: float) -> None:
    tally = Recomputed()
    tally.bound("one", 0.0, bound, 4.0)
    assert tally.reasons == []
    assert "training diverged" in tally.unjudged[0]
    tally.bound("two", np.nan, 1.0, 4.0)
    assert tally.reasons


def test_a_bound_is_told_by_its_share_and_by_what_hides_below_it() -> None:
    tally = Recomputed()
    tally.bound("one", 0.25, 0.5, 4.0)
    # A half of the bound; twice the bound over C could hide.
    assert (tally.closest, tally.hidden, tally.reasons) == (0.5, 0.25, [])
    tally.bound("two", 0.125, 1.0, 4.0)
    assert (tally.closest, tally.hidden) == (0.5, 0.5)
    tally.bound("three", 0.0, 0.0, 4.0)
    tally.bound("four", 0.75, 0.75, 4.0)
    assert (tally.closest, tally.hidden, tally.reasons) == (1.0, 0.5, [])
    tally.bound("five", 3.0, 2.0, 4.0)
    assert (tally.closest, tally.hidden) == (1.5, 1.0)
    tally.bound("six", float("nan"), 2.0, 4.0)
    tally.bound("seven", 1e-30, 0.0, 4.0)
    assert [reason.split(":")[0] for reason in tally.reasons] == ["five", "six", "seven"]
    assert "differs by 0.75 C from" in tally.reasons[0]
    assert tally.reasons[0].endswith("explains only 0.5 C")
    nothing = Recomputed()
    nothing.bound("none", 0.0, 0.0, 4.0)
    assert nothing == Recomputed()


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


def _query(**changes: Any) -> RecomputedQuery:
    given = {
        "records": np.arange(1), "gradient": np.array([2.0], np.float32), "noise": np.zeros(1),
        "spacing": 0.0, "divisor": 2.0, "clean": np.array([4.0]), "bound": 0.0,
        "norms": np.ones(1, np.float32), "raw_norms": np.ones(1), "norm_errors": np.zeros(1),
        "moved": lambda: np.zeros(1),
    }  # fmt: skip
    return RecomputedQuery(**{**given, **changes})


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
    return _clipping(RecomputedUpdate(**{**given, **more}), 1.0)


def test_what_is_kept_of_an_update_is_what_is_largest() -> None:
    wrong = ["a coordinate left out of its update is larger than one that was kept"]
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


def test_noise_is_the_key_s_at_every_coordinate() -> None:
    def said(noted: list[float]) -> bool:
        tally = Recomputed()
        _noise("here", np.zeros(2), np.array(noted), np.zeros(2), 0.0, tally)
        return tally.reasons == []

    # Where there is nothing, nothing may be noted.
    assert said([0.0, 0.0])
    assert not said([0.0, 1e-30])
    assert not said([1e-30, 0.0])


def test_a_sum_that_is_explained_without_kinks_asks_for_none() -> None:
    def never() -> Any:
        pytest.fail("was asked how far kinks move a norm")

    assert _clean(_query(moved=never), 1.0) == (0.0, 0.0)
    two = _query(
        gradient=np.array([2.0, 2.0], np.float32), noise=np.array([1.0, -1.0]),
        clean=np.array([3.0, 5.0]), spacing=0.25, bound=0.5, moved=never,
    )  # fmt: skip
    assert _clean(two, 1.0) == (0.0, 0.5)
    # Beyond half a spacing and two units of 4, the parts add up as a vector.
    off = replace(two, clean=np.array([3.0 - 0.125 - 0.3, 5.0 + 0.125 + 0.4]))
    assert _clean(off, 1.0) == (pytest.approx(0.5 - 8.0 * UNIT * 1.4, rel=1e-9), 0.5)


def test_kinks_add_to_what_the_second_computation_may_be_off_by() -> None:
    query = _query(
        clean=np.zeros(1), bound=0.25, raw_norms=np.array([4.0, 0.5, np.nan]),
        moved=lambda: np.array([0.5, 0.125, np.nan]),
    )  # fmt: skip
    # A quarter is left of the first, all of the second, and nothing is known of the third.
    assert _clean(query, 1.0)[1] == 0.25 + 2.0 * (0.5 / 4.0 + 0.125)
    assert _clean(query, 0.25)[1] == 0.25 + 2.0 * (0.5 / 16.0 + 0.125 / 2.0)


def norms(*queries: tuple[RecomputedQuery, list[float]], same: bool = True) -> list[str]:
    tally = Recomputed()
    _norms("here", [(query, np.array(noted)) for query, noted in queries], same, tally)
    return [reason.removeprefix("here: ") for reason in tally.reasons]


def sized(due: float, taken: float, error: float = 0.0, moved: float = 0.0) -> RecomputedQuery:
    """A record's norm as it is and as clipping took it, and by how much either may be off."""
    return _query(
        raw_norms=np.array([due]), norms=np.array([taken]), norm_errors=np.array([error]),
        moved=lambda: np.array([moved, np.nan]),
    )  # fmt: skip


SHORT = ["norms are shorter than its records' gradients are"]


@pytest.mark.parametrize("due", [1e-3, 4.0])
@pytest.mark.parametrize("error", [0.0, 1e-6])
def test_a_norm_is_short_by_its_error_and_two_roundings_of_itself(due: float, error: float) -> None:
    allowed = error * due + _NOTED * due
    for share, said in ((1.0 - 1e-6, []), (1.0 + 1e-6, SHORT)):
        query = sized(due, due - share * allowed, error * due)
        assert norms((query, query.norms.tolist()), same=False) == said
        # One of a participation's queries may have what another one left.
        exact = sized(due, due, 2.0 * allowed - _NOTED * due)
        assert norms((query, query.norms.tolist()), (exact, exact.norms.tolist()), same=False) == []
        assert norms((exact, exact.norms.tolist()), (query, query.norms.tolist()), same=False) == []


def test_kinks_move_a_norm_beside_its_own_error() -> None:
    # 5 is the length of 3 and 4.
    for due, said in ((4.999, []), (5.001, SHORT)):
        query = sized(due, 0.0, 3.0 - _NOTED * due, moved=4.0)
        assert norms((query, [0.0]), same=False) == said
        first, second = sized(due, 0.0, 3.0 - _NOTED * due), sized(1.0, 1.0, moved=4.0)
        assert norms((first, [0.0]), (second, [1.0]), same=False) == said
    # As far as they move it, and no more.
    assert norms((sized(1.0, 0.5, -_NOTED, moved=0.5), [0.5]), same=False) == []


def test_norms_that_were_noted_are_those_of_every_query() -> None:
    right, other = (sized(1.0, 1.0), [1.0]), (sized(2.0, 2.0), [2.0000005])
    said = ["norms noted are not those of its records' gradients"]
    assert norms(right, right) == []
    assert norms(right, other) == norms(other, right) == said
    # Computed on another machine they may be others.
    assert norms(right, other, same=False) == []
    missing = ["the evidence lacks a norm for one of its records"]
    assert norms(right, (sized(1.0, 1.0), [1.0, 1.0])) == missing
    assert norms((sized(1.0, 1.0), []), right, same=False) == missing


def test_the_longest_that_a_norm_was_taken_to_be_is_kept() -> None:
    tally = Recomputed()
    for due, taken in ((2.0, 3.0), (4.0, 4.5), (2.0, 2.0)):
        _norms("here", [(sized(due, taken), np.array([taken]))], True, tally)
    assert (tally.lengthened, tally.reasons) == (0.5, [])


# Clipping an update to C: 2^-22 below it, and eight units of what is sent.


@pytest.mark.parametrize(
    ("units", "right"), [(-13, False), (-12, True), (-4, True), (4, True), (6, False)]
)
def test_an_update_is_clipped_a_little_below_c_and_by_eight_roundings_at_most(
    units: int, right: bool
) -> None:
    sent = 1.0 + units * 2.0**-24
    assert float(np.float32(sent)) == sent
    wrong = ["its update was not clipped to the clipping norm"]
    assert _clipped([2.0], [sent]) == ([] if right else wrong)
    assert _clipped([-2.0], [-sent]) == ([] if right else wrong)


def test_every_coordinate_is_scaled_alike() -> None:
    """Of a norm of 5 a fifth is left."""
    for first, second, right in ((22, 22, True), (22, 20, False), (20, 22, False)):
        sent = [0.6 * (1.0 - 2.0**-first), 0.8 * (1.0 - 2.0**-second)]
        wrong = ["its update was not clipped to the clipping norm"]
        assert _clipped([3.0, 4.0], sent) == ([] if right else wrong)


def test_an_update_of_norm_c_is_shortened_and_a_shorter_one_is_not() -> None:
    assert _clipped([0.5], [0.5]) == []
    assert _clipped([0.5], [0.5 - 2.0**-21]) != []
    # An update of nothing stays that; a number from nowhere is told.
    assert _clipped([0.0], [2.0**-30]) == ["its update was not clipped to the clipping norm"]
    assert _clipped([0.25], [0.5]) == ["its update was not clipped to the clipping norm"]
    assert _clipped([0.25], [-0.25]) == ["its update was not clipped to the clipping norm"]


def test_eight_units_are_just_allowed() -> None:
    sent = np.array([2.0**20])
    taken = sent + 8.0 * UNIT * sent
    assert float(taken[0] - sent[0]) == 8.0 * UNIT * 2.0**20
    again = RecomputedUpdate(
        update=taken, reference=taken, bound=0.0, moved=lambda: 0.0, taken=taken, clipped=sent,
        noise=None, upload=sent, spacing=0.0, bits=None,
    )  # fmt: skip
    assert _clipping(again, 2.0**22) == []
    further = np.nextafter(taken, np.inf)
    assert len(_clipping(replace(again, taken=further), 2.0**22)) == 1


@pytest.mark.parametrize("taken", [[np.nan, 0.5], [0.5, np.inf], [np.inf, np.nan]])
def test_of_an_update_that_is_not_finite_nothing_is_sent(taken: list[float]) -> None:
    assert _clipped(taken, [0.0, 0.0]) == []
    for sent in ([0.0, 0.5], [0.5, 0.0], [0.5, 0.5]):
        assert _clipped(taken, sent) == ["an update that is not finite was sent"]


def test_one_wrong_coordinate_of_an_upload_is_found() -> None:
    wrong = ["its upload is not its clipped update and the noise that the key gives"]
    noise = np.array([1.5, -1.0])
    right = np.array([2.0, -0.75], np.float32)
    assert _clipped([0.5, 0.25], [0.5, 0.25], noise=noise, upload=right) == []
    for place in (0, 1):
        other = right.copy()
        other[place] *= np.float32(1.0 + 2.0**-20)
        assert _clipped([0.5, 0.25], [0.5, 0.25], noise=noise, upload=other) == wrong
    # A grid of a quarter moves it by an eighth.
    for off, right_too in ((0.124, True), (0.126, False)):
        upload = np.array([2.0 + off, -0.75], np.float32)
        found = _clipped([0.5, 0.25], [0.5, 0.25], noise=noise, upload=upload, spacing=0.25)
        assert found == ([] if right_too else wrong)


# One client's participation.


def participation(
    again: RecomputedUpdate, noted: float, squares: Any = None, same: bool = True, clip: float = 4.0
) -> Recomputed:
    tally = Recomputed()
    bundle: Any = SimpleNamespace(
        header=SimpleNamespace(declared=lambda name: {"clipping_norm": clip}[name])
    )
    evidence: Any = SimpleNamespace(
        raw_norms=np.array([99.0, noted]),
        upload_noise_sum_squares=None if squares is None else np.array([[9.0, 9.0], squares]),
    )
    part: Any = SimpleNamespace(update=lambda: again)
    _update(bundle, "here", part, evidence, 1, same, tally)
    return tally


def an_update(**changes: Any) -> RecomputedUpdate:
    """One of norm 2 of its two largest coordinates; the third is left out."""
    made = np.array([1.2, 1.6, 0.5])
    kept = np.array([1.2, 1.6, 0.0])
    given = {
        "update": made, "reference": made, "bound": 0.0, "moved": lambda: 0.0, "taken": made,
        "clipped": kept, "noise": None, "upload": kept, "spacing": 0.0, "bits": None,
    }  # fmt: skip
    return RecomputedUpdate(**{**given, **changes})


def test_the_norm_that_is_noted_is_that_of_what_was_kept() -> None:
    said = ["here: the norm noted is not that of its update"]
    for sign in (1.0, -1.0):
        for share, right in ((0.999, True), (1.001, False)):
            noted = 2.0 * (1.0 + sign * share * _NOTED)
            assert participation(an_update(), noted).reasons == ([] if right else said)
            assert participation(an_update(), noted, same=False).reasons == []
    for endless in (np.inf, np.nan):
        assert participation(an_update(), endless).reasons == []
    assert participation(an_update(), 2.0).queries == 1


def test_of_the_noise_of_an_upload_the_squares_are_noted() -> None:
    kept, noise = np.array([1.2, 1.6, 0.0]), np.array([0.0, 0.0, 2.0])
    noised = an_update(noise=noise, upload=kept + noise)
    said = ["here: the noise noted of its upload is not what the key gives"]
    for sign in (1.0, -1.0):
        for share, right in ((0.999, True), (1.001, False)):
            squares = [1.0, 3.0 + 4.0 * sign * share * 1e-9]
            assert participation(noised, 2.0, squares).reasons == ([] if right else said)
            assert participation(noised, 2.0, squares, same=False).reasons == []
    assert participation(noised, 2.0).reasons == said
    # Without noise of its own there is none to note; noise of nothing has no squares.
    assert participation(an_update(), 2.0).reasons == []
    silent = an_update(noise=np.zeros(3))
    assert participation(silent, 2.0, [0.0, 0.0]).reasons == []
    assert participation(silent, 2.0, [0.0, 1e-30]).reasons == said


def test_what_a_training_is_off_by_is_told_over_c() -> None:
    far = an_update(reference=np.array([1.2, 1.6, 1.0]), bound=0.25, moved=lambda: 0.0625)
    # All of the update counts towards its length, 2.06, which is below C.
    whole = participation(far, 2.0)
    assert whole.reasons[0].startswith("here: its local training: differs by 0.12 C from")
    assert whole.hidden == 2.0 * 0.375 / 4.0
    assert whole.closest == pytest.approx(0.5 / 0.375)
    enough = replace(far, moved=lambda: 0.125)
    assert participation(enough, 2.0).reasons == []


# A release: its own rounding, and 2^-40 of what was added up for it.


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("share", "right"), [(0.999, True), (1.001, False)])
def test_sums_that_cancel_are_off_by_what_float64_leaves_of_their_parts(
    share: float, right: bool, sign: float
) -> None:
    total, noise = 2.0**20, 3.0 - 2.0**20
    # Two units of 3, and 2^-40 of nearly 2^21.
    allowed = 6.0 * UNIT + 2.0**-40 * (2.0**21 - 3.0)
    release = RecomputedRelease(
        released=np.array([1.0, 1.0], np.float32),
        total=np.array([total, total + sign * share * allowed]),
        noise=np.array([noise, noise]), spacing=0.0, divisor=3.0, bits=None,
    )  # fmt: skip
    bundle: Any = SimpleNamespace(
        header=SimpleNamespace(declared=lambda name: {"clipping_norm": 0.5}[name]),
        layout=lambda: SimpleNamespace(sample_coordinates=np.array([1])),
    )
    evidence: Any = SimpleNamespace(
        noise_sample=np.array([2.0 * noise]), clean_sample=np.array([total])
    )
    tally = Recomputed()
    _release(bundle, "here", release, evidence, tally)
    wrong = ["here: its release is not its uploads' sum and the key's noise"]
    assert tally.reasons == ([] if right else wrong)
    # A grid of two moves it by one.
    for off, fits in ((0.999, True), (1.001, False)):
        tally = Recomputed()
        wide = replace(release, total=np.array([total + sign * off, total]), spacing=2.0)
        _release(bundle, "here", wide, evidence, tally)
        assert tally.reasons == ([] if fits else wrong)
