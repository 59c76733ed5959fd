"""The check "participation": each of its tests decides at its share of the false alarms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from audit.checks import participation
from audit.reading.bundle import Bundle
from audit.reading.ledger import Round
from audit.statistics.intervals import FALSE_ALARM
from tests.audit.checks.opened import changed, judged, says

NAME = "participation"


def run_of(bundle: Bundle, cohorts: Sequence[Sequence[int]], **header: Any) -> Bundle:
    """A run whose rounds had these clients; of the run nothing else is looked at."""
    rounds = tuple(
        Round(2 * index + 3, index, tuple(cohort), (3,) * len(cohort), (3,) * len(cohort))
        for index, cohort in enumerate(cohorts)
    )
    found = replace(bundle.header, rounds=len(cohorts), **header)
    return replace(bundle, ledger=replace(bundle.readable_ledger, header=found, rounds=rounds))


def random_cohorts(rounds: int, clients: int, rate: float) -> list[list[int]]:
    rng = np.random.default_rng([4, rounds])
    return [np.flatnonzero(rng.random(clients) < rate).tolist() for _ in range(rounds)]


def test_the_shares_of_the_false_alarms_add_up_to_all_of_them() -> None:
    independent = (
        participation._TOTAL
        + participation._EACH
        + participation._ROUND_SCATTER
        + participation._CLIENT_SCATTER
        + participation._SHARED
    )
    assert independent == pytest.approx(1.0)
    assert participation._EACH_OF_FIXED + participation._SHARED_OF_FIXED == 1.0


ROUNDS, CLIENTS, RATE = 9, 12, 0.25
TOTAL, ROUND_SCATTER, CLIENT_SCATTER, OVERLAP = (
    "clients take part more or less often than at rate l = S/N",
    "the numbers of clients per round vary unlike independent draws (a fixed S?)",
    "clients' participations vary unlike independent draws",
    "successive rounds share an unlikely number of clients (a rota?)",
)


@pytest.mark.parametrize(
    ("law", "share", "said"),
    [
        # By what each law is asked for: trials, and the chance of each.
        (("binomial", ROUNDS * CLIENTS, RATE), 0.1, TOTAL),
        (("scatter", CLIENTS, RATE), 0.3, ROUND_SCATTER),
        (("scatter", ROUNDS, RATE), 0.15, CLIENT_SCATTER),
        (("binomial", CLIENTS * (ROUNDS // 2), RATE * RATE), 0.15, OVERLAP),
        (
            ("binomial", ROUNDS, RATE),
            0.3 / CLIENTS,
            "client {}: it does not take part at rate l = S/N",
        ),
    ],
)
def test_each_test_of_independent_draws_fails_below_its_share_and_not_above(
    of_clients: Bundle,
    law: tuple[str, int, float],
    share: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of(of_clients, random_cohorts(ROUNDS, CLIENTS, RATE))

    def with_p_value(value: float) -> str:
        def binomial(count: int, trials: int, rate: float) -> float:
            return value if ("binomial", trials, rate) == law else 1.0

        def scatter(counts: np.ndarray, trials: int, rate: float) -> float:
            assert len(counts) == (ROUNDS if trials == CLIENTS else CLIENTS)
            return value if ("scatter", trials, rate) == law else 1.0

        monkeypatch.setattr(participation, "binomial_p_value", binomial)
        monkeypatch.setattr(participation, "dispersion_p_value", scatter)
        verdict, text = says(run, NAME)
        return text if verdict == "FAIL" else verdict

    assert with_p_value(FALSE_ALARM * share * 1.0001) == "PASS"
    assert with_p_value(FALSE_ALARM * share) == "PASS"
    wrong = with_p_value(FALSE_ALARM * share * 0.9999)
    assert wrong.split("; ")[0] == said.format(0)


def test_counts_are_those_of_who_took_part(
    of_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last of five rounds has no partner; the third is empty.
    cohorts = [[0, 3], [0, 1, 3], [], [2], [0, 1, 2]]
    asked: list[tuple[str, Any, int]] = []

    def binomial(count: int, trials: int, rate: float) -> float:
        asked.append(("binomial", count, trials))
        return 0.5

    def scatter(counts: np.ndarray, trials: int, rate: float) -> float:
        asked.append(("scatter", counts.tolist(), trials))
        return 0.25

    monkeypatch.setattr(participation, "binomial_p_value", binomial)
    monkeypatch.setattr(participation, "dispersion_p_value", scatter)
    found = judged(
        run_of(of_clients, cohorts, clients=5, clients_per_round=2, records=(1,) * 5), NAME
    )
    assert ("binomial", 9, 25) in asked
    assert ("scatter", [2, 3, 0, 1, 3], 5) in asked
    assert ("scatter", [3, 2, 2, 2, 0], 5) in asked
    assert ("binomial", 2, 10) in asked
    assert {count for kind, count, trials in asked if kind == "binomial" and trials == 5} == {
        0, 2, 3,
    }  # fmt: skip
    assert found.private == {
        "total_p_value": 0.5,
        "least_client_p_value": 0.5,
        "round_scatter_p_value": 0.25,
        "client_scatter_p_value": 0.25,
        "overlap_p_value": 0.5,
    }


def test_the_least_p_value_of_all_clients_is_told(
    of_clients: Bundle, of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        participation, "binomial_p_value", lambda count, trials, rate: 0.5 + 0.01 * count
    )
    found = judged(run_of(of_clients, [[0, 3], [0, 1, 3], [0]]), NAME)
    assert found.private["least_client_p_value"] == 0.5
    fixed = judged(run_of(of_records, [[0, 1], [1, 2], [1, 3]], **FIXED), NAME)
    assert fixed.private["least_client_p_value"] == 0.51


@pytest.mark.parametrize(
    ("left_out", "verdict", "said"),
    [
        (None, "PASS", "with l = 1 every client is in every round"),
        (0, "FAIL", "l = 1, but a client was left out of a round"),
        (2, "FAIL", "l = 1, but a client was left out of a round"),
    ],
)
def test_at_rate_one_every_client_is_in_every_round(
    of_clients: Bundle, left_out: int | None, verdict: str, said: str
) -> None:
    cohorts = [list(range(12)) for _ in range(3)]
    if left_out is not None:
        cohorts[left_out].pop()
    found = judged(run_of(of_clients, cohorts, clients_per_round=12), NAME)
    assert (found.verdict.value, found.measurement) == (verdict, said)
    assert found.details == {"rounds": 3, "clients": 12, "rate": 1.0}


def test_one_round_has_no_other_to_share_clients_with(of_clients: Bundle) -> None:
    found = judged(run_of(of_clients, [[0, 4, 7]]), NAME)
    assert found.verdict.value == "PASS"
    assert found.private["overlap_p_value"] == 1.0


@pytest.mark.parametrize(("chosen", "rarer"), [(3, 0.25), (9, 0.25), (6, 0.5)])
def test_a_run_says_from_how_many_rounds_on_it_shows_what(
    of_clients: Bundle, chosen: int, rarer: float
) -> None:
    rate = chosen / CLIENTS
    # A client that is in every round, or in none.
    cohort = math.ceil(math.log(FALSE_ALARM * 0.3 / (2 * CLIENTS)) / math.log(rarer))
    scatter = participation.rounds_to_see_constant_counts(CLIENTS, rate, FALSE_ALARM * 0.3)
    for rounds in sorted({cohort - 1, cohort, scatter - 1, scatter}):
        found = judged(
            run_of(of_clients, random_cohorts(rounds, CLIENTS, rate), clients_per_round=chosen),
            NAME,
        )
        seen = {True: "seen here", False: "not in this run"}
        assert found.power == (
            f"the same number of clients every round is found from {scatter} rounds on "
            f"({seen[rounds >= scatter]}); the same clients every round from {cohort} on "
            f"({seen[rounds >= cohort]})"
        )
        assert found.details == {
            "rounds": rounds,
            "clients": CLIENTS,
            "rate": rate,
            "fixed_number_from": scatter,
            "fixed_cohort_from": cohort,
        }


@pytest.mark.parametrize("kind", ["of_clients", "of_records"])
def test_rounds_that_are_missing_or_name_nobody_are_not_judged(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    rounds = bundle.readable_ledger.rounds
    unfinished = ("NOT VERIFIED", "not every round was finished")
    assert says(changed(bundle, ledger={"rounds": rounds[:-1]}), NAME) == unfinished
    assert says(changed(bundle, ledger={"rounds": rounds[1:]}), NAME) == unfinished
    assert says(changed(bundle, ledger={"rounds": ()}), NAME) == unfinished
    last = bundle.header.clients - 1
    for client, text in (
        (last + 1, "a round names a client that does not exist"),
        (last, "who took part in"),
    ):
        clients = (*[one for one in rounds[0].clients if one != last][:2], client)
        named = (replace(rounds[0], clients=clients), *rounds[1:])
        assert says(changed(bundle, ledger={"rounds": named}), NAME)[1].startswith(text)


# A fixed number of clients.

FIXED = {"clients": 4, "clients_per_round": 2, "records": (60,) * 4}


def test_a_round_of_another_size_fails_with_its_number(of_records: Bundle) -> None:
    found = judged(run_of(of_records, [[0, 1], [0, 1, 2], [3], [1, 2]], **FIXED), NAME)
    assert found.verdict.value == "FAIL"
    assert found.measurement == (
        "round 1: it does not have 2 clients; round 2: it does not have 2 clients"
    )
    assert found.details == {"rounds": 4, "clients": 4, "clients_per_round": 2}


def test_where_all_clients_are_chosen_nothing_is_left_to_chance(of_records: Bundle) -> None:
    everybody = {**FIXED, "clients_per_round": 4}
    found = judged(run_of(of_records, [[0, 1, 2, 3]] * 40, **everybody), NAME)
    assert (found.verdict.value, found.measurement) == (
        "PASS",
        "every client is in every round",
    )
    assert found.details == {"rounds": 40, "clients": 4, "clients_per_round": 4}


@pytest.mark.parametrize(
    ("test", "share", "said"),
    [
        ("binomial_p_value", 0.5 / 4, "client 0: it does not take part at rate l = S/N"),
        (
            "overlap_p_value",
            0.5,
            "successive rounds share an unlikely number of clients (a fixed cohort, a rota?)",
        ),
    ],
)
def test_each_test_of_fixed_draws_fails_below_its_share_and_not_above(
    of_records: Bundle, test: str, share: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(of_records, [[0, 1], [1, 2], [2, 3]], **FIXED)

    def with_p_value(value: float) -> str:
        def binomial(count: int, trials: int, rate: float) -> float:
            assert (trials, rate) == (3, 0.5)
            return value if test == "binomial_p_value" and count == 1 else 1.0

        def overlap(shared: int, clients: int, chosen: int, rounds: int) -> float:
            # One client in each pair of neighbours.
            assert (shared, clients, chosen, rounds) == (2, 4, 2, 3)
            return value if test == "overlap_p_value" else 1.0

        monkeypatch.setattr(participation, "binomial_p_value", binomial)
        monkeypatch.setattr(participation, "overlap_p_value", overlap)
        found = judged(run, NAME)
        name = {"binomial_p_value": "least_client_p_value"}.get(test, test)
        assert found.private[name] == value
        return found.measurement if found.verdict.value == "FAIL" else found.verdict.value

    assert with_p_value(FALSE_ALARM * share) == "PASS"
    assert with_p_value(FALSE_ALARM * share * 0.9999).split("; ")[0] == said


def test_a_single_round_of_fixed_draws_is_compared_with_none(of_records: Bundle) -> None:
    found = judged(run_of(of_records, [[0, 1]], **FIXED), NAME)
    assert found.verdict.value == "PASS"
    assert set(found.private) == {"least_client_p_value"}


def test_two_rounds_of_fixed_draws_are_compared_and_the_last_client_is_one(
    of_records: Bundle,
) -> None:
    found = judged(run_of(of_records, [[0, 1], [0, 2]], **FIXED), NAME)
    assert set(found.private) == {"least_client_p_value", "overlap_p_value"}
    pairs = [[0, 1], [1, 2], [0, 2]]
    many = judged(run_of(of_records, [pairs[i % 3] for i in range(40)], **FIXED), NAME)
    assert "client 3: it does not take part at rate l = S/N" in many.measurement


def test_it_is_told_from_how_many_rounds_on_the_same_clients_are_found(
    of_records: Bundle,
) -> None:
    """The same S of N again has a chance of 1 in C(N, S)."""
    pairs = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]]
    for clients, chosen in ((4, 2), (6, 2), (5, 3)):
        same = 1.0 / math.comb(clients, chosen)
        least = 1 + math.ceil(math.log(FALSE_ALARM * 0.5 / 2.0) / math.log(same))
        header = {"clients": clients, "clients_per_round": chosen, "records": (60,) * clients}
        for rounds in (least - 1, least, least + 1):
            cohorts = [[*pairs[i % 6], 4][:chosen] for i in range(rounds)]
            found = judged(run_of(of_records, cohorts, **header), NAME)
            seen = "seen here" if rounds >= least else "not in this run"
            assert found.power == (
                f"the same clients every round are found from {least} rounds on ({seen})"
            )
            counts = {"rounds": rounds, "clients": clients, "clients_per_round": chosen}
            assert found.details == counts


def test_on_single_records_clients_may_be_drawn_independently_too(of_records: Bundle) -> None:
    cohorts = [[0], [1, 2], []]
    found = judged(run_of(of_records, cohorts, client_sampling="poisson", **FIXED), NAME)
    assert found.verdict.value == "PASS"
    assert found.measurement.startswith(
        "who took part in 3 rounds against independent draws of 4 clients"
    )
    assert found.details["rate"] == 0.5


def test_a_client_that_never_takes_part_is_found_at_its_exact_p_value(
    of_records: Bundle,
) -> None:
    pairs = [[1, 2], [2, 3], [1, 3]]
    # Twice the chance of no participation: 2·2^-T, against a quarter of half the false alarms.
    least = math.ceil(1 + math.log2(4 / (FALSE_ALARM * 0.5)))
    for rounds in (least - 1, least):
        found = judged(run_of(of_records, [pairs[i % 3] for i in range(rounds)], **FIXED), NAME)
        p_value = 2.0 * stats.binom.cdf(0, rounds, 0.5)
        assert found.private["least_client_p_value"] == pytest.approx(p_value)
        told = "client 0: it does not take part at rate l = S/N" in found.measurement
        assert told is (rounds == least)


def test_the_odds_of_a_number_of_rounds_are_worked_out_once_for_all_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, exact = [], participation.binomial_p_value

    def counted(successes: int, trials: int, rate: float) -> float:
        asked.append(successes)
        return exact(successes, trials, rate)

    monkeypatch.setattr(participation, "binomial_p_value", counted)
    counts = np.arange(10_000) % 3
    found = participation._p_values(counts, 50, 0.01)
    assert asked == [0, 1, 2]
    assert found[:4].tolist() == [exact(number, 50, 0.01) for number in (0, 1, 2, 0)]


@pytest.mark.parametrize("deviations", [-2.5, -1.0, 0.5, 2.5])
def test_where_rounds_are_many_the_normal_limit_of_an_overlap_serves(
    deviations: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, chosen, rounds = 400, 100, 300
    # Mean and variance of a hypergeometric count, once for each pair of neighbours.
    mean, variance = 25.0, 100 * 0.25 * 0.75 * 300 / 399
    shared = round(299 * mean + deviations * math.sqrt(299 * variance))
    z = (shared - 299 * mean) / math.sqrt(299 * variance)
    normal = 2.0 * stats.norm.sf(abs(z))
    monkeypatch.setattr(participation, "_MOST_CELLS", chosen * rounds - 1)
    assert participation.overlap_p_value(shared, clients, chosen, rounds) == pytest.approx(
        normal, rel=1e-9
    )
    monkeypatch.setattr(participation, "_MOST_CELLS", chosen * rounds)
    exact = participation.overlap_p_value(shared, clients, chosen, rounds)
    assert exact == pytest.approx(normal, rel=0.05)
    assert exact != pytest.approx(normal, rel=1e-6)
