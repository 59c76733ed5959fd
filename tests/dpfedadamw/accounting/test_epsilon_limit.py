"""A limit on ε: which round is the last that fits, and what that may depend on."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw.accounting import epsilon_limit
from dpfedadamw.accounting.epsilon_limit import (
    Participations,
    Rounds,
    fits,
    repeated,
    rounds_that_fit,
    too_low,
)
from dpfedadamw.accounting.pld import epsilon_pld
from dpfedadamw.accounting.worst_case import Adaptation, NoiseDecay, SpendingBound
from dpfedadamw.privacy.composition import Composition
from dpfedadamw.privacy.sampling import PoissonSampling, ShuffledEpochs, composition_of

DELTA, SIGMA, STEPS = 1e-5, 2.0, 3
SAMPLING = PoissonSampling(20.0)


def watch(records, limit, bound):
    per_round = [
        composition_of(SAMPLING, "add-remove", size, SIGMA, bound.most_local_steps)
        for size in records
    ]
    return Participations(bound, per_round, SAMPLING, records, limit, DELTA)


def spends(index, chosen, steps=STEPS, noise=SIGMA):
    return [
        {
            "kind": "spend",
            "round": index,
            "client": client,
            "steps": steps,
            "noise_multiplier": noise,
        }
        for client in chosen
    ]


def spent(records, entries):
    """The largest ε of any client, composed from its spends without any help of the watch."""
    found = []
    for client, size in enumerate(records):
        own = [entry for entry in entries if entry.get("client") == client]
        parts = [
            composition_of(SAMPLING, "add-remove", size, one["noise_multiplier"], one["steps"])
            for one in own
        ]
        found.append(epsilon_pld(parts, DELTA) if parts else 0.0)
    return found


@settings(max_examples=15)
@given(
    records=st.lists(st.sampled_from([60, 90, 200]), min_size=2, max_size=4),
    chosen=st.lists(st.sets(st.integers(0, 3)), min_size=8, max_size=12),
    limit=st.floats(1.0, 4.0),
)
def test_the_last_round_that_is_allowed_is_the_last_that_fits_whoever_is_drawn(
    records, chosen, limit
):
    bound = SpendingBound(len(chosen), STEPS, SIGMA)
    guard, entries = watch(records, limit, bound), []
    for index, drawn in enumerate(chosen):
        after = [
            max(spent(records, [*entries, *spends(index, [client])]))
            for client in range(len(records))
        ]
        allowed = guard.allows(entries, index)
        assert allowed == (max(after) <= limit)
        if not allowed:
            break
        entries += spends(index, {client for client in drawn if client < len(records)})
    assert max(spent(records, entries)) <= limit


def test_noise_that_may_fall_counts_at_its_least_and_not_as_it_happened_to_be():
    falling = Adaptation(STEPS, None, True, NoiseDecay(0.8, 1, 0.5))
    bound, records = SpendingBound(20, STEPS, SIGMA, falling), [60, 100]
    course = [spends(index, [0, 1], noise=SIGMA) for index in range(20)]
    rounds = 0
    guard, entries = watch(records, 3.0, bound), []
    while rounds < 20 and guard.allows(entries, rounds):
        entries += course[rounds]
        rounds += 1
    least = [bound.noise_multiplier_of(index) for index in range(21)]

    def worst(count):
        parts = [
            composition_of(SAMPLING, "add-remove", 60, noise, STEPS) for noise in least[:count]
        ]
        return epsilon_pld(parts, DELTA)

    assert worst(rounds) <= 3.0 < worst(rounds + 1)


def test_where_participation_is_hidden_the_end_does_not_depend_on_it():
    per_round = composition_of(SAMPLING, "add-remove", 60, SIGMA, STEPS)
    bound = SpendingBound(20, STEPS, SIGMA)
    limit = epsilon_pld(replace(per_round, steps=6 * STEPS), DELTA)
    guard = Rounds(bound, per_round, limit, DELTA)
    nobody, everybody = [], spends(0, [0, 1, 2])
    for entries in (nobody, everybody):
        assert [guard.allows(entries, index) for index in (5, 6)] == [True, False]
        # A round that is run again is one more that everybody may have been in.
        again = [*entries, {"kind": "resume", "round": 3}]
        assert [guard.allows(again, index) for index in (4, 5)] == [True, False]
        # So is one that was over, but whose state was lost.
        lost = [*entries, {"kind": "round", "round": 3}, {"kind": "resume", "round": 3}]
        assert [guard.allows(lost, index) for index in (3, 4)] == [True, False]


def test_where_every_round_is_charged_whoever_takes_part_the_charges_are_counted():
    per_round = composition_of(SAMPLING, "add-remove", 60, SIGMA, STEPS)
    limit = epsilon_pld(replace(per_round, steps=6 * STEPS), DELTA)
    guard = Rounds(SpendingBound(20, STEPS, SIGMA), per_round, limit, DELTA, charged_each=True)
    # Resumed between two rounds: nothing was begun in vain.
    entries = [{"kind": "spend"}] * 5 + [{"kind": "resume", "round": 5}]
    assert guard.allows(entries, 5)
    assert not guard.allows([*entries, {"kind": "spend"}], 5)


def test_a_limit_beyond_what_the_run_can_spend_leaves_room_for_repeated_rounds():
    per_round = composition_of(SAMPLING, "add-remove", 60, SIGMA, STEPS)
    bound = SpendingBound(4, STEPS, SIGMA)
    assert rounds_that_fit(bound, per_round, 100.0, DELTA) == 4
    again = [{"kind": "resume", "round": 3}]
    assert Rounds(bound, per_round, 100.0, DELTA).allows(again, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_two_hundred_rounds_of_a_hundred_clients_are_watched_in_a_few_seconds(share):
    draw = np.random.default_rng(3)
    records = [int(size) for size in draw.integers(60, 600, 100)]
    bound = SpendingBound(200, STEPS, SIGMA)
    # Near its end, where compositions are worked out one by one.
    limit = epsilon_pld(composition_of(SAMPLING, "add-remove", min(records), SIGMA, 60), DELTA)
    guard, entries, rounds = watch(records, limit, bound), [], 0
    started = time.perf_counter()
    while rounds < 200 and guard.allows(entries, rounds):
        entries += spends(rounds, np.flatnonzero(draw.random(100) < share).tolist())
        rounds += 1
    assert rounds >= 20
    taken = time.perf_counter() - started
    assert rounds < 200
    # A few seconds on one slow core; a composition for each client and round would take minutes.
    assert taken < 20


@pytest.fixture
def asked(monkeypatch):
    """An accountant whose ε is steps over σ², and what it was asked, as (steps, σ) of each part."""
    found = []

    def epsilon(composition, delta):
        assert delta == DELTA
        parts = (composition,) if isinstance(composition, Composition) else tuple(composition)
        found.append([(part.steps, part.noise_multiplier) for part in parts])
        return sum(part.steps / part.noise_multiplier**2 for part in parts)

    monkeypatch.setattr(epsilon_limit, "leading", lambda: (SimpleNamespace(epsilon=epsilon), None))
    rounds_that_fit.cache_clear()
    yield found
    rounds_that_fit.cache_clear()


ONE = Composition(1.0, 0.5, 3)


def test_what_costs_the_limit_itself_fits(asked):
    assert fits(ONE, 3.0, DELTA)
    assert not fits(ONE, 2.999, DELTA)
    assert fits([ONE, replace(ONE, noise_multiplier=2.0)], 3.75, DELTA)
    assert asked == [[(3, 1.0)], [(3, 1.0)], [(3, 1.0), (3, 2.0)]]


@pytest.mark.parametrize(
    ("limit", "rounds"), [(2.9, 0), (3.0, 1), (5.9, 1), (17.9, 5), (18.0, 6), (1000.0, 20)]
)
def test_rounds_are_counted_up_to_those_that_there_are(limit, rounds, asked):
    assert rounds_that_fit(SpendingBound(20, 3, 1.0), ONE, limit, DELTA) == rounds


def test_rounds_of_falling_noise_are_counted_at_the_noise_of_as_many_rounds(asked):
    falling = Adaptation(3, None, True, NoiseDecay(0.5, 1, 0.25))
    bound = SpendingBound(20, 3, 1.0, falling)
    # 3, 3, 3·4, 3·16: noise is 1, 1, 0.5, 0.25.
    assert [rounds_that_fit(bound, ONE, limit, DELTA) for limit in (6, 17.9, 18, 65, 66)] == [
        2, 2, 3, 3, 4,
    ]  # fmt: skip


def test_a_limit_below_one_round_is_refused_in_one_line():
    assert str(too_low(0.25)) == (
        "federation.max_epsilon: a single round already costs more than 0.25; raise it, or the "
        "noise"
    )


def over(index):
    return {"kind": "round", "round": index}


def resumed(index):
    return {"kind": "resume", "round": index}


@pytest.mark.parametrize(
    ("course", "again"),
    [
        ([], 0),
        ([over(0), over(1)], 0),
        # Begun in vain; what was over is kept.
        ([resumed(0)], 1),
        ([over(0), over(1), resumed(2)], 1),
        # A finished round, or all three, whose state was lost.
        ([over(0), over(1), resumed(1)], 2),
        ([over(0), over(1), over(2), resumed(0)], 4),
        # A second resume counts from where the first one went back to.
        ([over(0), over(1), resumed(1), resumed(1)], 3),
        ([over(0), over(1), resumed(1), resumed(0)], 4),
        ([over(0), over(1), resumed(1), over(1), over(2), resumed(2)], 4),
        # Back to a round that was not reached cannot win any.
        ([over(0), resumed(3)], 1),
        ([over(0), resumed(3), resumed(2)], 3),
        # Nothing else counts.
        ([{"kind": "header"}, {"kind": "spend", "round": 5}, over(0), {"kind": "claim"}], 0),
    ],
)
def test_rounds_that_were_begun_again_are_counted_from_the_ledger(course, again):
    assert repeated(course) == again


def test_a_round_is_allowed_as_long_as_all_that_were_begun_fit(asked):
    bound = SpendingBound(4, 3, 1.0)
    guard = Rounds(bound, ONE, 15.0, DELTA)
    assert [guard.allows([], index) for index in (0, 4, 5)] == [True, True, False]
    assert [guard.allows([resumed(0)], index) for index in (0, 3, 4)] == [True, True, False]
    # By charges a limit of five: four and this one, whatever the index says.
    charged = Rounds(bound, ONE, 15.0, DELTA, charged_each=True)
    entries = [over(0), *spends(0, [0]) * 4, resumed(0)]
    assert charged.allows(entries, 9)
    assert not charged.allows([*entries, *spends(1, [0])], 0)


def guard_of(records, limit, bound, steps=3, sampling=SAMPLING):
    per_round = [Composition(bound.noise_multiplier, 1 / size, steps) for size in records]
    return Participations(bound, per_round, sampling, records, limit, DELTA)


def test_each_spend_is_counted_once_and_for_its_client(asked):
    guard = guard_of([60, 100], 100.0, SpendingBound(20, 3, 1.0))
    entries = spends(0, [0, 1], 3, 1.0)
    for _ in range(3):
        guard.allows(entries, 1)
    entries = [*entries, {"kind": "round", "round": 0}, *spends(1, [1], 2, 1.0)]
    guard.allows(entries, 2)
    guard.allows([*entries, *spends(2, [1], 1, 2.0)], 3)
    assert guard._steps == [{1.0: 3}, {1.0: 5, 2.0: 1}]


def test_steps_are_counted_as_the_sampler_charges_them(asked):
    # 100 records in batches of 30 are four batches an epoch, and 60 are two.
    guard = guard_of([60, 100], 100.0, SpendingBound(9, 5, 1.0), sampling=ShuffledEpochs(30))
    guard.allows(spends(0, [0, 1], 5, 1.0), 1)
    assert guard._steps == [{1.0: 3}, {1.0: 2}]


@pytest.mark.parametrize("follows", [True, False])
def test_what_followed_releases_counts_at_its_most_and_else_as_it_was(follows, asked):
    falling = Adaptation(7, None, follows, NoiseDecay(0.5, 1, 0.25))
    guard = guard_of([60], 1000.0, SpendingBound(9, 3, 1.0, falling), 7)
    guard.allows([*spends(0, [0], 2, 1.0), *spends(2, [0], 2, 1.0)], 3)
    assert guard._steps == [{1.0: 7, 0.5: 7} if follows else {1.0: 4}]


@pytest.mark.parametrize(
    ("records", "steps", "foremost"),
    [
        # Charged alike: the one of fewest records, whatever its number.
        ([200, 60, 90], [{}, {}, {}], [1]),
        ([60, 200, 60], [{}, {}, {}], [0]),
        # A larger one that was charged more may cost more, and less it cannot.
        ([200, 60], [{2.0: 6}, {2.0: 3}], [1, 0]),
        ([200, 60], [{2.0: 3}, {2.0: 6}], [1]),
        ([60, 200], [{2.0: 6}, {}], [0]),
        ([60, 200], [{}, {2.0: 6}], [0, 1]),
        # Under every noise, and not only under one of them.
        ([60, 200], [{2.0: 6, 1.0: 3}, {2.0: 3, 1.0: 6}], [0, 1]),
        ([60, 200], [{2.0: 6, 1.0: 3}, {2.0: 3, 1.0: 3}], [0]),
        ([60, 200], [{2.0: 6}, {1.0: 3}], [0, 1]),
        # In which order the noises came plays no part.
        ([90, 60], [{2.0: 6, 1.0: 3}, {1.0: 3, 2.0: 6}], [1]),
        # What one of several covers is left out.
        ([60, 70, 80], [{2.0: 3}, {1.0: 3}, {1.0: 2}], [0, 1]),
    ],
)
def test_the_clients_are_asked_of_which_none_costs_less_than_another(records, steps, foremost):
    guard = guard_of(records, 1.0, SpendingBound(9, 3, 1.0))
    guard._steps = steps
    assert guard._foremost() == foremost


def test_near_the_limit_the_very_composition_of_the_claim_is_asked_about(asked):
    guard = guard_of([60], 12.0, SpendingBound(20, 3, 1.0))
    # Nine charged and three more are the limit itself.
    assert guard.allows(spends(0, [0], 9, 1.0), 3)
    assert asked == [[(18, 1.0)], [(12, 1.0)]]
    assert not guard.allows([*spends(0, [0], 9, 1.0), *spends(1, [0], 1, 1.0)], 4)
    # That half as much again is too much is known, and is not asked again.
    assert asked[2:] == [[(13, 1.0)]]


def test_unlike_noise_is_asked_about_part_by_part(asked):
    falling = Adaptation(3, None, False, NoiseDecay(0.5, 1, 0.5))
    guard = guard_of([60], 20.0, SpendingBound(20, 3, 1.0, falling))
    # Six at 1 and three more at 0.5: nine at 0.5 would be 36, in parts they are 18.
    assert guard.allows(spends(0, [0], 6, 1.0), 2)
    assert asked == [[(14, 0.5)], [(6, 1.0), (3, 0.5)]]
    guard = guard_of([60], 17.9, SpendingBound(20, 3, 1.0, falling))
    assert not guard.allows(spends(0, [0], 6, 1.0), 2)


def test_a_client_that_comes_late_is_asked_about_at_the_noise_of_its_first_round(asked):
    falling = Adaptation(3, None, False, NoiseDecay(0.5, 1, 0.5))
    guard = guard_of([60], 12.0, SpendingBound(20, 3, 1.0, falling))
    assert guard.allows([], 2)
    assert asked == [[(5, 0.5)], [(3, 0.5)]]


def test_a_limit_on_all_steps_bounds_what_a_client_can_be_charged(asked):
    limited = Adaptation(3, 10, False, None)
    guard = guard_of([60], 10.0, SpendingBound(20, 3, 1.0, limited))
    assert guard.allows(spends(0, [0], 9, 1.0), 3)
    assert asked == [[(15, 1.0)], [(10, 1.0)]]
    guard = guard_of([60], 9.9, SpendingBound(20, 3, 1.0, limited))
    assert not guard.allows(spends(0, [0], 9, 1.0), 3)
    # Fewer steps than the limit stay as they are.
    assert guard_of([60], 9.9, SpendingBound(20, 3, 1.0, limited)).allows([], 0)
    assert asked[-1] == [(5, 1.0)]


def test_every_client_must_be_able_to_take_part(asked):
    # The client of more records was charged more, and is the one that does not fit.
    guard = guard_of([60, 100], 12.0, SpendingBound(20, 3, 1.0))
    assert guard.allows(spends(0, [1], 9, 1.0), 3)
    assert not guard.allows([*spends(0, [1], 9, 1.0), *spends(1, [1], 1, 1.0)], 4)


def test_what_was_worked_out_ahead_is_not_asked_again(asked):
    guard = guard_of([60], 100.0, SpendingBound(20, 3, 1.0))

    def known(steps, noise=1.0, rate=0.5):
        before = len(asked)
        found = guard._known_to_fit(Composition(noise, rate, steps))
        return found, [one[0][0] for one in asked[before:]]

    # Half as much again, rounded up; it holds for nine tenths of that.
    assert known(14) == (True, [21])
    assert known(18) == (True, [])
    assert known(19) == (True, [29])
    assert known(27) == (True, [41])
    # 41 are known to fit, so the 36 that are nearly nine tenths of them do; of 30, 27 are exactly.
    assert known(36) == (True, [])
    assert known(27, noise=0.99) == (True, [41])
    assert known(20, noise=0.98) == (True, [30])
    assert known(27, noise=0.98) == (True, [])
    # At less noise, or a larger rate, nothing is known.
    assert known(2, noise=0.9)[1] == [3]
    assert known(2, rate=0.6)[1] == [3]
    assert known(26, noise=1.1) == (True, [])
    assert known(26, rate=0.4) == (True, [])
    # What exceeds the limit exceeds it with as many steps, or more, that cost as much each.
    assert known(80) == (False, [120])
    assert known(80) == (False, [])
    assert known(81, noise=0.95) == (False, [])
    assert known(79)[1] == [119]
    assert known(90, rate=0.45)[1] == [135]


def test_steps_are_compared_by_rate_and_by_the_noise_of_all_their_queries():
    at_most = epsilon_limit._at_most
    assert at_most(ONE, ONE)
    assert at_most(replace(ONE, sampling_rate=0.4, noise_multiplier=1.1, steps=99), ONE)
    assert not at_most(replace(ONE, sampling_rate=0.51), ONE)
    assert not at_most(replace(ONE, noise_multiplier=0.99), ONE)
    assert not at_most(replace(ONE, queries_per_step=2), ONE)
    assert at_most(ONE, replace(ONE, queries_per_step=2))
