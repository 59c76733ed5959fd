"""Canaries through the door: what they give away stays below the claim; a broken gate is blamed.

A pair of sites differs in one record. The job is as bad as it can be: where the record is, its
shard's update is far out along a direction of its own, and without it as far the other way. Each
shard of a release has such a record and a fair coin for it, and the noise on each direction is
drawn by itself, so that one release is as many independent pairs as it has shards.

Under a Gaussian of multiplier σ no guess at a coin is right with more than Φ(1/2σ), whatever was
released before. So the number of right guesses is at most binomial, and its lower end (Clopper and
Pearson 1934) bounds ε from below. A correct gate's bound exceeds the claim with at most `ALARM`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import beta, norm

from dpfedadamw.extensions.gate import mechanism, spending

SIGMA, DELTA, CLIP, FAR, ALARM = 1.0, 1e-5, 0.5, 7.0, 1e-3
CLAIM = spending.epsilon_of([SIGMA], DELTA)


def bounds(correct, guesses):
    """Lower bounds on ε: of any mechanism, and of a Gaussian whose noise alone is in question."""
    least = float(beta.ppf(ALARM, correct, guesses - correct + 1))
    if least <= 0.5:
        return 0.0, 0.0
    gaussian = spending.epsilon_of([1 / (2 * norm.ppf(least))], DELTA)
    return math.log((least - DELTA) / (1 - least)), gaussian


def guessed(begin, shards, releases, watched=None):
    """The bounds from all records, or from those of one shard, one release at a time."""
    gate = begin(
        shards=shards,
        clip=CLIP,
        noise_multiplier=SIGMA,
        budget={"epsilon": 1e6, "delta": DELTA},
        model={"w": f"float64[{shards}]"},
    )
    coins = np.random.default_rng(5).random((releases, shards)) < 0.5
    sent, far, seen = {"w": np.zeros(shards)}, FAR * CLIP * np.eye(shards), []
    for number, present in enumerate(coins):
        replies = [{"w": one if there else -one} for one, there in zip(far, present, strict=True)]
        released = gate.release(job="job", request=str(number), broadcast=sent, shards=replies)
        seen.append((released["w"] > 0) == present)
    right = np.array(seen)[:, slice(None) if watched is None else watched]
    return bounds(int(right.sum()), right.size)


def test_what_canaries_give_away_stays_below_the_claim_and_comes_close_to_it(begin):
    of_any, of_gaussian = guessed(begin, shards=500, releases=20)
    assert 0 < of_any < CLAIM
    assert 0.75 * CLAIM < of_gaussian <= CLAIM


def test_one_shard_in_many_releases_gives_away_no_more(begin):
    assert max(guessed(begin, shards=2, releases=60, watched=0)) <= CLAIM


def test_a_gate_that_adds_noise_for_c_is_blamed(begin, monkeypatch):
    drawn = mechanism.noised_mean

    def half(sent, total, shards, deviation, history):
        return drawn(sent, total, shards, deviation / 2, history)

    monkeypatch.setattr(mechanism, "noised_mean", half)
    assert guessed(begin, shards=500, releases=4)[1] > 1.2 * CLAIM


def test_a_gate_that_does_not_clip_one_shard_is_blamed(begin, monkeypatch):
    whole = mechanism.clipped

    def all_but_the_first(update, clip):
        return update if update[0] else whole(update, clip)

    monkeypatch.setattr(mechanism, "clipped", all_but_the_first)
    of_any, of_gaussian = guessed(begin, shards=2, releases=60, watched=0)
    assert of_gaussian > CLAIM
    assert of_any > 1.9


def test_a_correct_gate_is_blamed_as_seldom_as_stated():
    right = np.random.default_rng(7).binomial(500, norm.cdf(1 / (2 * SIGMA)), 3_000)
    counts, times = np.unique(right, return_counts=True)
    blamed = [bounds(int(one), 500)[1] > CLAIM * (1 + 1e-9) for one in counts]
    # Three in three thousand are due; more than twelve have a chance of 1e-5.
    assert times[blamed].sum() <= 12
