"""Private selection: what it costs to publish the best of a random number of trials.

A trial draws a candidate uniformly at random, trains it, and scores the released model on public
records. Only the trial with the best score is published. Where a trial is (α, ε_α)-Rényi
differentially private for every candidate, and the number of trials K is drawn without regard to
the records from a truncated negative binomial law D(η, γ), the whole is (α, ε'_α)-private with

    ε'_α = ε_α + (1 + η)·min_β [(1 - 1/β)·ε_β + log(1/γ)/β] + log(E[K])/(α - 1)

(Papernot & Steinke 2022, Theorem 2). The theorem needs that K stays secret, that every trial is run
to its end and independently of the others, and that the score is made of what the trial releases.
How many candidates there are does not enter: a mixture of laws is no farther from its neighbour
than the farthest of them (quasi-convexity).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dpfedadamw.accounting.rdp import ORDERS, divergence, improved_epsilon
from dpfedadamw.accounting.registry import as_claimed, leading
from dpfedadamw.privacy.composition import Composition, check_delta, covers

__all__ = [
    "ACCOUNTANT",
    "SECRET_BYTES",
    "TUNED",
    "Trials",
    "candidate",
    "claim_of_selection",
    "commitment",
    "epsilon_of_all_trials",
    "epsilon_of_selection",
    "selected_divergences",
    "trials_drawn",
]

# No loss distribution of a selection is known: its ε is that of Rényi divergences.
ACCOUNTANT = "rdp"
# What a claim says of the choice of hyper-parameters, by the spec's word.
TUNED = {
    "private": (
        "hyper-parameters were chosen by private selection: each trial drew one of the candidates "
        "by chance, all of which cost the same. How many trials there were was drawn by the stated "
        "law and is secret. The best by accuracy on public validation records is published, and "
        "nothing of the others was shown to anybody but the server and the clients"
    ),
    "public": (
        "hyper-parameters were tuned on records that are public and among none of the private ones"
    ),
    "unaccounted": (
        "hyper-parameters were chosen by looking at the private records, and no epsilon here "
        "covers that choice"
    ),
}
# Beyond it no trial is drawn: the law has less than 2^-60 of its mass there in every spec.
_MOST_TRIALS = 10_000_000
SECRET_BYTES = 32


@dataclass(frozen=True)
class Trials:
    """The law of the number of trials: truncated negative binomial, on 1, 2, 3 and on.

    Attributes:
        mean: E[K] > 1.
        shape: η ≥ 0; 0 is the logarithmic law, 1 the geometric one. A larger one varies less and
            costs more.
    """

    mean: float
    shape: float

    @property
    def stopping(self) -> float:
        """γ in (0, 1), the parameter of the law that has this mean."""
        return _stopping(self.mean, self.shape)

    def quantile(self, share: float) -> int:
        """Return the least k with P(K ≤ k) > share.

        Args:
            share: In [0, 1).
        """
        going_on = 1.0 - self.stopping
        mass = _mass_of_one(self.stopping, self.shape)
        below, trials = mass, 1
        while below <= share and trials < _MOST_TRIALS:
            mass *= going_on * (trials + self.shape) / (trials + 1)
            trials += 1
            below += mass
        return trials

    def drawn(self, secret: bytes) -> int:
        """Return the K that a secret of 32 random bytes draws.

        The first 53 bits of its digest are the share whose quantile is K; `audit` draws it again.
        """
        digest = hashlib.sha256(b"number of trials" + secret).digest()
        return self.quantile((int.from_bytes(digest[:8], "big") >> 11) / 2.0**53)


def candidate(secret: bytes, trial: int, candidates: int) -> int:
    """Return which candidate a trial draws, each as likely, from 0.

    Args:
        secret: The 32 bytes that drew the number of trials.
        trial: The trial's number, from 1.
        candidates: How many there are.
    """
    digest = hashlib.sha256(b"candidate" + secret + trial.to_bytes(8, "big")).digest()
    return int.from_bytes(digest, "big") % candidates


def commitment(secret: bytes) -> str:
    """Return what is written down of a secret before the first trial: SHA-256, hexadecimal."""
    return hashlib.sha256(b"commitment" + secret).hexdigest()


def trials_drawn(entries: Sequence[Mapping[str, Any]]) -> int | None:
    """Return how many trials a ledger's header says that there are; None for a run by itself."""
    return entries[0].get("tuning", {}).get("trials") if entries else None


def claim_of_selection(
    each_round: Sequence[tuple[Composition, int]],
    participation: float,
    delta: float,
    trials: Trials,
    one_trial: float,
    all_trials: float | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the claim of a published trial says of the selection, of whatever unit.

    Args:
        each_round: See `epsilon_of_selection`.
        participation: See there.
        delta: δ.
        trials: The law of the number of trials.
        one_trial: ε of one trial against a third party, by the leading accountant.
        all_trials: ε of all of them against the server; None before they are drawn, and where
            nothing is claimed against it.

    Returns:
        The third party's ε and accountant, and the claim's part `tuning`.
    """
    leads = leading()[0].name
    tuning = {"one_trial": as_claimed({leads: one_trial})}
    if all_trials is not None:
        tuning["server_all_trials"] = as_claimed({leads: all_trials})
    chosen = epsilon_of_selection(each_round, participation, delta, trials)
    return {"epsilon": {ACCOUNTANT: chosen}, "accountant": ACCOUNTANT}, tuning


def epsilon_of_all_trials(
    everything: Sequence[Composition],
    delta: float,
    drawn: int,
    realised: float,
    winner: Sequence[Composition] = (),
) -> float:
    """Return ε of all trials against a server that sees them.

    Rounds that other trials repeated after a crash are not known here, and not counted.

    Args:
        everything: The most that one trial costs against it.
        delta: δ.
        drawn: How many trials there are.
        realised: ε that the published trial spent against it.
        winner: The most that it was charged. Where that is more than ``everything``, because rounds
            of it were repeated after a crash, it takes the place of one trial.
    """
    epsilon = leading()[0].epsilon
    every = [replace(part, steps=part.steps * drawn) for part in everything]
    found = max(epsilon(every, delta), realised)
    if not winner or covers(everything, winner):
        return found
    others = [replace(part, steps=part.steps * (drawn - 1)) for part in everything if drawn > 1]
    return max(found, epsilon((*others, *winner), delta))


def selected_divergences(
    orders: Sequence[float], divergences: Sequence[float], trials: Trials
) -> list[float]:
    """Return the Rényi divergences of the best of the trials, from those of one trial.

    Args:
        orders: α > 1 each, rising.
        divergences: ε_α of one trial, for all its candidates.
        trials: The law of their number.
    """
    repeated = (1.0 + trials.shape) * min(
        (1.0 - 1.0 / order) * one - math.log(trials.stopping) / order
        for order, one in zip(orders, divergences, strict=True)
    )
    found = [
        one + repeated + math.log(_mean(trials.stopping, trials.shape)) / (order - 1.0)
        for order, one in zip(orders, divergences, strict=True)
    ]
    # A divergence rises with its order, so that of a higher one bounds it.
    for index in range(len(found) - 2, -1, -1):
        found[index] = min(found[index], found[index + 1])
    return found


def epsilon_of_selection(
    each_round: Sequence[tuple[Composition, int]],
    participation: float,
    delta: float,
    trials: Trials,
) -> float:
    """Return the ε of a private selection against a reader of what is published about the winner.

    The reader does not learn who took part. A participation pattern is drawn without regard to the
    records, and e^((α-1)·D_α) is jointly convex, so one trial's divergence is at most that of the
    mixture over patterns: a round in which a client is with probability l adds
    log(1 - l + l·e^((α-1)·ε_α))/(α-1).

    Args:
        each_round: What one participation costs a record at most, and in how many rounds.
        participation: l in (0, 1].
        delta: δ.
        trials: The law of the number of trials.
    """
    check_delta(delta)
    return _epsilon(tuple(each_round), participation, delta, trials)


@lru_cache(maxsize=64)
def _epsilon(
    each_round: tuple[tuple[Composition, int], ...],
    participation: float,
    delta: float,
    trials: Trials,
) -> float:
    curve = [
        sum(
            rounds * _taken_part(divergence((part,), order), order, participation)
            for part, rounds in each_round
        )
        for order in ORDERS
    ]
    selected = selected_divergences(ORDERS, curve, trials)
    return min(
        improved_epsilon(order, one, delta) for order, one in zip(ORDERS, selected, strict=True)
    )


def _taken_part(one: float, order: float, participation: float) -> float:
    """The divergence of a round in which a client is with some probability."""
    if participation == 1.0:
        return one
    exponent = (order - 1.0) * one + math.log(participation)
    rest = math.log1p(-participation)
    larger, smaller = max(exponent, rest), min(exponent, rest)
    return (larger + math.log1p(math.exp(smaller - larger))) / (order - 1.0)


@lru_cache(maxsize=64)
def _stopping(mean: float, shape: float) -> float:
    """The γ at which the law has this mean."""
    # A third of a second to load, for private selections alone.
    from scipy.optimize import brentq

    def too_many(logarithm: float) -> float:
        return math.log(_mean(math.exp(logarithm), shape)) - math.log(mean)

    found = brentq(too_many, -60.0, -1e-12, xtol=1e-13, rtol=1e-13)
    return math.exp(float(found))


def _mean(stopping: float, shape: float) -> float:
    """E[K] = η·(1/γ - 1)/(1 - γ^η), and at η = 0 its limit (1/γ - 1)/log(1/γ)."""
    odds, logarithm = 1.0 / stopping - 1.0, -math.log(stopping)
    if shape == 0.0:
        return odds / logarithm
    return shape * odds / -math.expm1(-shape * logarithm)


def _mass_of_one(stopping: float, shape: float) -> float:
    """P(K = 1) = η·(1 - γ)/(γ^(-η) - 1), and at η = 0 its limit (1 - γ)/log(1/γ)."""
    logarithm = -math.log(stopping)
    if shape == 0.0:
        return (1.0 - stopping) / logarithm
    return shape * (1.0 - stopping) / math.expm1(shape * logarithm)
