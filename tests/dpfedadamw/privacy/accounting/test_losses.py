"""Losses on a grid: what composing and coarsening may do to them, and that it is cheap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, stats

from audit.accounting.budget import Steps, budget
from dpfedadamw.privacy.accounting.losses import coarsenings_of
from dpfedadamw.privacy.accounting.pld import _composed, epsilon_pld, mixture_epsilon_pld
from dpfedadamw.privacy.accounting.poisson import poisson_losses
from dpfedadamw.privacy.composition import Composition

WIDTH = 2.0**-10


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.02), (0.4, 0.3), (2.0, 1.0)])
def test_one_step_is_that_of_dp_accounting(noise: float, rate: float) -> None:
    ours = poisson_losses(noise, rate, WIDTH)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=WIDTH
    )
    for epsilon in (0.0, 0.01, 0.3, 1.0, 4.0):
        # Both round up on one grid; what is left is the cancellation in their differences.
        expected = theirs.get_delta_for_epsilon(epsilon)
        assert ours.delta(epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_a_coarser_grid_keeps_both_laws_and_only_adds_to_delta() -> None:
    fine = poisson_losses(1.0, 0.1, WIDTH).remove
    coarse = fine.coarser()
    assert coarse.interval == 2 * WIDTH
    for losses in (fine, coarse):
        grid = (losses.first + np.arange(len(losses.masses))) * losses.interval
        assert losses.masses.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)
        # The other law's mass, E[e^-loss], is 1 save the finest tail.
        assert np.dot(losses.masses, np.exp(-grid)) == pytest.approx(1.0, abs=1e-9)
    epsilons = np.linspace(0.0, 3.0, 50)
    added = [coarse.delta(one) - fine.delta(one) for one in epsilons]
    assert min(added) >= -1e-15
    assert max(added) > 0.0


def test_the_moments_that_set_the_windows_bound_those_of_the_masses() -> None:
    one = poisson_losses(1.0, 0.1, WIDTH).remove
    composed = one.repeated(1000, coarsenings_of(1000), 1e-14)
    grid = (composed.first + np.arange(len(composed.masses))) * composed.interval
    for tilt in (0.25, 0.5, 1.0):
        index = int(np.log2(tilt)) + 24
        for sign, bounds in ((1.0, composed.rising), (-1.0, composed.falling)):
            moment = np.log(np.dot(composed.masses, np.exp(sign * tilt * grid)))
            # What rounding of a transform leaves in the tails is all that can exceed a bound.
            assert moment <= bounds[index] + 1e-6


@pytest.mark.parametrize("steps", [10**3, 10**6, 10**9, 10**11])
def test_any_number_of_gaussians_costs_what_the_closed_form_says(steps: int) -> None:
    # Composed one by one, and not as the single Gaussian that they are.
    noise = 0.7 * math.sqrt(steps)
    width = 2.0 ** -(6 + coarsenings_of(steps))
    one = poisson_losses(noise, 1.0, width)
    composed = one.repeated(steps, coarsenings_of(steps), 1e-14)

    def excess(epsilon: float) -> float:
        upper, lower = stats.norm.cdf(np.array([0.5, -0.5]) / 0.7 - epsilon * 0.7)
        return float(upper - math.exp(epsilon) * lower - 1e-5)

    exact = optimize.brentq(excess, 0.0, 30.0, xtol=1e-12)
    assert exact - 1e-9 <= composed.epsilon(1e-5) <= exact * 1.001
    # The cost does not grow with the steps: no window is longer than some thousand cells.
    assert len(composed.remove.masses) < 10_000


@pytest.mark.parametrize(
    ("rate", "noise", "steps", "kind"),
    [
        (0.2, 1.0, 10**6, "poisson"),
        (0.01, 30.0, 10**7, "poisson"),
        (0.2, 0.05, 100, "poisson"),
        (0.2, 300.0, 10**7, "fixed-size"),
        (0.02, 2.5, 10**6, "fixed-size"),
    ],
)
def test_engine_and_auditor_agree_on_long_and_on_costly_runs(
    rate: float, noise: float, steps: int, kind: str
) -> None:
    ours = epsilon_pld(Composition(noise, rate, steps, 1, kind), 1e-5)
    fixed = kind == "fixed-size"
    theirs = budget([Steps(rate, noise / (2.0 if fixed else 1.0), steps, fixed)], 1e-5).headline
    # Each promises some 10^-4 of ε; the auditor's tolerance for claims is 5·10^-3.
    assert ours == pytest.approx(theirs, rel=1e-3)


def test_a_run_of_any_length_is_composed_on_few_cells() -> None:
    for rounds, steps in ((20, 5), (10**6, 10**5)):
        part = Composition(3000.0, 0.4, steps)
        pair = _composed(((part, rounds),), 0.5, 1e-5)
        # Seconds follow from cells: a transform of 2^20 takes some hundredths.
        assert len(pair.remove.masses) < 2**20
        assert 0.0 < mixture_epsilon_pld([(part, rounds)], 0.5, 1e-5) < 1e4
