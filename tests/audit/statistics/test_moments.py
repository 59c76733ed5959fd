"""The interval of the check second-moment holds its level, whatever the weights of the steps."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from audit.checks.second_moment import shift_interval
from audit.statistics.intervals import skewed_upper_end
from audit.statistics.moments import InnovationSums, accumulate, step_weights

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
    for variance, third in ((0.0, 0.0), (1.0, 0.0), (1.0, -1.0), (1e-300, 1e300), (1.0, np.nan)):
        assert skewed_upper_end(1.0, variance, third, 1e-3) == 1.0
