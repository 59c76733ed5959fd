"""Check "participation": were the clients of each round drawn by chance, as the claim assumes?

At record level client sampling amplifies nothing towards the server, but the third party's bound
counts how often one client takes part: n ~ Binomial(T, l), which holds for S of N clients as for
independent draws. A cohort that is always the same makes it wrong.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy import signal, stats

from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, listed, register
from audit.checks.client.participation import cohorts_of, judge_independent_draws
from audit.reading.bundle import Bundle
from audit.statistics.intervals import FALSE_ALARM, binomial_p_value
from audit.verdict import Verdict

_CLIENTS, _OVERLAP = 0.5, 0.5
# An overlap's law is convolved once a round; beyond this many clients its normal limit serves.
_MOST_CELLS = 1 << 22


def overlap_p_value(shared: int, clients: int, chosen: int, rounds: int) -> float:
    """Two-sided p-value of how many clients successive rounds share.

    Whoever was in a round, the next one's set is independent of it, so the numbers shared are
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
                total = np.maximum(signal.fftconvolve(total, factor), 0.0)
            left >>= 1
            factor = np.maximum(signal.fftconvolve(factor, factor), 0.0) if left else factor
        lower, upper = float(total[: shared + 1].sum()), float(total[shared:].sum())
    else:
        share = chosen / clients
        mean = chosen * share
        variance = mean * (1.0 - share) * (clients - chosen) / (clients - 1)
        z = (shared - (rounds - 1) * mean) / np.sqrt((rounds - 1) * variance)
        lower, upper = float(stats.norm.cdf(z)), float(stats.norm.sf(z))
    return min(1.0, 2.0 * min(lower, upper))


def _fixed(bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    # Rounds that share a limit on their steps can be fewer than the header's.
    rounds, clients, chosen = ledger.rounds_to_finish, header.clients, header.clients_per_round
    cohorts = cohorts_of(ledger, rounds, clients)
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
    p_clients = [binomial_p_value(int(count), rounds, chosen / clients) for count in counts]
    for client, p_value in enumerate(p_clients):
        if p_value < FALSE_ALARM * _CLIENTS / clients:
            reasons.append(f"client {client}: it does not take part at rate l = S/N")
    private: dict[str, object] = {"least_client_p_value": min(p_clients)}
    if rounds > 1:
        shared = sum(
            len(np.intersect1d(first, second, assume_unique=True))
            for first, second in pairwise(cohorts)
        )
        p_overlap = overlap_p_value(shared, clients, chosen, rounds)
        private["overlap_p_value"] = p_overlap
        if p_overlap < FALSE_ALARM * _OVERLAP:
            reasons.append(
                "rounds in succession share unlike many clients (a fixed cohort, a rota?)"
            )
    log_same = float(stats.hypergeom.logpmf(chosen, clients, chosen, chosen))
    least = 1 + int(np.ceil(np.log(FALSE_ALARM * _OVERLAP / 2.0) / log_same))
    power = (
        f"the same clients every round are found from {least} rounds on "
        f"({'seen here' if rounds >= least else 'not in this run'})"
    )
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details, private, power=power)
    return Judgement(
        Verdict.PASS,
        f"who took part in {rounds} rounds against draws of {chosen} of {clients} clients: exactly "
        "so many each time, how often each client, and clients shared by successive rounds",
        details,
        private,
        power=power,
    )


def _judge(bundle: Bundle) -> Judgement:
    if bundle.header.client_sampling == "poisson":
        return judge_independent_draws(bundle)
    return _fixed(bundle)


PARTICIPATION = Check(
    name="participation",
    title="Were the clients of each round drawn by chance?",
    units=AT_RECORD_LEVEL,
    place=85,
    claim="The clients of a round are S of N, every such set equally likely, or each client by "
    "itself with probability S/N, as the ledger says; and rounds do not depend on each other.",
    tolerance="Exact laws: binomial for each client's count, hypergeometric for what neighbouring "
    "rounds share. All tests together raise a false alarm in at most 1 of 1000 correct runs "
    "(Bonferroni).",
    power="the same clients every round, if the run is long enough",
    limits="Short runs tell little. Draws that depend on the data but look independent cannot be "
    "told from chance, nor can a cohort drawn until it suited.",
    rule=_judge,
)
register(PARTICIPATION)
