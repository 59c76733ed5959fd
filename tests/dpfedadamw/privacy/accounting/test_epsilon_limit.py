"""A limit on ε: which round is the last that fits, and what that may depend on."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw.privacy.accounting.epsilon_limit import Participations, Rounds, rounds_that_fit
from dpfedadamw.privacy.accounting.pld import epsilon_pld
from dpfedadamw.privacy.accounting.worst_case import Adaptation, NoiseDecay, SpendingBound
from dpfedadamw.privacy.sampling import PoissonSampling, composition_of

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


@settings(max_examples=15, deadline=None)
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
