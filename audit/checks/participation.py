"""Check "participation": were the clients of each round drawn by chance, as the claim assumes?

Where whole clients are protected, amplification towards a third party rests on each client being in
each round independently with probability l = S/N. Where records are, the third party's bound counts
how often one client takes part: n ~ Binomial(T, l), which holds for S of N clients as for
independent draws. A fixed cohort or a rota makes both wrong.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats

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
from audit.statistics.participation import (
    dispersion_p_value,
    overlap_p_value,
    rounds_to_see_constant_counts,
)
from audit.untrusted.archives import Integers
from audit.verdict import Verdict

# Shares of the false alarms: of independent draws, and of draws of S of N.
_TOTAL, _EACH, _ROUND_SCATTER, _CLIENT_SCATTER, _SHARED = 0.1, 0.3, 0.3, 0.15, 0.15
_EACH_OF_FIXED, _SHARED_OF_FIXED = 0.5, 0.5


def _cohorts(ledger: Ledger, rounds: int, clients: int) -> list[Integers]:
    """Who was drawn for each finished round; a round that was repeated counts as it ended."""
    finished = {item.round: item for item in ledger.rounds}
    if not finished or set(finished) != set(range(rounds)):
        raise UnverifiedError("not every round was finished")
    # Whoever was drawn, answer or none: that a client drops out is no draw.
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
        (p_rounds, _ROUND_SCATTER, "clients a round scatter unlike independent draws (a fixed S?)"),
        (p_scatter, _CLIENT_SCATTER, "clients' participations scatter unlike independent draws"),
        (p_overlap, _SHARED, "rounds in succession share unlike many clients (a rota?)"),
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
        "probability l: how often in all, each client, scatter of the rounds' sizes and of the "
        "clients' counts, and clients shared by successive rounds",
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
                "rounds in succession share unlike many clients (a fixed cohort, a rota?)"
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
    title="Were the clients of each round drawn by chance?",
    units=AT_RECORD_LEVEL,
    place=85,
    meaning="If it fails, clients were not drawn by the chance that the loss towards a third "
    "party relies on.",
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
register(
    replace(
        PARTICIPATION,
        title="Do clients take part by independent chance?",
        units=AT_CLIENT_LEVEL,
        place=45,
        meaning="If it fails, clients were not drawn by the chance that the stated loss relies on.",
        claim="Each round every client takes part independently with probability l = S/N.",
        tolerance="Exact laws throughout: binomial for counts, their scatter by convolution. All "
        "tests together raise a false alarm in at most 1 of 1000 correct runs (Bonferroni).",
        power="a fixed number of clients or a fixed cohort, if the run is long enough",
        limits="Short runs tell little. Draws that depend on the data but look independent cannot "
        "be told from chance, nor can a cohort drawn until it suited; rounds repeated after a "
        "crash are judged as they ended.",
        rule=_independent,
    )
)
