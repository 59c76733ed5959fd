"""How batches may scatter: exact moments and counts, their level on both sides, their power."""

from __future__ import annotations

from fractions import Fraction
from math import comb
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from audit.reading.ledger_lines import Spend
from audit.statistics import batches as module
from audit.statistics.batches import (
    LEVELS,
    Batches,
    Group,
    batches_of_one_record,
    batches_to_see_a_cut,
    batches_to_see_none,
    count_p_value,
    dispersion_interval,
    empty_alpha,
    empty_batches,
    end_alpha,
    ends_of_sizes,
    pairs,
    rate_alpha,
    record_alpha,
    record_p_value,
    repeats_p_value,
    squares_cumulants,
)
from audit.statistics.intervals import FALSE_ALARM, binomial_p_value, skewed_upper_end


@pytest.mark.parametrize(("records", "rate"), [(10, Fraction(1, 4)), (60, Fraction(3, 100))])
def test_the_cumulants_are_those_of_the_binomial_law(records: int, rate: Fraction) -> None:
    """Against sums in exact fractions."""
    mean, spread = records * rate, records * rate * (1 - rate)
    shares = [comb(records, k) * rate**k * (1 - rate) ** (records - k) for k in range(records + 1)]
    off = [(k - mean) ** 2 / spread - 1 for k in range(records + 1)]
    assert sum(p * x for p, x in zip(shares, off, strict=True)) == 0
    second, third = (
        float(sum(p * x**power for p, x in zip(shares, off, strict=True))) for power in (2, 3)
    )
    assert squares_cumulants(records, float(rate)) == pytest.approx((second, third), rel=1e-12)


@pytest.mark.parametrize(
    ("records", "rate", "count"),
    [(290, 32 / 290, 50), (60, 0.03, 20), (80, 0.05, 50), (1000, 0.05, 10)],
)
def test_correct_batches_leave_the_interval_about_as_often_as_stated(
    records: int, rate: float, count: int
) -> None:
    """At alpha = 2 %, of 20,000 draws with a fixed seed, 200 are expected on either side.

    197 to 225 lie above; of (60, 0.03) 274 did by the law of two moments alone.
    """
    alpha, trials = 0.02, 20_000
    sizes = np.random.default_rng(7).binomial(records, rate, size=(trials, count))
    spread = records * rate * (1.0 - rate)
    found = np.square(sizes - records * rate).mean(axis=1) / spread
    low, high = dispersion_interval([(records, rate, count)], alpha)
    above, below = int((found > high).sum()), int((found < low).sum())
    assert 150 <= above <= 250, (above, below)
    assert below <= 250, (above, below)


def test_batches_of_one_size_and_of_twice_the_scatter_lie_outside() -> None:
    low, high = dispersion_interval([(290, 32 / 290, 50)], 3e-4)
    assert 0.0 < low < 1.0 < high < 2.0


def test_clients_of_different_sizes_are_taken_together() -> None:
    """Half of each, the interval lies between those of either alone."""
    one, other = (60, 0.03, 40), (1000, 0.05, 40)
    ends = [dispersion_interval(groups, 3e-4)[1] for groups in ([one], [other])]
    together = dispersion_interval([(60, 0.03, 20), (1000, 0.05, 20)], 3e-4)[1]
    assert min(ends) < together < max(ends)


def told(read: list[int] | None, queries: tuple[int, ...] = (3, 3, 0, 0, 2, 2)) -> list[str]:
    """What is said of three steps of two queries, by the batch that each gradient was taken of."""
    charge: Any = SimpleNamespace(
        queries_per_step=2, records=8, stated_rate=None, expected_batch_size=2.0, client=1
    )
    sizes = np.array(queries)
    uses = np.array([1] * int(sizes[::2].sum()) + [0] * 3)
    digests = None if read is None else np.repeat(np.array(read, int), 8).reshape(-1, 8)
    reasons: list[str] = []
    Batches("poisson").add("round 0, client 1", charge, sizes, uses, reasons, digests)
    return reasons


SHARED = "round 0, client 1: the queries of one step do not share a batch"
DRAWN = "round 0, client 1: gradients were taken of batches that were not drawn"


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (None, []),
        # Of an empty batch nothing is read.
        ([5, 5, 7, 7], []),
        ([5, 5, 5, 5], []),
        ([5, 6, 7, 7], [SHARED]),
        ([5, 5, 7, 8], [SHARED]),
        ([5, 5, 7], [DRAWN]),
        ([5, 5], [DRAWN]),
        ([5, 5, 6, 6, 7, 7], [DRAWN]),
        ([], [DRAWN]),
    ],
)
def test_the_queries_of_a_step_are_answered_on_the_batch_that_was_drawn(
    read: list[int] | None, said: list[str]
) -> None:
    assert told(read) == said
    # One step whose queries differ is enough.
    assert told(None, (3, 3, 0, 0, 2, 1)) == [SHARED]


@pytest.mark.parametrize(("trials", "chance"), [(1000, 0.05), (31, 0.5), (10, 1e-9), (5000, 0.3)])
def test_equal_chances_give_the_binomial_law(trials: int, chance: float) -> None:
    mean = round(trials * chance)
    for count in (0, mean, mean + 5, min(trials, 2 * mean + 3)):
        lower = stats.binom.cdf(count, trials, chance)
        upper = stats.binom.sf(count - 1, trials, chance)
        due = min(1.0, 2.0 * min(lower, upper))
        # Equal chances in parts are still equal chances.
        halves = {chance: trials // 2, chance * (1.0 + 1e-15): trials - trials // 2}
        assert count_p_value(count, {chance: trials}) == pytest.approx(due, abs=1e-11)
        assert count_p_value(count, halves) == pytest.approx(due, abs=1e-11)


def test_chances_that_differ_are_convolved() -> None:
    groups = {0.0: 4, 0.1: 3, 0.5: 2, 0.9: 1, 1.0: 2}
    law = np.ones(1)
    for chance, count in groups.items():
        for _ in range(count):
            law = np.convolve(law, [1.0 - chance, chance])
    for count in range(len(law)):
        due = min(1.0, 2.0 * min(law[: count + 1].sum(), law[count:].sum()))
        assert count_p_value(count, groups) == pytest.approx(due, abs=1e-12)


def test_counts_far_off_and_of_very_many_are_judged_too() -> None:
    assert count_p_value(10_000, {0.01: 100_000}) == 0.0
    assert count_p_value(0, {0.2: 10_000_000, 0.3: 5}) == 0.0
    assert 0.1 < count_p_value(2_000_000, {0.2: 10_000_000}) <= 1.0


@pytest.mark.parametrize("batch", [3, 8])
def test_correct_batches_are_flagged_no_oftener_than_stated(batch: int) -> None:
    """At 2 % each of 300 runs: 6 expected at most, and 17 or more are there in 1 of 5,000."""
    random, records = np.random.default_rng(5), (90, 143, 160)
    empty = ends = 0
    for _ in range(300):
        sizes = {(size, batch / size): random.binomial(size, batch / size, 60) for size in records}
        empty += empty_batches(sizes).p_value < 0.02
        ends += min(one.p_value for one in ends_of_sizes(sizes)) < 0.02 / (2 * len(LEVELS))
    assert empty < 17
    assert ends < 17


def test_each_end_and_each_side_of_it_is_told() -> None:
    key = (150, 8 / 150)
    sizes = np.random.default_rng(2).binomial(150, 8 / 150, 400)

    def seen(found: np.ndarray) -> set[tuple[str, bool]]:
        counts = [empty_batches({key: found}), *ends_of_sizes({key: found})]
        return {(one.kind, one.too_few) for one in counts if one.p_value < end_alpha()}

    assert seen(sizes) == set()
    assert ("large", True) in seen(np.minimum(sizes, 12))
    assert ("small", True) in seen(np.maximum(sizes, 4))
    assert ("empty", False) in seen(np.where(np.arange(400) % 20 == 0, 0, sizes))
    assert ("large", False) in seen(np.where(np.arange(400) % 20 == 0, 20, sizes))


def test_what_is_always_seen_begins_at_the_number_that_is_told() -> None:
    """Nothing of a kind is there, so that chance has no part in it."""
    chance, alpha = (1.0 - 3 / 150) ** 150, empty_alpha()
    least = batches_to_see_none(chance, alpha)
    assert count_p_value(0, {chance: least}) < alpha <= count_p_value(0, {chance: least - 1})
    rate = 8 / 150
    cut = batches_to_see_a_cut(150, rate, 12, end_alpha())
    assert cut == 211
    for number, found in ((cut, True), (cut - 1, False)):
        # As large as can be below the cut: no other level is touched.
        law = np.minimum(np.random.default_rng(1).binomial(150, rate, number), 12)
        ps = [one.p_value for one in ends_of_sizes({(150, rate): law}) if one.kind == "large"]
        assert (min(ps) < end_alpha()) == found
    assert batches_to_see_a_cut(150, rate, 60, end_alpha()) is None
    # No batch is larger than all records.
    assert batches_to_see_a_cut(2, 0.9, 2, end_alpha()) is None


def charge(rate: float | None = None) -> Spend:
    """What 250 steps of a client of 150 records are charged, at 3 a batch or a stated rate."""
    return Spend(
        2, 0, 0, 1, 150, "poisson", rate or 3 / 150, 3.0, 1.0, 1.0, 250, 1, rate is not None
    )


def reasons_of(sizes: np.ndarray) -> list[str]:
    """What is said of a client's batches, whose records are used as evenly as chance has it."""
    batches, reasons = Batches("poisson"), list[str]()
    used = np.bincount(np.random.default_rng(3).integers(0, 150, sizes.sum()), minlength=150)
    batches.add("here", charge(), sizes, used, reasons)
    private = batches.judge(reasons)
    assert set(private) >= {"empty_batches_p_value", "batch_ends_p_values"}
    return reasons


def test_batches_that_are_never_empty_are_named() -> None:
    sizes = np.random.default_rng(4).binomial(150, 3 / 150, 500)
    assert (sizes == 0).any()
    assert reasons_of(sizes[:250]) == []
    assert [one for one in reasons_of(sizes[sizes > 0][:250]) if "drawn again" in one]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda sizes: np.maximum(sizes, 1), "fewer batches are empty than Poisson"),
        (lambda sizes: np.where(EVERY_FIFTH, 0, sizes), "more batches are empty than Poisson"),
        (lambda sizes: np.maximum(sizes, 2), "fewer batches are small than Poisson"),
        (lambda sizes: np.where(EVERY_FIFTH, 0, sizes), "more batches are small than Poisson"),
        (lambda sizes: np.minimum(sizes, 4), "fewer batches are large than Poisson"),
        (lambda sizes: np.where(EVERY_FIFTH, 9, sizes), "more batches are large than Poisson"),
    ],
)
def test_each_end_is_named_with_its_side(changed, said) -> None:
    sizes = changed(np.random.default_rng(4).binomial(150, 3 / 150, 250))
    assert any(one.startswith(said) for one in reasons_of(sizes)), reasons_of(sizes)


EVERY_FIFTH = np.arange(250) % 5 == 0


def test_rates_of_0_and_1_leave_nothing_to_chance() -> None:
    batches, reasons = Batches("poisson"), list[str]()
    batches.add("here", charge(rate=1.0), np.full(250, 150), np.full(150, 250), reasons)
    assert "empty_batches_p_value" not in batches.judge(reasons)
    assert reasons == []


def test_all_tests_of_the_batches_together_keep_to_the_level() -> None:
    shares = [value for name, value in vars(module).items() if name.endswith("_SHARE")]
    assert len(shares) == 6
    assert sum(shares) == pytest.approx(1.0)
    assert empty_alpha() + 2 * len(LEVELS) * end_alpha() == pytest.approx(0.2 * FALSE_ALARM)


def said_of(sampling: str, sizes: list[int], uses: list[int], each: int = 1) -> list[str]:
    """What is said at once of a client of as many records, at two a batch."""
    alike: Any = SimpleNamespace(
        queries_per_step=each, records=len(uses), stated_rate=None, expected_batch_size=2.0,
        client=1,
    )  # fmt: skip
    reasons: list[str] = []
    batches = Batches(sampling)
    batches.add("here", alike, np.array(sizes), np.array(uses), reasons)
    assert batches.clients == (batches.steps > 0)
    return reasons


NOT_ADDED = ["here: the records' counts do not add up to the batches"]


@pytest.mark.parametrize(
    ("sampling", "sizes", "uses", "each", "said"),
    [
        ("poisson", [1, 3], [2, 1, 1, 0], 1, []),
        ("poisson", [1, 3, 1], [2, 1, 1, 0], 2, ["here: its queries are not a whole number of"]),
        ("poisson", [1, 3], [1, 1, 1, 0], 1, NOT_ADDED),
        # In two batches no record is three times.
        ("poisson", [1, 3], [3, 1, 0, 0], 1, NOT_ADDED),
        ("poisson", [5, 1], [2, 2, 1, 1], 1, ["here: a batch is larger than its client's records"]),
        ("poisson", [4, 4], [2, 2, 2, 2], 1, []),
        ("fixed-size", [2, 2], [2, 1, 1, 0], 1, []),
        ("fixed-size", [1, 3], [2, 1, 1, 0], 1, ["here: a batch does not have the public size"]),
        # Epochs of five records: two, two and one, and then again.
        ("shuffled", [2, 2, 1, 2], [2, 2, 1, 1, 1], 1, []),
        ("shuffled", [2, 1, 2, 2], [2, 2, 1, 1, 1], 1, ["here: a batch does not have the size of"]),
        ("shuffled", [2, 2, 1, 2], [2, 2, 2, 1, 0], 1, ["here: a record was used more or less"]),
        ("shuffled", [2, 2, 1, 2], [3, 1, 1, 1, 1], 1, ["here: a record was used more or less"]),
    ],
)
def test_each_participation_is_judged_by_itself(sampling, sizes, uses, each, said) -> None:
    found = said_of(sampling, sizes, uses, each)
    assert len(found) == len(said)
    assert all(one.startswith(start) for one, start in zip(found, said, strict=True))


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled"])
def test_epochs_that_pose_as_independent_draws_are_told_by_how_seldom_records_repeat(
    sampling: str,
) -> None:
    """Fifty steps of a client of 1,000 records at 100 a batch: five times each in epochs."""
    alike: Any = SimpleNamespace(
        queries_per_step=1, records=1000, stated_rate=None, expected_batch_size=100.0, client=1
    )
    epochs = "records repeat between batches unlike independent draws (shuffled epochs?)"
    even = np.full(1000, 5)
    drawn = np.random.default_rng(6).binomial(50, 0.1, 1000)
    drawn[0] += 5000 - drawn.sum()
    for uses, found in ((even, sampling != "shuffled"), (drawn, False)):
        batches, reasons = Batches(sampling), list[str]()
        batches.add("here", alike, np.full(50, 100), uses, [])
        private = batches.judge(reasons)
        assert (epochs in reasons) == found
        assert ("repeats_p_value" in private) == (sampling != "shuffled")
        assert ("batch_dispersion" in private) == (sampling == "poisson")
    told = batches.power()
    if sampling == "shuffled":
        assert told == "any record used twice in an epoch"
    else:
        assert told == "shuffled epochs posing as independent draws (seen here)"


def test_few_steps_would_not_show_epochs_and_it_is_said() -> None:
    alike: Any = SimpleNamespace(
        queries_per_step=1, records=10, stated_rate=None, expected_batch_size=2.0, client=1
    )
    batches = Batches("poisson")
    batches.add("here", alike, np.array([2]), np.array([1, 1] + [0] * 8), [])
    assert batches.power() == "shuffled epochs posing as independent draws (not seen here)"


@pytest.mark.parametrize(("batch", "varies"), [(30, "less"), (60, "more")])
def test_a_rate_and_a_scatter_that_are_not_the_ledgers_are_told_with_their_side(batch, varies):
    alike: Any = SimpleNamespace(
        queries_per_step=1, records=1000, stated_rate=None, expected_batch_size=45.0, client=7
    )

    def reasons_of_sizes(sizes: np.ndarray) -> list[str]:
        batches, reasons = Batches("poisson"), list[str]()
        uses = np.random.default_rng(2).multinomial(sizes.sum(), np.full(1000, 1e-3))
        batches.add("here", alike, sizes, uses, reasons)
        private = batches.judge(reasons)
        assert list(private["batch_rate_p_values"]) == ["7"]  # type: ignore[call-overload]
        return reasons

    rate = "client 7: its batches are not drawn at the rate q = 0.045 that was charged"
    assert rate in reasons_of_sizes(np.random.default_rng(1).binomial(1000, batch / 1000, 200))
    same = {"less": np.full(200, 45), "more": np.tile([20, 70], 100)}[varies]
    assert f"batch sizes vary {varies} than Poisson sampling allows" in reasons_of_sizes(same)
    assert reasons_of_sizes(np.random.default_rng(5).binomial(1000, 0.045, 200)) == []


def test_pairs_are_those_of_a_binomial_count_and_never_too_rare() -> None:
    assert pairs(np.array([0, 1, 2, 5])) == 11
    groups = [Group(6, 0.3, 40), Group(4, 0.5, 10), Group(3, 1.0, 7)]
    # Records at the rate 1 are in every pair: 7·3 of them are no chance.
    mean = 21 + 40 * 15 * 0.09 + 10 * 6 * 0.25
    rng = np.random.default_rng(8)
    drawn = [
        21 + pairs(rng.binomial(6, 0.3, 40)) + pairs(rng.binomial(4, 0.5, 10)) for _ in range(4000)
    ]
    assert np.mean(drawn) == pytest.approx(mean, rel=0.02)
    for share in (0.01, 0.1):
        low, high = np.quantile(drawn, [share / 2, 1 - share / 2])
        # Chernoff's bound is above the truth, and not by much.
        for end in (int(low), int(np.ceil(high))):
            assert share * 0.7 < repeats_p_value(end, groups) <= 1.0
    assert repeats_p_value(round(mean), groups) > 0.9
    assert repeats_p_value(21, groups) < 1e-6
    assert repeats_p_value(21 + 40 * 15, groups) < 1e-6
    assert repeats_p_value(21 + 100, groups) == repeats_p_value(100, groups[:2]) < 0.9
    # Where nobody can be in two batches, or all are in all, nothing is left to chance.
    assert repeats_p_value(21, groups[2:]) == 1.0
    assert repeats_p_value(0, [Group(1, 0.3, 40)]) == 1.0
    # One of three records in all four batches, each at a tenth.
    assert 3e-4 * 0.5 < repeats_p_value(6, [Group(4, 0.1, 3)]) < 0.02
    none = (0.7**6 + 6 * 0.3 * 0.7**5) ** 3
    assert repeats_p_value(0, [Group(6, 0.3, 3)]) == pytest.approx(2 * none)


def test_clients_share_the_false_alarms_of_their_rates_and_one_has_all_of_them() -> None:
    assert rate_alpha(0) == rate_alpha(1) == 0.3 * FALSE_ALARM
    assert rate_alpha(4) == pytest.approx(0.3 * FALSE_ALARM / 4)


def test_a_batch_that_is_meant_larger_than_a_client_is_all_of_it() -> None:
    assert said_of("poisson", [1, 1], [2], 1) == []
    alike: Any = SimpleNamespace(
        queries_per_step=1, records=1, stated_rate=None, expected_batch_size=2.0, client=1
    )
    batches = Batches("poisson")
    batches.add("here", alike, np.array([1, 1]), np.array([2]), [])
    assert [group.rate for group in batches._group_list()] == [1.0]


def test_the_ends_of_sizes_are_quantiles_of_the_binomial_law() -> None:
    """Each level's count is a count of sizes beyond its quantile, of one law and of two."""
    assert pytest.approx([0.4 * 0.6**n for n in range(12)]) == LEVELS
    records, rate = 40, 0.3
    sizes = np.random.default_rng(3).binomial(records, rate, 200)
    law = stats.binom(records, rate)
    due: list[tuple[str, float]] = []
    for level in LEVELS:
        low = min(k for k in range(records) if law.cdf(k) >= level)
        high = min(k for k in range(records) if law.sf(k) <= level)
        for kind, beyond, chance in (
            ("small", sizes < low, law.cdf(low - 1)),
            ("large", sizes > high, law.sf(high)),
        ):
            due.append((kind, binomial_p_value(int(beyond.sum()), 200, chance)))
    found = list(ends_of_sizes({(records, rate): sizes}))
    assert [one.kind for one in found] == [kind for kind, _ in due]
    assert [one.p_value for one in found] == pytest.approx([p for _, p in due], abs=1e-10)
    # Of two laws: what each has beyond its own quantile.
    other = np.random.default_rng(4).binomial(90, 0.1, 100)
    both = list(ends_of_sizes({(records, rate): sizes, (90, 0.1): other}))
    second = list(ends_of_sizes({(90, 0.1): other}))
    assert all(
        one.too_few == (a.too_few) or a.too_few != b.too_few
        for one, a, b in zip(both, found, second, strict=True)
    )


def test_a_batch_is_empty_with_the_chance_that_no_record_is_drawn() -> None:
    sizes = np.array([0, 0, 1, 2, 0, 3, 1, 0])
    found = empty_batches({(5, 0.3): sizes})
    assert found.p_value == pytest.approx(binomial_p_value(4, 8, 0.7**5))
    assert not found.too_few
    assert empty_batches({(5, 0.3): sizes[sizes > 0]}).too_few
    # As many as are expected are not too few: half of two.
    assert not empty_batches({(1, 0.5): np.array([0, 1])}).too_few


def test_the_interval_of_the_scatter_is_that_of_gamma_laws() -> None:
    groups, alpha = [(60, 0.03, 20), (1000, 0.05, 10)], 1e-3
    second, third = (
        sum(count * squares_cumulants(records, rate)[n] for records, rate, count in groups)
        for n in (0, 1)
    )
    law = stats.gamma(30.0**2 / second, scale=second / 30.0)
    low, high = dispersion_interval(groups, alpha)
    assert low * 30.0 == pytest.approx(law.ppf(alpha / 2), rel=1e-6)
    skewed = skewed_upper_end(30.0, second, third, alpha / 2)
    assert high * 30.0 == pytest.approx(max(law.isf(alpha / 2), skewed), rel=1e-6)


def participations(*, clients: dict[int, tuple[int, float, list[int]]]) -> Batches:
    """Batches of clients by number: records, expected batch size, sizes; records used evenly."""
    batches = Batches("poisson")
    for client, (records, expected, sizes) in clients.items():
        paid: Any = SimpleNamespace(
            queries_per_step=1, records=records, stated_rate=None,
            expected_batch_size=expected, client=client,
        )  # fmt: skip
        total = sum(sizes)
        uses = np.full(records, total // records) + (np.arange(records) < total % records)
        batches.add("here", paid, np.array(sizes), uses, [])
    return batches


def test_the_private_numbers_of_a_run_are_those_of_its_batches() -> None:
    """Two clients that count for the scatter, and one whose batches vary too little to."""
    kept = {
        3: (100, 20.0, [18, 25, 20]),
        1: (50, 10.0, [9, 10, 14, 8]),
        # Rq(1 − q) = 0.99: its sizes say next to nothing by their squares.
        2: (100, 1.0, [1, 0, 2]),
    }
    private: Any = participations(clients=kept).judge([])
    squares = (4 + 25 + 0) / 16.0 + (1 + 0 + 16 + 4) / 8.0
    assert private["batch_dispersion"] == pytest.approx(squares / 7)
    assert private["batch_rate_p_values"] == pytest.approx(
        {
            "1": binomial_p_value(41, 200, 0.2),
            "2": binomial_p_value(3, 300, 0.01),
            "3": binomial_p_value(63, 300, 0.2),
        }
    )
    sizes = {(records, e / records): np.array(s) for records, e, s in kept.values()}
    assert private["empty_batches_p_value"] == pytest.approx(empty_batches(sizes).p_value)
    ends = list(ends_of_sizes(sizes))
    for kind in ("small", "large"):
        least = min(one.p_value for one in ends if one.kind == kind)
        assert private["batch_ends_p_values"][kind] == pytest.approx(least)
    alone: Any = participations(clients={2: kept[2]}).judge([])
    assert alone["batch_dispersion"] is None
    # A variance of 1 is enough: 4 records at a half.
    assert participations(clients={1: (4, 2.0, [3, 1])}).judge([])["batch_dispersion"] == 1.0


@pytest.mark.parametrize(
    ("steps", "records", "rate", "even"),
    [
        # 2.1 uses each: nine records twice, and one three times.
        (7, 10, 0.3, 9 * 1 + 1 * 3),
        (10, 8, 0.5, 8 * 10),
        (3, 12, 0.25, 0),
    ],
)
def test_epochs_use_records_as_evenly_as_can_be(steps, records, rate, even, monkeypatch) -> None:
    seen: list[int] = []

    def noted(observed: int, groups: list[Group]) -> float:
        seen.append(observed)
        assert groups == [Group(steps, rate, records)]
        return 1.0

    sizes = [round(rate * records)] * steps
    batches = participations(clients={1: (records, rate * records, sizes)})
    monkeypatch.setattr(module, "repeats_p_value", noted)
    assert batches.power().endswith("(not seen here)")
    assert seen == [even]
    monkeypatch.setattr(module, "repeats_p_value", lambda *_: 0.2 * FALSE_ALARM)
    assert batches.power().endswith("(not seen here)")
    monkeypatch.setattr(module, "repeats_p_value", lambda *_: 0.1999 * FALSE_ALARM)
    assert batches.power().endswith("(seen here)")


def test_each_sampler_has_its_law_and_its_part_of_the_false_alarms() -> None:
    assert set(module.LAWS) == {"poisson", "fixed-size", "shuffled"}
    assert empty_alpha() == pytest.approx(0.05 * FALSE_ALARM)
    assert end_alpha() == pytest.approx(0.15 * FALSE_ALARM / 24)


OFTEN = "client 1: a record is in more batches than the rate that was charged explains"


def drawn_batches(
    rng: np.random.Generator, sampling: str, steps: int, favoured: bool, records: int = 50
) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and uses of batches of eight records, of which the first may replace another one."""
    sizes, uses = [], np.zeros(records, np.int64)
    for _ in range(steps):
        if sampling == "poisson":
            batch = np.flatnonzero(rng.random(records) < 8 / records)
        else:
            batch = rng.choice(records, 8, replace=False)
        if favoured and len(batch) and 0 not in batch:
            batch[0] = 0
        sizes.append(len(batch))
        uses[batch] += 1
    return np.array(sizes), uses


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
@pytest.mark.parametrize("favoured", [True, False])
def test_a_record_that_takes_the_place_of_others_is_seen_over_many_participations(
    sampling: str, favoured: bool
) -> None:
    """One step in each of sixty rounds: no record repeats within a participation."""
    rng = np.random.default_rng(11)
    alike: Any = SimpleNamespace(
        queries_per_step=1, records=50, stated_rate=None, expected_batch_size=8.0, client=1
    )
    batches, reasons = Batches(sampling), list[str]()
    for number in range(60):
        batches.add(f"round {number}", alike, *drawn_batches(rng, sampling, 1, favoured), reasons)
    private = batches.judge(reasons)
    assert reasons == ([OFTEN] if favoured else [])
    found = private["most_frequent_record_p_value"]
    assert isinstance(found, float)
    assert (found < record_alpha(1)) == favoured


@pytest.mark.parametrize("sampling", ["poisson", "fixed-size"])
def test_correct_records_are_flagged_no_oftener_than_stated(sampling: str) -> None:
    """Of 600 runs at 2 %, 12 are expected at most, and 27 or more are there in 1 of 10,000."""
    rng = np.random.default_rng(12)
    values = [
        record_p_value(drawn_batches(rng, sampling, 20, favoured=False)[1], {8 / 50: 20})
        for _ in range(600)
    ]
    assert 0 < np.count_nonzero(np.array(values) < 0.02) < 27


def test_the_tail_of_one_record_is_exact_at_one_rate_and_never_too_small_at_several() -> None:
    law = stats.binom(60, 0.1)
    counts = np.array([3, 20, 0, 9])
    assert record_p_value(counts, {0.1: 60}) == pytest.approx(4.0 * law.sf(19), rel=1e-9)
    assert record_p_value(np.array([6, 6]), {0.1: 60}) == 1.0
    assert record_p_value(np.zeros(0, np.int64), {}) == 1.0
    # At a rate of 1 every record is in every batch, and that is no chance.
    assert record_p_value(np.array([60, 60]), {1.0: 60}) == 1.0
    trials = {0.05: 6, 0.3: 4, 0.9: 2, 1.0: 1}
    exact = np.ones(1)
    for rate, number in trials.items():
        for _ in range(number):
            exact = np.convolve(exact, [1.0 - rate, rate])
    for count in range(len(exact)):
        assert record_p_value(np.array([count]), trials) >= exact[count:].sum() * (1 - 1e-12)
    assert record_p_value(np.array([13]), trials) < 1e-3


def test_the_count_from_which_a_record_is_seen_is_the_least_one() -> None:
    for records, rate, steps in ((50, 0.16, 60), (1000, 0.016, 200), (10, 0.5, 40)):
        least = batches_of_one_record(records, rate, steps, 4)
        assert least is not None
        uses = np.zeros(records, np.int64)
        uses[3] = least
        assert record_p_value(uses, {rate: steps}) < record_alpha(4)
        uses[3] = least - 1
        assert record_p_value(uses, {rate: steps}) >= record_alpha(4)
    # Being in each of three batches is no wonder at a rate of a half.
    assert batches_of_one_record(10, 0.5, 3, 4) is None
