"""What the active probe asks for, and which of the answers it compares."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from audit.probe import updates as updates_of
from audit.probe.probing import run_probe
from audit.probe.updates import (
    ABSENT,
    ADDED,
    ADDED_PRECISELY,
    ELSEWHERE,
    NOT_DRAWN,
    REPLACED,
    UNEQUAL,
    ProbeTally,
    run_update_probe,
    shortened,
)
from tests.audit.synthetic_client_run import SumProbe
from tests.audit.synthetic_run import SoftmaxProbe

CLIP = 0.5


class Asked(SoftmaxProbe):
    """Notes how many records each step draws, and may treat the record in one place wrongly."""

    def __init__(self, place: int | None = None) -> None:
        super().__init__(CLIP)
        self.drawn: list[int] = []
        self.place = place

    def sum_of_step(self, inputs, labels, clients, drawn, elsewhere=False):
        self.drawn.append(len(drawn))
        total = super().sum_of_step(inputs, labels, clients, drawn, elsewhere)
        if self.place is not None and len(drawn) > 1:
            record = np.nan_to_num(inputs[clients == 0][drawn[self.place]], nan=1.0)
            total[:6] += CLIP * (1.5 + np.sign(record))
        return total


class AmongOthers(SoftmaxProbe):
    """Notes how many records of each client a step is shown that it does not draw."""

    def __init__(self) -> None:
        super().__init__(CLIP)
        self.shown: list[tuple[int, ...]] = []

    def sum_of_step(self, inputs, labels, clients, drawn, elsewhere=False):
        assert len(inputs) == len(labels) == len(clients)
        assert (clients[drawn] == 0).all()
        counted = np.bincount(clients) - np.array([len(drawn), 0, 0])
        self.shown.append(tuple(counted.tolist()))
        return super().sum_of_step(inputs, labels, clients, drawn, elsewhere)


def largest(found, kind):
    return found["difference_norm"][found["kind"] == kind].max()


def test_no_step_is_asked_for_twice_but_the_first():
    probe = Asked()
    found = run_probe(probe)
    assert (len(probe.drawn), sum(probe.drawn)) == (30, 96)
    assert len(found["names"]) == len(set(found["names"])) == 60


def test_each_step_lies_among_records_of_its_own_client_and_two_others_that_it_does_not_draw():
    """Else nobody would see a step that reads all of a client's records, or of all clients'."""
    probe = AmongOthers()
    run_probe(probe)
    least = (3, 3, 3)
    assert all(min(one) >= 3 for one in probe.shown)
    assert probe.shown[0] == probe.shown[-1] == least
    # What a step does not draw is also moved: more of it is there in some of the questions.
    assert any(one > least for one in probe.shown)


@pytest.mark.parametrize("place", [0, -1])
def test_a_record_that_counts_for_more_in_the_first_or_the_last_place_is_seen(place):
    assert largest(run_probe(Asked()), REPLACED) <= 2 * CLIP
    found = run_probe(Asked(place))
    assert largest(found, ADDED) > CLIP
    if place == 0:
        assert largest(found, REPLACED) > 2 * CLIP


@pytest.mark.parametrize(("wrong", "where"), [("client", NOT_DRAWN), ("all", ABSENT)])
def test_what_moves_a_sum_without_being_drawn_is_told_by_where_it_lies(wrong, where):
    found = run_probe(SoftmaxProbe(CLIP, wrong))
    assert largest(found, where) > 0.01 * CLIP
    if where == NOT_DRAWN:
        assert largest(found, ABSENT) == 0.0


class Padded(SoftmaxProbe):
    """A mean over as many places as the longest record has, of the batch or of itself alone."""

    def __init__(self, attended: bool) -> None:
        super().__init__(CLIP)
        self.attended = attended

    def clipped_sum(self, inputs, labels, weights):
        places = np.where(inputs != 0, np.arange(1, inputs.shape[1] + 1), 1).max(1, initial=1)
        longest = places.max(initial=1) if self.attended else places[:, None]
        return super().clipped_sum(inputs / longest, labels, weights)


@pytest.mark.parametrize("attended", [False, True])
def test_a_record_whose_length_moves_others_is_seen_among_shorter_ones_alone(attended):
    found = run_probe(Padded(attended))
    assert (largest(found, UNEQUAL) > 0.01 * CLIP) == attended
    assert largest(found, REPLACED) <= 2 * CLIP


def test_records_are_shortened_on_every_axis_to_different_lengths():
    short = shortened(np.ones((4, 2, 8), np.float32))
    assert short[:, 0].sum(1).tolist() == [2, 3, 4, 2]
    assert not short[:, 1].any()


class Rounding(SoftmaxProbe):
    """A step that rounds a record of zeros beside others, and tells how it is without rounding."""

    def __init__(self, mixing: float = 0.0, refused: Collection[int] = ()) -> None:
        super().__init__(CLIP)
        self.mixing, self.refused = mixing, refused
        self.asked_precisely = 0

    def _sum(self, share, inputs, labels, clients, drawn, elsewhere=False):
        total = super().sum_of_step(inputs, labels, clients, drawn, elsewhere)
        blank = ~np.any(inputs[clients == 0][drawn], axis=tuple(range(1, inputs.ndim)))
        if len(drawn) > 1 and blank.any():
            total[0] += share * CLIP
        return total

    def sum_of_step(self, *asked, elsewhere=False):
        return self._sum(0.002 + self.mixing, *asked, elsewhere)

    def precise_sum_of_step(self, *asked):
        self.asked_precisely += 1
        if self.asked_precisely in self.refused:
            raise RuntimeError("expected scalar type Float but found Double")
        return self._sum(self.mixing, *asked)


@pytest.mark.parametrize("mixing", [0.0, 0.003])
def test_only_a_pair_that_counts_otherwise_is_asked_for_again_in_float64(mixing):
    probe = Rounding(mixing)
    found = run_probe(probe)
    names = found["names"][found["kind"] == ADDED_PRECISELY]
    assert list(names) == [f"all zero, {ADDED}, batch of 3"]
    assert probe.asked_precisely == 3
    assert largest(found, ADDED) == pytest.approx((0.002 + mixing) * CLIP)
    assert largest(found, ADDED_PRECISELY) == pytest.approx(mixing * CLIP, abs=1e-12)


@pytest.mark.parametrize("refused", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_a_step_that_cannot_be_computed_in_float64_has_no_second_opinion(
    refused: tuple[int, ...],
) -> None:
    """It takes the record among others, the others without it, and the record alone."""
    found = run_probe(Rounding(refused=refused))
    assert ADDED_PRECISELY not in found["kind"]
    assert largest(found, ADDED) > 0.001 * CLIP


class Signs:
    """A regression whose records are all clipped: the sum follows the signs of its errors alone."""

    clipping_norm, parameters, input_shape, classes, grey_levels = CLIP, 6, (6,), 3, False

    def __init__(self, stale: bool) -> None:
        self.stale = stale

    def sum_of_step(self, inputs, labels, clients, drawn, elsewhere=False):
        return self._sum(inputs, labels, clients, drawn, 0.005 if elsewhere else 0.01)

    def sum_of_step_far_off(self, inputs, labels, clients, drawn):
        return self._sum(inputs, labels, clients, drawn, 4.0)

    def _sum(self, inputs, labels, clients, drawn, weight):
        own = np.flatnonzero(clients == 0)[drawn]
        records = np.nan_to_num(inputs[own].astype(np.float64), nan=0.0, posinf=0.0)
        errors = np.sign(records.sum(axis=1) * (0.01 if self.stale else weight) - labels[own] - 0.5)
        norms = np.linalg.norm(records, axis=1)
        return (records * (CLIP * errors / np.where(norms > 0, norms, 1.0))[:, None]).sum(axis=0)


def test_a_step_that_nearby_parameters_leave_as_it_is_is_asked_for_further_away():
    found = run_probe(Signs(stale=False))
    rows = found["kind"] == ELSEWHERE
    assert [str(name) for name in found["names"][rows]] == [
        "other parameters, batch of 3",
        "parameters further away, batch of 3",
    ]
    near, far = found["difference_norm"][rows]
    assert near == 0.0 < far


def test_a_step_at_stale_parameters_is_the_same_further_away_too():
    found = run_probe(Signs(stale=True))
    assert found["difference_norm"][found["kind"] == ELSEWHERE].tolist() == [0.0, 0.0]


def test_a_difference_is_that_of_long_sums_over_their_whole_length():
    drawn = np.random.default_rng(1)
    one, other = drawn.normal(size=(2, 100_000))
    tally = ProbeTally(CLIP, len(one), rows=2)
    tally.add("alone", ADDED, 1, one, other)
    assert tally.last_difference == pytest.approx(np.linalg.norm(one - other), rel=1e-12)
    tally.add_parts("in parts", ADDED, 2, one, (other, 2 * one))
    assert tally.last_difference == pytest.approx(np.linalg.norm(one + other), rel=1e-12)


@pytest.mark.parametrize("rows", [5, 500])
def test_each_row_has_the_norms_of_both_its_sums_and_of_their_difference(rows: int) -> None:
    """A sum that stands in several pairs is measured once; long ones are not kept."""
    one, other, third = np.random.default_rng(4).normal(size=(3, 100_000))
    tally = ProbeTally(CLIP, len(one), rows=rows)
    tally.add("first", ADDED, 1, one, other)
    tally.add("left again", REPLACED, 2, one, third)
    tally.add("right again", ABSENT, 3, third, other)
    tally.add("other sides", NOT_DRAWN, 4, other, one)
    tally.add_parts("in parts", UNEQUAL, 5, third, (one, other))
    found = tally.arrays()
    pairs = [(one, other), (one, third), (third, other), (other, one), (third, one + other)]
    for name, values in (
        ("norm_with", [left for left, _ in pairs]),
        ("norm_without", [right for _, right in pairs]),
        ("difference_norm", [left - right for left, right in pairs]),
    ):
        due = [np.linalg.norm(value) for value in values]
        assert found[name] == pytest.approx(due, rel=1e-12), name
    assert found["names"].tolist() == [
        "first", "left again", "right again", "other sides", "in parts",
    ]  # fmt: skip
    assert found["kind"].tolist() == [ADDED, REPLACED, ABSENT, NOT_DRAWN, UNEQUAL]
    assert found["batch_size"].tolist() == [1, 2, 3, 4, 5]
    assert found["clipping_norm"] == CLIP
    assert ("sums_with" in found) is ("sums_without" in found) is (rows == 5)
    if rows == 5:
        assert np.array_equal(found["sums_with"], [left for left, _ in pairs])
        assert np.array_equal(found["sums_without"], [right for _, right in pairs])


def test_sums_are_kept_where_all_of_them_take_32_mebibytes_at_most() -> None:
    for rows, kept in ((2**6, True), (2**6 + 1, False)):
        tally = ProbeTally(CLIP, 2**15, rows=rows)
        tally.add("alone", ADDED, 1, np.ones(2**15), np.zeros(2**15))
        assert ("sums_with" in tally.arrays()) is kept


@pytest.mark.parametrize(
    ("share", "counts"),
    [(32, [0, 1, 7, 31]), (31, [0, 1, 7]), (8, [0, 1, 7]), (7, [0, 1]), (0, [0, 1])],
)
def test_rounds_of_updates_are_as_large_as_memory_allows_and_never_none(
    share: int, counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = SumProbe(CLIP)

    def asked() -> list[str]:
        names = run_update_probe(probe)["names"].tolist()
        return [name for name in names if name.startswith("duplicate, ")]

    assert asked() == [f"duplicate, round of {count}" for count in (0, 1, 7, 31)]
    monkeypatch.setattr(updates_of, "_MOST_COORDINATES", share * probe.parameters)
    assert asked() == [f"duplicate, round of {count}" for count in counts]


class Listening(SumProbe):
    """Notes the updates of each round."""

    def __init__(self) -> None:
        super().__init__(CLIP)
        self.rounds: list[np.ndarray] = []

    def clipped_sum_of_updates(self, updates: np.ndarray) -> np.ndarray:
        self.rounds.append(updates)
        return super().clipped_sum_of_updates(updates)


@pytest.mark.parametrize("count", [1, 7, 31])
def test_the_update_that_is_one_more_is_what_its_kind_says(count: int) -> None:
    probe = Listening()
    found = run_update_probe(probe)
    # Each size of round is asked for without one more, and then once for each pair.
    pairs = [
        str(name) for name in found["names"] if ", round of " in name and "clients" not in name
    ]
    per_size = len(pairs) // 4
    start = [0, 1, 7, 31].index(count) * (per_size + 1)
    names = pairs[[0, 1, 7, 31].index(count) * per_size :][:per_size]
    others = probe.rounds[start]
    assert len(others) == count
    extra = {}
    for name, updates in zip(names, probe.rounds[start + 1 :][:per_size], strict=True):
        kind = name.removesuffix(f", round of {count}")
        if kind == "repeat":
            assert np.array_equal(updates, others)
            continue
        middle = count // 2
        assert np.array_equal(np.delete(updates, middle, axis=0), others)
        extra[kind] = updates[middle].astype(np.float64)
    assert tuple(extra) == updates_of.UPDATE_KINDS
    ordinary, size = extra["ordinary"], probe.parameters
    assert np.linalg.norm(ordinary) == pytest.approx(0.9 * CLIP, rel=1e-6)
    half = extra["long in one half"] / ordinary
    assert half == pytest.approx([50.0] * (size // 2) + [1.0] * (size // 2), rel=1e-6)
    assert extra["scaled by 1e3"] == pytest.approx(1e3 * ordinary, rel=1e-6)
    assert np.abs(extra["scaled by 1e30"]).max() == pytest.approx(1e30, rel=1e-6)
    assert np.array_equal(np.sign(extra["scaled by 1e30"]), np.sign(ordinary))
    assert (extra["plus infinity"] == np.inf).all()
    assert np.isnan(extra["not a number"]).all()
    infinite = np.isinf(extra["one coordinate infinite"])
    assert np.flatnonzero(infinite).tolist() == [size // 2]
    assert np.array_equal(extra["one coordinate infinite"][~infinite], ordinary[~infinite])
    assert extra["minus 1e38"] == pytest.approx(-1e38)
    assert not extra["all zero"].any()
    assert np.array_equal(extra["duplicate"], others[0])
    assert np.array_equal(extra["opposite update"], -others[0])
    # Some are clipped and some are not, where there are several.
    norms = np.linalg.norm(others, axis=1) / CLIP
    assert (norms >= 0.24).all()
    assert (norms <= 4.01).all()
    assert count == 1 or norms.min() < 1.0 < norms.max()
