"""The interval of the check second-moment holds its level, whatever the weights of the steps."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from audit.checks.second_moment import shift_interval
from audit.statistics.intervals import skewed_upper_end
from audit.statistics.moments import (
    Floor,
    InnovationSums,
    accumulate,
    floor_faults,
    promised_floor,
    promised_rule,
    relative_rounding,
    step_weights,
    steps_gain,
)
from audit.untrusted.fields import FieldError

NOISE = 0.3  # Φ


def run_of(beta2: float, size: int, clients: int, steps: int, ratio: float) -> InnovationSums:
    """One round from 0: what is expected of it where Σg² is so many times n·Φ in each step."""
    sums = InnovationSums.start(1)
    evidence = SimpleNamespace(
        batch_size=np.zeros((clients, steps)),
        clean_sum_squares=np.full((clients, steps, 1), ratio * size * NOISE),
        clients=np.arange(clients),
    )
    nothing = SimpleNamespace(noisy=np.zeros((clients, 1)), clean=np.zeros((clients, 1)))
    sizes, start = np.array([float(size)]), np.zeros(1)
    accumulate(sums, evidence, nothing, start, beta2, NOISE, sizes, 24)
    return sums


def drawn(beta2: float, size: int, clients: int, steps: int, ratio: float, runs: int) -> np.ndarray:
    """The sum of innovations in so many correct runs: ξ² + 2ξg, from their own law."""
    random, total = np.random.default_rng(7), np.zeros(runs)
    for weight in step_weights(beta2, steps):
        degrees, moved = clients * size, clients * size * ratio
        squares = random.noncentral_chisquare(degrees, moved, runs) - moved
        total += weight * NOISE / size * squares
    return total


@pytest.mark.parametrize(
    ("beta2", "size", "clients", "steps", "ratio"),
    [
        # The quickstart's softmax regression, and 32 hidden units beside heads of few coordinates.
        (0.999, 650, 200, 5, 0.01),
        (0.999, 10, 4, 5, 1.0),
        (0.9, 64, 4, 10, 0.0),
        # Much gradient beside little noise: the sum may be negative.
        (0.999, 10, 4, 5, 100.0),
        # The last step outweighs all others, on blocks of one coordinate and of two.
        (0.5, 1, 1, 10, 0.0),
        (0.5, 2, 1, 5, 0.0),
    ],
)
def test_correct_runs_leave_the_interval_as_rarely_as_stated(beta2, size, clients, steps, ratio):
    alpha, runs = 2e-4, 1_000_000
    sums = run_of(beta2, size, clients, steps, ratio)
    total = drawn(beta2, size, clients, steps, ratio, runs)
    expected, variance, third = (float(x[0]) for x in (sums.expected, sums.variance, sums.third))
    assert total.mean() == pytest.approx(expected, abs=5.0 * np.sqrt(variance / runs))
    assert total.var() == pytest.approx(variance, rel=0.02)
    low, high = shift_interval(expected, variance, third, 0.0, alpha)
    # 200 are expected at most; 270 would be five standard deviations more.
    assert np.sum(total < low) + np.sum(total > high) <= 270
    # Half the noise, and twice, must not hide in it where there is enough to see.
    if size * clients >= 100_000:
        assert low > 0.95 * expected
        assert high < 1.05 * expected


def test_rounding_alone_is_no_reason_to_fail_in_a_model_of_a_hundred_million_parameters():
    """β2 = 0.999 is 1.3e-8 larger in float32, which every step multiplies all of v by again.

    Chance moves the sum of so many squares by 4e-7 of itself; rounding moves it by 1e-5.
    """
    size, clients, steps, rounds, beta2 = 1e8, 10, 5, 2000, 0.999
    sums, random = InnovationSums.start(1), np.random.default_rng(3)
    decay, gain = float(np.float32(beta2)), float(np.float32(1.0 - beta2))
    start = np.zeros((1, 1))
    for _ in range(rounds):
        noisy = np.repeat(start, clients, axis=0)
        for _ in range(steps):
            # A mean of so many squares is normal.
            squares = 1.0 + np.sqrt(2.0 / size) * random.standard_normal((clients, 1))
            noisy = decay * noisy + gain * NOISE * squares
        evidence = SimpleNamespace(
            batch_size=np.zeros((clients, steps)),
            clean_sum_squares=np.zeros((clients, steps, 1)),
            clients=np.arange(clients),
        )
        moment = SimpleNamespace(noisy=noisy, clean=np.zeros((clients, 1)))
        accumulate(sums, evidence, moment, start[0], beta2, NOISE, np.array([size]), 20)
        start = noisy.mean(axis=0, keepdims=True)
    cumulants = [float(x[0]) for x in (sums.expected, sums.variance, sums.third)]
    low, high = shift_interval(*cumulants, 0.0, 1e-3)
    assert not low <= sums.total[0] <= high
    low, high = shift_interval(*cumulants, float(sums.rounding[0]), 1e-3)
    assert low <= sums.total[0] <= high
    # A thousandth less noise is seen all the same.
    assert 0.998 * sums.expected[0] < low


def test_the_third_cumulant_is_that_of_the_sums():
    sums = run_of(0.5, 2, 3, 4, 0.7)
    total = drawn(0.5, 2, 3, 4, 0.7, 400_000)
    third = float(np.mean((total - total.mean()) ** 3))
    assert third == pytest.approx(float(sums.third[0]), rel=0.05)


def test_an_end_is_the_mean_where_cumulants_are_none_of_sums_of_squares():
    none = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, -1.0), (1e-300, 1e300), (1.0, np.nan))
    for variance, third in none:
        assert skewed_upper_end(1.0, variance, third, 1e-3) == 1.0


def test_steps_count_the_more_the_later_they_are():
    assert step_weights(0.5, 3).tolist() == [0.125, 0.25, 0.5]
    assert step_weights(0.9, 4).sum() == pytest.approx(steps_gain(0.9, 4))
    assert steps_gain(0.0, 3) == 1.0
    # Without cancellation: 1 − 0.999999999^2.
    assert steps_gain(1 - 1e-9, 2) == pytest.approx(2e-9, rel=1e-6)


def test_rounding_grows_with_the_steps_and_with_the_bits_that_are_left_out():
    assert relative_rounding(6, 16) == 8 * 2.0**-22 + 2.0**-16
    assert relative_rounding(0, 24) == 2 * 2.0**-22 + 2.0**-24


FLOORS = {
    "relative": ({"relative": 0.5}, 1.0),
    "absolute": ({"absolute": 0.25}, 0.25),
    "none": ({"relative": 0.0}, 0.0),
}


@pytest.mark.parametrize("kind", FLOORS)
def test_a_floor_is_a_number_or_a_multiple_of_the_noises_variance(kind):
    given, value = FLOORS[kind]
    floor = promised_floor({"floor": given})
    assert floor.value(2.0) == value
    # One denominator a block, where blocks are what is shared.
    for aggregation, denominator, by_block in (
        ("block", "block", True),
        ("block", "coordinate", False),
        ("full", "block", False),
        ("none", "block", False),
    ):
        section = {"floor": given, "aggregation": aggregation, "denominator": denominator}
        assert promised_floor(section).by_block is by_block


@pytest.mark.parametrize(
    "floor", [{}, {"relative": 1.0, "absolute": 1.0}, {"relative": -0.1}, {"absolute": "much"}]
)
def test_a_floor_that_is_none_is_refused(floor):
    with pytest.raises(FieldError):
        promised_floor({"floor": floor})


SIZES = np.array([10.0, 4.0])


def faults(corrected, floored, floor, phi=1.0):
    return floor_faults(np.array([corrected]), np.array([floored]), SIZES, phi, floor)


def test_as_many_coordinates_are_raised_as_the_mean_asks_for_and_no_more_than_there_are():
    floor = Floor(1.0, None, by_block=False)
    # Φ + floor = 2: a mean of 0.5 leaves at most a quarter above it, so that 7.5 of 10 were raised.
    assert faults([0.5, 2.0], [7, 0], floor) == []
    few = ["fewer coordinates were raised to the floor than the mean of v-hat leaves below it"]
    assert faults([0.5, 2.0], [6, 0], floor) == few
    assert faults([0.5, 2.0], [10, 4], floor) == []
    many = ["more coordinates reached the floor than there are"]
    assert faults([0.5, 2.0], [10, 5], floor) == many
    assert faults([0.5, 2.0], [11, 0], Floor(0.0, None, by_block=True)) == many


def test_without_a_floor_nothing_may_be_raised():
    said = ["v-hat minus Phi was negative at some coordinate, and no floor held it"]
    assert faults([0.1, 0.1], [0, 0], Floor(0.0, None, by_block=False)) == []
    assert faults([0.1, 0.1], [0, 1], Floor(0.0, None, by_block=False)) == said
    assert faults([0.1, 0.1], [0, 1], Floor(1.0, None, by_block=False), phi=0.0) == said


def test_a_blocks_one_denominator_is_raised_exactly_where_it_must_be():
    floor = Floor(None, 1.0, by_block=True)
    said = ["a block's one denominator was not raised to the floor exactly where it must"]
    assert faults([1.9, 2.1], [10, 0], floor) == []
    assert faults([1.9, 2.1], [0, 0], floor) == said
    assert faults([1.9, 2.1], [9, 0], floor) == said
    assert faults([1.9, 2.1], [10, 4], floor) == said
    assert faults([1.9, 2.1], [10, 1], floor) == said
    # Within a ten-thousandth of the floor either is rounding.
    for near in (2.0 - 1e-4, 2.0 + 1e-4):
        for raised in (0, 10):
            assert faults([near, 2.1], [raised, 0], floor) == []
    assert faults([2.0 * (1.0 - 1.5e-4), 2.1], [0, 0], floor) == said
    assert faults([2.0 * (1.0 + 1.5e-4), 2.1], [10, 0], floor) == said


def rule(name="dp-fedadamw", beta2=0.99, **moment):
    algorithm = {"name": name, "beta2": 0.99}
    if moment.pop("own", True):
        algorithm["second_moment"] = moment
    return promised_rule({"algorithm": algorithm}, beta2)


def test_a_rule_is_what_the_spec_says_and_what_it_leaves_open_is_the_default():
    plain = rule(own=False)
    assert (plain.carried, plain.debias, plain.local_counter, plain.restarts) == (
        False,
        False,
        True,
        True,
    )
    assert (plain.floor, plain.whole) == (None, False)
    least = rule()
    assert (least.carried, least.debias, least.local_counter, least.restarts) == (
        False,
        False,
        False,
        True,
    )
    assert (least.floor, least.whole) == (None, False)
    most = rule(aggregation="full", debias=True, counter="local", floor={"relative": 1.0})
    assert (most.carried, most.debias, most.local_counter, most.restarts) == (
        True,
        True,
        True,
        False,
    )
    assert (most.floor, most.whole) == (Floor(1.0, None, by_block=False), True)
    blocks = rule(aggregation="block", counter="global")
    assert (blocks.carried, blocks.local_counter, blocks.whole) == (True, False, False)
    alone = rule("dp-localadamw", aggregation="block")
    assert (alone.carried, alone.restarts) == (False, True)
    with pytest.raises(FieldError, match="beta2 of the evidence is not the spec's"):
        rule(beta2=0.9)
    for none in (-0.1, 1.1):
        with pytest.raises(FieldError):
            promised_rule({"algorithm": {"name": "dp-fedadamw", "beta2": none}}, none)


def test_innovations_are_what_a_round_added_to_its_own_start():
    sums = InnovationSums.start(2)
    evidence = SimpleNamespace(
        batch_size=np.zeros((2, 2)), clean_sum_squares=np.ones((2, 2, 2)), clients=np.arange(2)
    )
    moment = SimpleNamespace(noisy=np.array([[3.0, 1.0], [2.0, 5.0]]), clean=np.ones((2, 2)))
    start = np.array([0.5, 1.0])
    for _ in range(2):
        difference = accumulate(sums, evidence, moment, start, 0.5, NOISE, np.array([4.0, 1.0]), 16)
    assert difference.tolist() == [[2.0, 0.0], [1.0, 4.0]]
    # Two clients, each with β2² of the start taken off; twice.
    assert sums.total.tolist() == [2 * (3.0 - 2 * 0.125), 2 * (4.0 - 2 * 0.25)]
    assert sums.expected.tolist() == pytest.approx([2 * 2 * 0.75 * NOISE] * 2)
    # Σw² = 5/16 and Σw³ = 9/64 of two clients, by 2Φ²/n + 4Φ·Σg²/n² and 8Φ³/n² + 24Φ²·Σg²/n³.
    for block, n in enumerate((4.0, 1.0)):
        noise = 4 * 5 / 16 * 2 * NOISE**2 / n
        assert sums.noise_variance[block] == pytest.approx(noise)
        assert sums.variance[block] == pytest.approx(noise + 4 * 5 / 16 * 4 * NOISE / n**2)
        third = 4 * 9 / 64 * (8 * NOISE**3 / n**2 + 24 * NOISE**2 / n**3)
        assert sums.third[block] == pytest.approx(third)
    assert sums.rounding.tolist() == pytest.approx(
        [2 * 5.0 * relative_rounding(2, 16), 2 * 6.0 * relative_rounding(2, 16)]
    )
    assert sums.count == 4
