"""What each party sees of an audit run, from a small ledger and evidence that are made by hand.

Laws are written out here from scipy's normal distribution, so that no formula is its own test.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from audit.accounting.budget import Steps, budget, privacy_profile, rdp_estimate
from audit.canaries import views as module
from audit.canaries.bounds import scaled
from audit.canaries.e_values import LEAST_NOISE, TOO_LITTLE_NOISE, collected
from audit.canaries.views import (
    beginning,
    client_observations,
    client_views,
    log_likelihood_ratio,
    observations,
    views,
)
from audit.errors import UnverifiedError
from audit.reading.canary_evidence import read_canaries
from audit.reading.ledger_lines import RoundSpend, Spend, SpendingBound
from audit.reading.units import CLIENT, PERSON, RECORD

DELTA, NOISE, RATE = 1e-5, 2.0, 0.25
# Round, step, first canary, number of canaries and their projections.
ROWS = [
    (0, 0, 0, 2, [0.5, -1.0]),
    (0, 0, 0, 2, [1.5, 0.0]),
    (0, 1, 0, 2, [-0.5, 2.0]),
    (1, 0, 2, 1, [3.0]),
    (1, 0, 2, 1, [1.0]),
]


def evidence(rows=ROWS, clients=(0, 0, 2), coins=(1, 0, 1), unit=RECORD, **further):
    """Three canaries of clients 0 and 2, who answer twice on each batch."""
    many = len(clients)
    number, step, first, count, projections = zip(*rows, strict=True)
    arrays = {
        "client": np.array(clients),
        "included": np.array(coins, dtype=np.uint8),
        "opposed": np.array(further.pop("opposed", 0), dtype=np.uint8),
        "row_round": np.array(number),
        "row_step": np.array(step),
        "row_first": np.array(first),
        "row_count": np.array(count),
        "projections": np.array(np.concatenate(projections), dtype=np.float32),
        "loss_before": np.arange(many) + 3.0,
        "loss_after": np.ones(many),
        **further,
    }
    return read_canaries(arrays, 3, unit)


def spend(number: int, client: int, **changes: Any) -> Spend:
    given = {
        "line": 2, "round": number, "client": client, "attempt": 1, "records": 40,
        "sampling": "poisson", "sampling_rate": RATE, "expected_batch_size": 10.0,
        "clipping_norm": 1.0, "noise_multiplier": NOISE, "steps": 2, "queries_per_step": 2,
    }  # fmt: skip
    return Spend(**{**given, **changes})


CHARGED = (spend(0, 0), spend(1, 2), spend(1, 1))


def ledger(*spends: Spend | RoundSpend) -> Any:
    each = [one for one in spends if isinstance(one, Spend)]
    rounds = [one for one in spends if isinstance(one, RoundSpend)]
    return SimpleNamespace(spends=each, round_spends=rounds, queries=(), rounds=())


def header(kind: str = "gradient", **changes: Any) -> Any:
    given = {
        "spending_bound": SpendingBound(8, 2, NOISE, None), "noise_multiplier": NOISE, "rounds": 8,
        "sampling": "poisson", "sampling_rate": None, "expected_batch_size": 10.0,
        "records": (40, 40, 40), "clients": 3, "clients_per_round": 2, "clients_per_person": 1,
        "canaries": SimpleNamespace(kind=kind),
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


def ratio(total: float, queries: int, noise: float = NOISE, rate: float = RATE) -> float:
    """Log of "in" over "out" for the sum of a batch's answers."""
    spread = noise * np.sqrt(queries)
    out = stats.norm.pdf(total, 0.0, spread)
    return float(np.log(((1 - rate) * out + rate * stats.norm.pdf(total, queries, spread)) / out))


@pytest.fixture
def noise_as_said(monkeypatch):
    monkeypatch.setattr(module, "noise_shown", lambda standardised: 1.0)


# Scores


@pytest.mark.usefixtures("noise_as_said")
def test_answers_on_one_batch_are_one_draw_and_batches_add_up():
    whole, *_ = views(evidence(), ledger(*CHARGED), header(), DELTA)
    assert (whole.name, whole.words) == ("uploads", "every noised gradient")
    np.testing.assert_allclose(
        whole.scores,
        [ratio(2.0, 2) + ratio(-0.5, 1), ratio(-1.0, 2) + ratio(2.0, 1), ratio(4.0, 2)],
    )


@pytest.mark.usefixtures("noise_as_said")
def test_rounds_that_are_not_charged_tell_nothing_and_clients_without_canaries_are_left_out():
    found = views(evidence(), ledger(spend(1, 2), spend(1, 1)), header(), DELTA)
    np.testing.assert_allclose(found[0].scores, [0.0, 0.0, ratio(4.0, 2)])
    with pytest.raises(UnverifiedError, match="no client with a canary took part in any round"):
        views(evidence(), ledger(spend(1, 1)), header(), DELTA)


@pytest.mark.usefixtures("noise_as_said")
def test_crafted_inputs_are_weighed_by_what_they_move():
    moved = np.array([0.5, 1.0, 2.0, 1.0, 1.0, 1.0, 0.25, np.nan], dtype=np.float32)
    whole, *_ = views(evidence(contributions=moved), ledger(*CHARGED), header(), DELTA)

    def of(total: float, squares: float) -> float:
        return float(log_likelihood_ratio(np.array(total), NOISE, RATE, squares))

    # The sum of what is released times what the canary moves it by, and the sum of the squares.
    np.testing.assert_allclose(
        whole.scores,
        [
            of(0.5 * 0.5 + 2.0 * 1.5, 4.25) + of(-0.5, 1.0),
            of(-1.0, 2.0) + of(2.0, 1.0),
            of(0.25 * 3.0, 0.0625),
        ],
    )


def test_scores_take_the_noise_that_releases_show_where_it_is_less():
    median = np.median(np.abs(np.concatenate([row[4] for row in ROWS]))) / NOISE
    shown = median / stats.norm.ppf(0.75)
    assert shown < 1.0
    whole, *_ = views(evidence(), ledger(*CHARGED), header(), DELTA)
    assert whole.scores[2] == pytest.approx(ratio(4.0, 2, noise=NOISE * shown))


@pytest.mark.usefixtures("noise_as_said")
def test_a_canary_that_is_opposed_when_out_is_held_against_that():
    whole, *_ = views(evidence(opposed=1), ledger(*CHARGED), header(), DELTA)
    assert whole.scores[2] == pytest.approx(ratio(4.0, 2) - ratio(-4.0, 2))


@pytest.mark.usefixtures("noise_as_said")
def test_what_is_known_of_a_person_is_the_sum_over_their_clients():
    person = {"unit": PERSON, "person": np.array([0, 1, 1]), "coins": (1, 0, 0)}
    whole, *rest = views(evidence(**person), ledger(*CHARGED), header(), DELTA)
    np.testing.assert_allclose(
        whole.scores,
        [ratio(2.0, 2) + ratio(-0.5, 1), ratio(-1.0, 2) + ratio(2.0, 1) + ratio(4.0, 2)],
    )
    final = rest[-1]
    assert final.scores.tolist() == [2.0, 3.0 + 4.0]
    # Of people at several clients the server's claim is the bound against everybody.
    assert final.mechanism is whole.mechanism


def test_the_final_model_is_scored_by_what_the_loss_fell_and_held_against_the_third_partys_claim():
    *_, final = views(evidence(), ledger(*CHARGED), header(), DELTA)
    assert (final.name, final.words) == ("final-model", "the final model")
    assert final.scores.tolist() == [2.0, 3.0, 4.0]
    ((share, losses),) = final.mechanism(1.0)
    assert share == 1.0
    # Two of three clients are in a round, and a third party does not know which.
    every = privacy_profile([Steps(RATE, NOISE / np.sqrt(2), 16)], DELTA).epsilon(DELTA)
    fewer = privacy_profile([Steps(RATE, NOISE / np.sqrt(2), 8)], DELTA).epsilon(DELTA)
    assert fewer < losses.epsilon(DELTA) < every
    ((_, less),) = final.mechanism(0.5)
    assert less.epsilon(DELTA) > 1.5 * losses.epsilon(DELTA)


# Claims


def test_the_claim_is_that_of_each_clients_history_weighted_by_its_canaries():
    whole, *_ = views(evidence(), ledger(*CHARGED, spend(2, 0)), header(), DELTA)
    shares = {round(share, 12): losses.epsilon(DELTA) for share, losses in whole.mechanism(1.0)}
    one, two = Steps(RATE, NOISE / np.sqrt(2), 2), Steps(RATE, NOISE / np.sqrt(2), 4)
    assert shares == {
        round(1 / 3, 12): privacy_profile([one], DELTA).epsilon(DELTA),
        round(2 / 3, 12): privacy_profile([two], DELTA).epsilon(DELTA),
    }
    halved = privacy_profile(scaled([two], 0.5), DELTA).epsilon(DELTA)
    assert max(losses.epsilon(DELTA) for _, losses in whole.mechanism(0.5)) == halved


def test_a_charge_counts_at_the_noise_and_the_steps_that_a_claim_must_count_it_at():
    counted = SimpleNamespace(accounted=lambda spends: [(one, 1.0, 3) for one in spends])
    bound = header(spending_bound=counted)
    found = module._mechanism(
        module._charges(ledger(*CHARGED), bound, evidence()), {(0,): 2, (2,): 1}, DELTA
    )
    ((_, losses),) = found(1.0)
    expected = privacy_profile([Steps(RATE, 1.0 / np.sqrt(2), 3)], DELTA).epsilon(DELTA)
    assert losses.epsilon(DELTA) == expected


def test_canaries_that_are_in_no_round_count_in_no_share():
    whole, *_ = views(evidence(), ledger(spend(0, 0)), header(), DELTA)
    assert [share for share, _ in whole.mechanism(1.0)] == [pytest.approx(2 / 3)]


@pytest.mark.parametrize(
    ("clients", "together", "groups"),
    # Each history is of two clients: twelve stand alone, and more are taken together.
    [(24, 1, [2] * 12), (48, 2, [4] * 12), (50, 3, [6] * 8 + [2])],
)
def test_clients_of_equal_histories_are_one_share_and_many_are_grouped_by_their_worst(
    clients, together, groups
):
    charges = {
        client: [(spend(0, client), Steps(RATE, NOISE, 1 + client // 2))]
        for client in range(clients)
    }
    planted = {(client,): 1 for client in range(clients)}
    shares = module._mechanism(charges, planted, DELTA)(1.0)
    assert [round(share * clients) for share, _ in shares] == groups
    assert sum(share for share, _ in shares) == pytest.approx(1.0)
    worst = [losses.epsilon(DELTA) for _, losses in shares]
    assert worst == sorted(worst)
    for group in range(len(groups)):
        steps = min(clients // 2, together * (group + 1))
        assert worst[group] == privacy_profile([Steps(RATE, NOISE, steps)], DELTA).epsilon(DELTA)


def test_a_group_costs_the_most_steps_of_each_kind_at_the_largest_rate():
    first = (Steps(0.1, 2.0, 30), Steps(0.1, 1.0, 5), Steps(0.1, 1.0, 2, fixed_size=True))
    second = (Steps(0.3, 2.0, 10), Steps(0.2, 2.0, 25))
    assert module._worst([first]) is first
    assert set(module._worst([first, second])) == {
        Steps(0.3, 2.0, 35),
        Steps(0.3, 1.0, 5),
        Steps(0.3, 1.0, 2, fixed_size=True),
    }


# The beginning


def test_few_canaries_are_held_against_less_of_the_beginning():
    assert [beginning(many) for many in (1, 199, 200, 10_000)] == [1.0, 1.0, 2.0, 2.0]


def participations(count: int):
    steps = Steps(1.0, 8.0, 1)
    return [(spend(index, 0), steps) for index in range(count)], steps


@pytest.mark.parametrize("exactly", [True, False])
def test_the_beginning_is_the_most_participations_within_the_limit(exactly):
    events, steps = participations(40)

    def spent(count: int) -> float:
        history = [steps] * count
        return budget(history, DELTA).headline if exactly else rdp_estimate(history, DELTA)

    found = module._beginning(events, 2.0, DELTA, exactly)
    assert found == events[: len(found)]
    assert spent(len(found)) <= 2.0 < spent(len(found) + 1)
    assert module._beginning(events, spent(7), DELTA, exactly) == events[:7]
    # At least the first, whatever it spends; and all, where all is within the limit.
    assert module._beginning(events, 1e-9, DELTA, exactly) == events[:1]
    assert module._beginning(events, 1e9, DELTA, exactly) == events


@pytest.mark.parametrize(("most", "exactly"), [(2, True), (1, False)])
def test_what_the_beginnings_of_many_clients_spend_is_estimated_and_of_few_computed(
    most, exactly, monkeypatch
):
    # Two clients hold canaries, and both are charged for sixty rounds.
    monkeypatch.setattr(module, "_MOST_EXACT", most)
    charged = {
        client: [spend(number, client, noise_multiplier=9.0) for number in range(60)]
        for client in (0, 2)
    }
    of_one = [(one, module.cost_of(one)) for one in charged[0]]
    counts = {way: len(module._beginning(of_one, 1.0, DELTA, way)) for way in (True, False)}
    assert counts[False] < counts[True] < 60
    given = (evidence(), ledger(*charged[0], *charged[2]), header(), DELTA)
    assert views(*given)[1].words == (
        f"the noised gradients of each client's first {counts[exactly]} participations at most"
    )


@pytest.mark.usefixtures("noise_as_said")
def test_the_beginning_is_a_view_of_its_own_where_it_is_not_all():
    rows = [(number, 0, 0, 2, [1.0 + number, 0.5]) for number in (0, 2, 5)]
    charged = [spend(number, 0, noise_multiplier=0.8, queries_per_step=1) for number in (5, 0, 2)]
    one = evidence(rows, (0, 0), (1, 0))
    names = [view.name for view in views(one, ledger(*charged), header(), DELTA)]
    assert names == ["uploads", "beginning", "final-model"]
    whole, begun, _ = views(one, ledger(*charged), header(), DELTA)
    assert begun.words == "the noised gradients of each client's first participation"
    # By the order of the rounds, and not of the lines.
    np.testing.assert_allclose(begun.scores, [ratio(1.0, 1, 0.8), 0.0], atol=1e-12)
    ((_, all_of_it),), ((_, part),) = whole.mechanism(1.0), begun.mechanism(1.0)
    assert part.epsilon(DELTA) < all_of_it.epsilon(DELTA)
    quiet = [spend(number, 0, noise_multiplier=9.0) for number in range(60)]
    _, begun, _ = views(one, ledger(*quiet), header(), DELTA)
    many = len(module._beginning([(s, module.cost_of(s)) for s in quiet], 1.0, DELTA, True))
    assert many > 1
    words = f"the noised gradients of each client's first {many} participations at most"
    assert begun.words == words
    few = [spend(0, 0, noise_multiplier=50.0)]
    assert [view.name for view in views(one, ledger(*few), header(), DELTA)] == [
        "uploads",
        "final-model",
    ]


# What is tested against the ledger's law


def test_each_answer_is_a_score_in_units_of_the_noise():
    found = observations(evidence(), ledger(*CHARGED), header())
    assert not isinstance(found, str)
    # Of client 0: sum and contrast of two answers, then one answer; of client 2 both.
    root = np.sqrt(2.0)
    np.testing.assert_allclose(
        found.values,
        np.array([2.0, -1.0, -1.0, -1.0, -0.5 * root, 2.0 * root, 4.0, 2.0]) / (NOISE * root),
    )
    np.testing.assert_allclose(found.rates, [RATE, 0, 0, 0, RATE, 0, RATE, 0])
    np.testing.assert_allclose(found.shifts, np.array([root, 0, 0, 0, 1, 0, root, 0]) / NOISE)
    assert found.independent.all()


def test_rounds_that_are_not_charged_have_no_law():
    found = observations(evidence(), ledger(spend(1, 2)), header())
    assert not isinstance(found, str)
    assert len(found) == 2


def test_a_canary_that_is_opposed_moves_its_score_the_other_way_when_it_is_out():
    found = observations(evidence(opposed=1), ledger(*CHARGED), header())
    assert not isinstance(found, str)
    np.testing.assert_allclose(found.shifts[:2], np.array([1.0, -1.0]) * np.sqrt(2.0) / NOISE)
    np.testing.assert_allclose(found.rates[:2], [RATE, RATE])


@pytest.mark.parametrize("sampling", ["fixed-size", "shuffled"])
def test_draws_of_a_batch_of_fixed_size_depend_on_each_other(sampling):
    charged = [spend(0, 0, sampling=sampling), spend(1, 2, sampling=sampling)]
    others = np.array([0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, np.nan], dtype=np.float32)
    found = observations(evidence(others=others), ledger(*charged), header())
    assert not isinstance(found, str)
    root = np.sqrt(2.0)
    # What other records put in is taken away.
    np.testing.assert_allclose(found.values[:2], np.array([1.5, -1.5]) / (NOISE * root))
    assert found.values[6] == pytest.approx(2.0 / (NOISE * root))
    assert found.independent.tolist() == [False, False, True, True, False, False, False, True]


def test_batches_of_fixed_size_need_what_other_records_put_in():
    charged = [spend(0, 0, sampling="fixed-size"), spend(1, 2)]
    said = observations(evidence(), ledger(*charged), header())
    assert said == "the evidence does not say what other records contributed"
    shuffled = [spend(0, 0, sampling="shuffled"), spend(1, 2)]
    assert not isinstance(observations(evidence(), ledger(*shuffled), header()), str)


def test_noise_that_rounding_hides_and_a_retired_kind_have_no_scores():
    assert TOO_LITTLE_NOISE.startswith("noise below 0.05 times the clipping norm")
    least = [spend(0, 0, noise_multiplier=LEAST_NOISE), spend(1, 2)]
    assert not isinstance(observations(evidence(), ledger(*least), header()), str)
    less = [spend(0, 0, noise_multiplier=0.99 * LEAST_NOISE), spend(1, 2)]
    assert observations(evidence(), ledger(*less), header()) == TOO_LITTLE_NOISE
    said = observations(evidence(), ledger(*CHARGED), header("label"))
    assert isinstance(said, str)
    assert said.startswith("wrong labels, a retired kind")


def residuals(**changes: Any) -> dict[str, Any]:
    given = {
        "residuals": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        "residual_shift": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
        "residual_low": [-1.0] * 8,
        "residual_high": [0.5] * 8,
        "residual_total": [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0],
        **changes,
    }
    return {name: np.array(values, dtype=np.float32) for name, values in given.items()}


def test_crafted_inputs_are_scored_along_what_no_other_shares():
    charged = [spend(0, 0), spend(1, 2, noise_multiplier=4.0)]
    found = observations(evidence(**residuals()), ledger(*charged), header("input"))
    assert not isinstance(found, str)
    over = np.array([2.0] * 6 + [4.0] * 2)
    np.testing.assert_allclose(found.values, np.arange(1.0, 9.0) / over, rtol=1e-6)
    np.testing.assert_allclose(found.shifts, 0.1 * np.arange(1.0, 9.0) / over, rtol=1e-6)
    np.testing.assert_allclose(found.low, -1.0 / over)
    np.testing.assert_allclose(found.high, 0.5 / over)
    np.testing.assert_allclose(found.rates, [RATE, 0, RATE, 0, RATE, 0, RATE, RATE])
    assert not found.independent.any()
    # Of canaries that are in: the sum of their scores, and what each moves it by.
    assert [(one.value, one.count) for one in found.sums] == [
        (0.5, 1),
        (1.5, 1),
        (2.5, 1),
        (1.75, 1),
        (2.0, 1),
    ]
    assert [one.totals.tolist() for one in found.sums] == [
        [0.125],
        [0.375],
        [0.625],
        [0.4375],
        [0.5],
    ]
    assert all(one.rates.tolist() == [RATE] for one in found.sums)


@pytest.mark.parametrize("name", ["residuals", "residual_shift", "residual_low", "residual_high"])
def test_a_crafted_input_that_others_span_has_no_score(name):
    broken = residuals()
    broken[name][0] = np.nan
    found = observations(evidence(**broken), ledger(*CHARGED), header("input"))
    assert not isinstance(found, str)
    assert len(found) == 7
    assert found.values[0] == 1.0
    # It moves the sum of the others all the same.
    assert (found.sums[0].count, found.sums[0].totals.tolist()) == (0, [0.125])


def test_crafted_inputs_need_their_scores_a_charge_and_noise():
    def said(given, *charged):
        return observations(evidence(**given), ledger(*charged), header("input"))

    for name in residuals():
        rest = {key: values for key, values in residuals().items() if key != name}
        assert said(rest, *CHARGED) == "the evidence has no scores of crafted inputs"
    assert len(said(residuals(), spend(1, 2))) == 2
    assert said(residuals(), spend(1, 2, noise_multiplier=0.04)) == TOO_LITTLE_NOISE
    assert len(said(residuals(), spend(1, 2, noise_multiplier=LEAST_NOISE))) == 2
    for sampling in ("fixed-size", "shuffled"):
        assert said(residuals(), spend(1, 2, sampling=sampling)).sums == ()


# Whole clients


def charge(number: int, noise: float = NOISE, rate: float = RATE) -> RoundSpend:
    return RoundSpend(
        line=2, round=number, attempt=1, sampling="poisson", sampling_rate=rate,
        expected_clients=1.0, clipping_norm=1.0, noise_multiplier=noise, noise_added_by="server",
        clients=(0,), upload_noise_multiplier=None,
    )  # fmt: skip


def of_clients():
    rows = [(number, 0, 0, 3, [1.0 + number, -0.5, 2.0]) for number in (0, 3, 7)]
    return evidence(rows, (0, 1, 2), (1, 0, 1), CLIENT)


@pytest.mark.usefixtures("noise_as_said")
def test_of_whole_clients_each_round_is_one_release_and_all_are_held_against_one_claim():
    charged = [charge(3, 1.0), charge(0, 1.5)]
    whole, begun, final = client_views(of_clients(), ledger(*charged), header(), DELTA)
    assert (whole.name, whole.words) == ("uploads", "every noised mean")
    np.testing.assert_allclose(
        whole.scores,
        [ratio(x, 1, 1.5) + ratio(y, 1, 1.0) for x, y in ((1.0, 4.0), (-0.5, -0.5), (2.0, 2.0))],
    )
    assert (begun.name, begun.words) == ("beginning", "the noised mean of the first round")
    np.testing.assert_allclose(begun.scores, [ratio(x, 1, 1.5) for x in (1.0, -0.5, 2.0)])
    assert (final.name, final.scores.tolist()) == ("final-model", [2.0, 3.0, 4.0])
    assert final.mechanism is whole.mechanism
    ((share, losses),) = whole.mechanism(1.0)
    expected = privacy_profile([Steps(RATE, 1.0, 1), Steps(RATE, 1.5, 1)], DELTA)
    assert (share, losses.epsilon(DELTA)) == (1.0, expected.epsilon(DELTA))
    ((_, first),) = begun.mechanism(0.5)
    expected = privacy_profile([Steps(RATE, 0.75, 1)], DELTA)
    assert first.epsilon(DELTA) == expected.epsilon(DELTA)


def test_the_beginning_of_clients_is_the_most_rounds_within_the_limit():
    charged = [charge(number, 8.0, 1.0) for number in range(40)]
    steps = Steps(1.0, 8.0, 1)

    def spent(count: int) -> float:
        return budget([steps] * count, DELTA).headline

    found = module._beginning_of_rounds(charged, 2.0, DELTA)
    assert spent(found) <= 2.0 < spent(found + 1)
    assert module._beginning_of_rounds(charged, spent(7), DELTA) == 7
    assert module._beginning_of_rounds(charged, 1e-9, DELTA) == 1
    assert module._beginning_of_rounds(charged, 1e9, DELTA) == 40
    few = module._beginning_of_rounds(charged, 1.0, DELTA)
    _, begun, _ = client_views(of_clients(), ledger(*charged), header(), DELTA)
    assert begun.words == f"the noised means of the first {few} rounds"
    assert len(client_views(of_clients(), ledger(charge(0, 50.0)), header(), DELTA)) == 2
    with pytest.raises(UnverifiedError, match="no round was charged"):
        client_views(of_clients(), ledger(), header(), DELTA)


def test_the_noise_of_means_is_what_they_show_where_it_is_less():
    charged = [charge(number, 20.0) for number in (0, 3, 7)]
    whole, *_ = client_views(of_clients(), ledger(*charged), header(), DELTA)
    magnitudes = np.abs(np.array([1.0, 4.0, 8.0, 0.5, 0.5, 0.5, 2.0, 2.0, 2.0]))
    shown = float(np.median(magnitudes)) / stats.norm.ppf(0.75)
    assert whole.scores[1] == pytest.approx(3 * ratio(-0.5, 1, shown), rel=1e-6)


def test_of_whole_clients_each_release_is_a_score_of_the_ledgers_law():
    found = client_observations(of_clients(), ledger(charge(3, 4.0), charge(7)), header())
    assert not isinstance(found, str)
    np.testing.assert_allclose(found.values, [1.0, -0.125, 0.5, 4.0, -0.25, 1.0])
    np.testing.assert_allclose(found.rates, [RATE, 0, RATE] * 2)
    np.testing.assert_allclose(found.shifts, [0.25, 0, 0.25, 0.5, 0, 0.5])
    assert found.independent.all()
    assert len(collected([found])) == 6
    little = client_observations(of_clients(), ledger(charge(3, 0.04)), header())
    assert little == TOO_LITTLE_NOISE
    least = client_observations(of_clients(), ledger(charge(3, LEAST_NOISE)), header())
    assert not isinstance(least, str)
