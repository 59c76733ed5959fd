"""Check "participation": were the clients of each round drawn by chance, as the claim assumes?

Where whole clients are protected, amplification against a third party requires each client to be in
each round independently with probability l = S/N. Where records are, the third party's bound counts
how often one client takes part: n ~ Binomial(T, l), which holds for S of N clients as for
independent draws. A fixed cohort or a rota makes both wrong.

The tests are exact. Where each client is drawn by itself, counts are binomial, and their scatter
has an exact law, by convolution; where S of N are drawn, what two rounds share is hypergeometric.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.fft import irfft, next_fast_len, rfft

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    conclude,
    listed,
    register,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Ledger
from audit.statistics.intervals import FALSE_ALARM, binomial_p_value
from audit.untrusted.archives import Integers
from audit.verdict import Verdict

_BINS = 1 << 19
_REACH = 8.0
# An overlap's law is convolved once a round; beyond this many clients its normal limit serves.
_MOST_CELLS = 1 << 22


def dispersion_p_value(counts: NDArray[np.int64], trials: int, rate: float) -> float:
    """Exact two-sided p-value of the scatter of independent Binomial(trials, rate) counts.

    The statistic is the sum of the counts' squared distances from their mean, each rounded down to
    a grid and cut off eight standard deviations out. Its law under independence is that of a sum of
    equal terms, so it is computed, not approximated: few rounds raise no more false alarms than
    many.

    Args:
        counts: [n] the counts.
        trials: of each count.
        rate: strictly between 0 and 1.
    """
    total, width, cap = _scatter(trials, rate, len(counts))
    observed = int(_binned(counts.astype(np.float64), trials * rate, width, cap).sum())
    lower = float(total[: observed + 1].sum())
    upper = float(total[observed:].sum())
    return min(1.0, 2.0 * min(lower, upper))


def rounds_to_see_constant_counts(trials: int, rate: float, alpha: float) -> int:
    """From how many counts on a scatter of zero has a p-value below alpha."""
    law, _, _ = _squares(trials, rate, 1)
    chance = float(law[0])
    return max(1, int(np.ceil(np.log(alpha / 2.0) / np.log(chance))))


def overlap_p_value(shared: int, clients: int, chosen: int, rounds: int) -> float:
    """Two-sided p-value of how many clients successive rounds share.

    The next round's set is independent of the clients in a round, so the numbers shared are
    independent hypergeometric variables, one for each pair of neighbours.

    Args:
        shared: clients in common, summed over the pairs.
        clients: N.
        chosen: S.
        rounds: T, at least 2.
    """
    cells = np.arange(chosen + 1)
    law = stats.hypergeom.pmf(cells, clients, chosen, chosen)
    if chosen * rounds <= _MOST_CELLS:
        total, factor, left = np.ones(1), law, rounds - 1
        while left:
            if left & 1:
                total = _sum(total, factor)
            left >>= 1
            factor = _sum(factor, factor) if left else factor
        lower, upper = float(total[: shared + 1].sum()), float(total[shared:].sum())
    else:
        share = chosen / clients
        mean = chosen * share
        variance = mean * (1.0 - share) * (clients - chosen) / (clients - 1)
        z = (shared - (rounds - 1) * mean) / np.sqrt((rounds - 1) * variance)
        lower, upper = float(stats.norm.cdf(z)), float(stats.norm.sf(z))
    return min(1.0, 2.0 * min(lower, upper))


@lru_cache(maxsize=8)
def _scatter(trials: int, rate: float, terms: int) -> tuple[NDArray[np.float64], float, int]:
    """Law of the whole statistic, with the bins' width and the last bin of one term."""
    law, width, cap = _squares(trials, rate, terms)
    return _convolved(law, terms), width, cap


def _squares(trials: int, rate: float, terms: int) -> tuple[NDArray[np.float64], float, int]:
    """Law of one binned squared distance, with the bins' width and the last bin."""
    mean, variance = trials * rate, trials * rate * (1.0 - rate)
    largest = min(_REACH**2 * max(variance, 1.0), max(mean, trials - mean) ** 2)
    width = max(1.0, largest * terms / _BINS)
    cap = int(np.floor(largest / width))
    values = np.arange(trials + 1, dtype=np.float64)
    bins = _binned(values, mean, width, cap)
    law = np.zeros(cap + 1)
    np.add.at(law, bins, stats.binom.pmf(values, trials, rate))
    return law, width, cap


def _binned(values: NDArray[np.float64], mean: float, width: float, cap: int) -> NDArray[np.int64]:
    squares = np.floor(np.square(values - mean) / width + 1e-9)
    return np.minimum(squares, float(cap)).astype(np.int64)


def _sum(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Law of the sum of two independent variables.

    To the bit what `scipy.signal.fftconvolve` computes, whose package takes a tenth of a second to
    load.
    """
    if min(len(one), len(other)) == 1:
        return np.maximum(one * other, 0.0)
    most = len(one) + len(other) - 1
    size = next_fast_len(most, real=True)
    law = irfft(rfft(one, size) * rfft(other, size), size)[:most]
    return np.asarray(np.maximum(law, 0.0), dtype=np.float64)


def _convolved(law: NDArray[np.float64], terms: int) -> NDArray[np.float64]:
    """Law of the sum of `terms` independent variables of this law."""
    result, factor = np.ones(1), law
    while terms:
        if terms & 1:
            result = _sum(result, factor)
        terms >>= 1
        if terms:
            factor = _sum(factor, factor)
    return result


# Shares of the false alarms: of independent draws, and of draws of S of N.
_TOTAL, _EACH, _ROUND_SCATTER, _CLIENT_SCATTER, _SHARED = 0.1, 0.3, 0.3, 0.15, 0.15
_EACH_OF_FIXED, _SHARED_OF_FIXED = 0.5, 0.5


def _cohorts(ledger: Ledger, rounds: int, clients: int) -> list[Integers]:
    """Who was drawn for each finished round; a round that was repeated counts as it ended."""
    finished = {item.round: item for item in ledger.rounds}
    if not finished or set(finished) != set(range(rounds)):
        raise UnverifiedError("not every round was finished")
    # Every drawn client counts, with or without an answer: dropping out is not part of the draw.
    cohorts = [np.asarray(finished[index].asked, dtype=np.int64) for index in range(rounds)]
    if any(len(cohort) and int(cohort.max()) >= clients for cohort in cohorts):
        raise UnverifiedError("a round names a client that does not exist")
    return cohorts


def _tests(
    cohorts: list[Integers], clients: int, rate: float, reasons: list[str]
) -> dict[str, object]:
    """All tests; returns private numbers."""
    rounds = len(cohorts)
    by_round = np.array([len(cohort) for cohort in cohorts], dtype=np.int64)
    by_client = np.bincount(np.concatenate(cohorts), minlength=clients)
    # Each round is in one pair only, so the pairs are independent.
    together = sum(
        len(np.intersect1d(first, second, assume_unique=True))
        for first, second in zip(cohorts[0 : rounds - 1 : 2], cohorts[1:rounds:2], strict=True)
    )
    pairs = clients * (rounds // 2)
    p_total = binomial_p_value(int(by_round.sum()), rounds * clients, rate)
    p_clients = _p_values(by_client, rounds, rate)
    p_rounds = dispersion_p_value(by_round, clients, rate)
    p_scatter = dispersion_p_value(by_client, rounds, rate)
    p_overlap = binomial_p_value(together, pairs, rate * rate) if pairs else 1.0
    for p_value, share, text in (
        (p_total, _TOTAL, "clients take part more or less often than at rate l = S/N"),
        (
            p_rounds,
            _ROUND_SCATTER,
            "the numbers of clients per round vary unlike independent draws (a fixed S?)",
        ),
        (p_scatter, _CLIENT_SCATTER, "clients' participations vary unlike independent draws"),
        (p_overlap, _SHARED, "successive rounds share an unlikely number of clients (a rota?)"),
    ):
        if p_value < FALSE_ALARM * share:
            reasons.append(text)
    for client in np.flatnonzero(p_clients < FALSE_ALARM * _EACH / clients):
        reasons.append(f"client {client}: it does not take part at rate l = S/N")
    return {
        "total_p_value": p_total,
        "least_client_p_value": float(p_clients.min()),
        "round_scatter_p_value": p_rounds,
        "client_scatter_p_value": p_scatter,
        "overlap_p_value": p_overlap,
    }


def _p_values(counts: Integers, rounds: int, rate: float) -> NDArray[np.float64]:
    """How odd each client's number of rounds is, [N]; worked out once for each number there is."""
    different, place = np.unique(counts, return_inverse=True)
    return np.array([binomial_p_value(int(one), rounds, rate) for one in different])[place]


def _power(rounds: int, clients: int, rate: float) -> tuple[str, dict[str, object]]:
    """What this run is long enough to show, from public numbers alone."""
    fixed = rounds_to_see_constant_counts(clients, rate, FALSE_ALARM * _ROUND_SCATTER)
    tail = FALSE_ALARM * _EACH / (2.0 * clients)
    cohort = int(np.ceil(np.log(tail) / np.log(min(rate, 1.0 - rate))))

    def seen(least: int) -> str:
        return "seen here" if rounds >= least else "not in this run"

    text = (
        f"the same number of clients every round is found from {fixed} rounds on ({seen(fixed)}); "
        f"the same clients every round from {cohort} on ({seen(cohort)})"
    )
    return text, {"fixed_number_from": fixed, "fixed_cohort_from": cohort}


def _independent(bundle: Bundle) -> Judgement:
    """Judge who took part against independent draws of each client."""
    header = bundle.header
    # Rounds that share a limit on ε can be fewer than the header's.
    rounds, clients = bundle.readable_ledger.rounds_to_finish, header.clients
    rate = header.clients_per_round / clients
    cohorts = _cohorts(bundle.readable_ledger, rounds, clients)
    details: dict[str, object] = {"rounds": rounds, "clients": clients, "rate": rate}
    reasons: list[str] = []
    if rate >= 1.0:
        if all(len(cohort) == clients for cohort in cohorts):
            return Judgement(Verdict.PASS, "with l = 1 every client is in every round", details)
        return Judgement(Verdict.FAIL, "l = 1, but a client was left out of a round", details)
    private = _tests(cohorts, clients, rate, reasons)
    power, numbers = _power(rounds, clients, rate)
    details |= numbers
    return conclude(
        f"who took part in {rounds} rounds against independent draws of {clients} clients with "
        "probability l. Compared: how often in all, each client, scatter of the rounds' sizes and "
        "of the clients' counts, and clients shared by successive rounds",
        reasons,
        details=details,
        private=private,
        power=power,
    )


def _fixed(bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    # Rounds that share a limit on their steps can be fewer than the header's.
    rounds, clients, chosen = ledger.rounds_to_finish, header.clients, header.clients_per_round
    cohorts = _cohorts(ledger, rounds, clients)
    details: dict[str, object] = {"rounds": rounds, "clients": clients, "clients_per_round": chosen}
    reasons = [
        f"round {index}: it does not have {chosen} clients"
        for index, cohort in enumerate(cohorts)
        if len(cohort) != chosen
    ]
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details)
    if chosen == clients:
        return Judgement(Verdict.PASS, "every client is in every round", details)
    counts = np.bincount(np.concatenate(cohorts), minlength=clients)
    p_clients = _p_values(counts, rounds, chosen / clients)
    for client in np.flatnonzero(p_clients < FALSE_ALARM * _EACH_OF_FIXED / clients):
        reasons.append(f"client {client}: it does not take part at rate l = S/N")
    private: dict[str, object] = {"least_client_p_value": float(p_clients.min())}
    if rounds > 1:
        shared = sum(
            len(np.intersect1d(first, second, assume_unique=True))
            for first, second in pairwise(cohorts)
        )
        p_overlap = overlap_p_value(shared, clients, chosen, rounds)
        private["overlap_p_value"] = p_overlap
        if p_overlap < FALSE_ALARM * _SHARED_OF_FIXED:
            reasons.append(
                "successive rounds share an unlikely number of clients (a fixed cohort, a rota?)"
            )
    log_same = float(stats.hypergeom.logpmf(chosen, clients, chosen, chosen))
    least = 1 + int(np.ceil(np.log(FALSE_ALARM * _SHARED_OF_FIXED / 2.0) / log_same))
    power = (
        f"the same clients every round are found from {least} rounds on "
        f"({'seen here' if rounds >= least else 'not in this run'})"
    )
    return conclude(
        f"who took part in {rounds} rounds against draws of {chosen} of {clients} clients: exactly "
        "so many each time, how often each client, and clients shared by successive rounds",
        reasons,
        details=details,
        private=private,
        power=power,
    )


def _judge(bundle: Bundle) -> Judgement:
    if bundle.header.client_sampling == "poisson":
        return _independent(bundle)
    return _fixed(bundle)


PARTICIPATION = Check(
    name="participation",
    title="Were the clients of each round drawn at random?",
    units=AT_RECORD_LEVEL,
    place=85,
    meaning="If it fails, clients were not drawn with the randomness that the loss against a "
    "third party relies on.",
    claim="The clients of a round are S of N, every such set equally likely, or each client "
    "independently with probability S/N, as the ledger says. Rounds do not depend on each "
    "other.",
    tolerance="Exact laws: binomial for each client's count, hypergeometric for what neighbouring "
    "rounds share. All tests together raise a false alarm in at most 1 of 1000 correct runs "
    "(Bonferroni).",
    power="the same clients every round, if the run is long enough",
    limits="Short runs show little. Draws that depend on the data but look independent cannot be "
    "distinguished from chance, nor can a cohort that was redrawn until it suited.",
    rule=_judge,
)
register(PARTICIPATION)
register(
    replace(
        PARTICIPATION,
        title="Do clients take part independently at random?",
        units=AT_CLIENT_LEVEL,
        place=45,
        meaning="If it fails, clients were not drawn with the randomness that the stated loss "
        "relies on.",
        claim="Each round every client takes part independently with probability l = S/N.",
        tolerance="Exact laws throughout: binomial for counts, their scatter by convolution. All "
        "tests together raise a false alarm in at most 1 of 1000 correct runs (Bonferroni).",
        power="a fixed number of clients or a fixed cohort, if the run is long enough",
        limits="Short runs show little. Draws that depend on the data but look independent cannot "
        "be distinguished from chance, nor can a cohort that was redrawn until it suited. Rounds "
        "repeated after a crash are judged as they ended.",
        rule=_independent,
    )
)
