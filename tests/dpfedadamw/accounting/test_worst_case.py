"""The most that rules which adapt can spend, against the course counted round by round."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedadamw.accounting import worst_case
from dpfedadamw.accounting.worst_case import (
    Adaptation,
    NoiseDecay,
    SpendingBound,
)
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import Composition

STEP = Composition(sampling_rate=0.1, noise_multiplier=2.0, steps=3, sampling="poisson")


def counted(decay: NoiseDecay, rounds: int) -> list[float]:
    """Each round's least multiple, one decay as soon as the rounds that speak for it are over."""
    found, decays, waited = [], 0, 0
    for index in range(rounds):
        if index > 1:
            waited += 1
            if waited == decay.patience:
                decays, waited = decays + 1, 0
        found.append(max(decay.floor, decay.factor**decays))
    return found


decays = st.builds(
    NoiseDecay,
    factor=st.sampled_from([0.5, 0.8, 0.95, 0.999, 1.0]),
    patience=st.integers(1, 5),
    floor=st.sampled_from([0.01, 0.3, 0.9, 1.0]),
)


@given(decays, st.integers(1, 60))
def test_a_round_has_the_noise_of_the_fastest_decay_and_no_less(decay, rounds):
    assert [decay.least(index) for index in range(rounds)] == pytest.approx(counted(decay, rounds))


@given(decays, st.integers(1, 200))
def test_levels_hold_every_round_at_its_multiple_or_below(decay, rounds):
    levels = decay.levels(rounds)
    assert sum(count for _, count in levels) == rounds
    assert all(count > 0 for _, count in levels)
    multiples = [multiple for multiple, _ in levels]
    assert multiples == sorted(set(multiples), reverse=True)
    assert len(levels) <= worst_case._LEVELS + 1
    each = [multiple for multiple, count in levels for _ in range(count)]
    truth = counted(decay, rounds)
    assert all(low <= real * (1 + 1e-12) for low, real in zip(each, truth, strict=True))
    assert min(each) == pytest.approx(min(truth))
    if len(set(truth)) <= worst_case._LEVELS:
        assert each == pytest.approx(truth)


def test_more_levels_than_are_composed_one_by_one_are_grouped_evenly_in_the_noise():
    decay = NoiseDecay(factor=0.98, patience=1, floor=0.1)
    levels = decay.levels(150)
    assert len(levels) == worst_case._LEVELS + 1
    steps = [1 / after - 1 / before for (before, _), (after, _) in pairwise(levels)]
    # Equal widths in 1/σ, up to the width of one level at the far end.
    assert max(steps) < (1 / 0.1 - 1) / worst_case._LEVELS + (1 / 0.1) * 0.021
    assert levels[0] == (1.0, 2)
    assert levels[-1][0] == 0.1


def adaptive(**changes) -> SpendingBound:
    own = {
        "most_local_steps": 5,
        "step_limit": 20,
        "follows_releases": True,
        "decay": None,
    } | changes
    return SpendingBound(10, 3, 2.0, Adaptation(**own))


def test_steps_are_those_of_every_round_or_their_limit():
    plain = SpendingBound(10, 3, 2.0)
    assert (plain.most_local_steps, plain.most_steps) == (3, 30)
    assert (adaptive().most_local_steps, adaptive().most_steps) == (5, 20)
    assert adaptive(step_limit=None).most_steps == 50
    assert adaptive(step_limit=70).most_steps == 50
    assert plain.everything(STEP) == (replace(STEP, steps=30),)
    (whole,) = adaptive(step_limit=20).everything(replace(STEP, steps=5))
    assert whole.steps == 20
    (whole,) = adaptive(step_limit=60).everything(replace(STEP, steps=5))
    assert whole.steps == 50


def test_noise_falls_by_round_and_counts_at_its_groups_least():
    decay = NoiseDecay(factor=0.5, patience=2, floor=0.2)
    bound = adaptive(step_limit=None, decay=decay)
    truth = [2.0 * one for one in counted(decay, 10)]
    assert [bound.noise_multiplier_of(index) for index in range(10)] == pytest.approx(truth)
    assert [bound.counted_noise_multiplier(index) for index in range(10)] == pytest.approx(truth)
    # A round beyond the last counts as the last.
    assert bound.counted_noise_multiplier(12) == pytest.approx(truth[-1])
    assert bound.least_noise_multiplier == pytest.approx(0.4)
    parts = bound.each_round(STEP)
    assert [(part.noise_multiplier, rounds) for part, rounds in parts] == [
        (2.0, 3),
        (1.0, 2),
        (0.5, 2),
        (0.4, 3),
    ]
    assert [part.steps for part in bound.everything(STEP)] == [9, 6, 6, 9]
    assert SpendingBound(10, 3, 2.0).counted_noise_multiplier(4) == 2.0
    assert SpendingBound(10, 3, 2.0).least_noise_multiplier == 2.0


def spend(index: int, client: int, steps: int, noise: float = 2.0) -> dict[str, object]:
    return {
        "kind": "spend",
        "round": index,
        "attempt": 1,
        "client": client,
        "steps": steps,
        "noise_multiplier": noise,
    }


def test_a_course_that_followed_releases_counts_at_its_most_up_to_the_limit():
    entries = [
        spend(0, 7, 1),
        {"kind": "round", "round": 0},
        *(spend(t, 7, 1) for t in range(1, 6)),
    ]
    found = adaptive().accounted([*entries, spend(1, 8, 2)])
    assert [one["steps"] for one in found if one.get("client") == 7] == [5, 5, 5, 5, 0, 0]
    assert [one["steps"] for one in found if one.get("client") == 8] == [5]
    assert found[1] == entries[1]
    unlimited = adaptive(step_limit=None).accounted(entries)
    assert [one["steps"] for one in unlimited if one["kind"] == "spend"] == [5] * 6
    falling = adaptive(step_limit=None, decay=NoiseDecay(0.5, 1, 0.1)).accounted(entries)
    noise = [one["noise_multiplier"] for one in falling if one["kind"] == "spend"]
    assert noise == pytest.approx([2.0, 2.0, 1.0, 0.5, 0.25, 0.2])


@pytest.mark.parametrize("bound", [SpendingBound(10, 3, 2.0), adaptive(follows_releases=False)])
def test_a_public_course_counts_as_it_was_charged(bound):
    entries = [spend(0, 7, 1), spend(1, 7, 2)]
    assert bound.accounted(entries) == entries


@pytest.mark.parametrize(
    ("steps", "noise", "spent", "refused"),
    [
        (1, 2.0, 0, None),
        (5, 2.0, 15, None),
        (5, 2.0, 16, "asks for 5 local steps after 16"),
        (0, 2.0, 0, "asks for 0 local steps"),
        (6, 2.0, 0, r"beyond the most that is accounted for \(5 a round, 20 in all\)"),
        (1, 2.0 * (1 - 1e-13), 0, None),
        (1, 2.0 * (1 - 1e-11), 0, "below the 2 that is accounted for"),
    ],
)
def test_a_round_beyond_the_bound_is_refused_before_anything_is_drawn(steps, noise, spent, refused):
    if refused is None:
        adaptive().check(4, steps, noise, spent)
        return
    with pytest.raises(PrivacyError, match=refused) as caught:
        adaptive().check(4, steps, noise, spent)
    assert str(caught.value).startswith("round 5 asks for")
    assert str(caught.value).endswith("no query was made")


def test_without_a_limit_any_number_of_steps_may_have_been_spent():
    SpendingBound(10, 3, 2.0).check(0, 3, 2.0, 10**9)
    with pytest.raises(PrivacyError, match="3 a round, no in all"):
        SpendingBound(10, 3, 2.0).check(0, 4, 2.0, 0)


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7])
def test_the_least_noise_is_that_of_the_very_last_round(rounds):
    falling = Adaptation(3, None, True, NoiseDecay(factor=0.5, patience=1, floor=0.001))
    bound = SpendingBound(rounds, 3, 8.0, falling)
    assert bound.least_noise_multiplier == 8.0 * 0.5 ** max(0, rounds - 2)
