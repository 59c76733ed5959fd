"""Whether a claim is too low, and how finely it must be computed to say so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from audit.accounting.budget import Budget, Steps, ThirdParty, budget, dearest
from audit.accounting.comparison import _gaussian_delta, curve_fault, understates
from audit.accounting.pld import composer
from audit.accounting.registry import Range
from audit.untrusted.fields import FieldError
from dpfedadamw.accounting.pld import epsilon_pld, mixture_epsilon_pld
from dpfedadamw.accounting.trade_off import gaussian_dp
from dpfedadamw.privacy.composition import Composition

Grid = Callable[[int], float]


class Grids:
    """What each fineness gives, and which were asked for."""

    def __init__(self, *values: float, coarser: float | None = None) -> None:
        self.values, self.coarser = values, coarser
        self.asked: list[int] = []

    def __call__(self, fineness: int) -> float:
        """The value at a fineness; the last one for all beyond."""
        self.asked.append(fineness)
        if fineness < 0:
            assert self.coarser is not None
            return self.coarser
        return self.values[min(fineness, len(self.values) - 1)]


@pytest.mark.parametrize(
    ("claimed", "grids", "low", "asked"),
    [
        # The coarse grid accepts, or says that it is too little by far.
        (2.0, Grids(2.0), False, [0]),
        (2.0 * (1 - 0.99e-4), Grids(2.0), False, [0]),
        (1.98, Grids(2.0), True, [0]),
        # A finer one accepts what a coarse one does not.
        (1.9997, Grids(2.0, 1.9998), False, [0, 1]),
        (1.9997, Grids(2.0, 1.99995, 1.9998), False, [0, 1, 2]),
        # Settled, and still below.
        (1.9997, Grids(2.0, 1.999999), True, [0, 1]),
        (1.9997, Grids(2.0004, 2.00003, 2.00002), True, [0, 1, 2]),
        # Values that no grid is behind do not change.
        (1.9997, Grids(2.0, coarser=2.0), True, [0, 1, -1]),
        # Where no grid is finer, what a coarser one changes is what may be wrong.
        (1.9997, Grids(2.0, coarser=2.0002), False, [0, 1, -1]),
        (1.9997, Grids(2.0, coarser=2.00005), True, [0, 1, -1]),
        # It never settles: the last change is what may be wrong.
        (1.9974, Grids(2.0, 1.9995, 1.9990, 1.9985, 1.9980), False, [0, 1, 2, 3, 4]),
        (1.9970, Grids(2.0, 1.9999, 1.9998, 1.9997, 1.9996), True, [0, 1, 2, 3, 4]),
        # Rounding errors of a very fine grid are not believed.
        (1.9997, Grids(2.0, 1.9998, 2.1), False, [0, 1]),
    ],
)
def test_the_grid_becomes_finer_until_it_can_tell(
    claimed: float, grids: Grids, low: bool, asked: list[int]
) -> None:
    assert understates(claimed, grids) is low
    assert grids.asked == asked


def drawn(seed: int) -> tuple[Grid, float]:
    """Steps drawn at random: what they cost by the auditor's grids, and by the engine."""
    rng = np.random.default_rng(seed)
    delta, share = float(10 ** rng.uniform(-8, -3)), float(rng.choice([1.0, 0.1, 0.5]))
    fixed = bool(rng.integers(2))
    kinds = []
    for _ in range(int(rng.integers(1, 4))):
        sigma, rate = float(np.exp(rng.uniform(-0.5, 2))), float(np.exp(rng.uniform(-7, 0)))
        steps, rounds = int(np.exp(rng.uniform(0, 5))), int(np.exp(rng.uniform(0, 4)))
        kinds.append((sigma, rate, steps, rounds))
    sampling = "fixed-size" if fixed else "poisson"
    theirs = [(Composition(s, q, n, 1, sampling), rounds) for s, q, n, rounds in kinds]
    ours = [(Steps(q, s / 2.0 if fixed else s, n, fixed), rounds) for s, q, n, rounds in kinds]
    if share < 1.0:
        rounds = [many for _, many in ours]
        return (
            lambda fineness: ThirdParty(ours, share, delta, fineness).epsilon(rounds),
            mixture_epsilon_pld(theirs, share, delta),
        )
    return budget([one for one, _ in ours], delta).at, epsilon_pld([o for o, _ in theirs], delta)


# Both samplers, against the server and against a third party; the others are more of the same.
QUICK = {0, 1, 2, 7, 8, 10}
SEEDS = [
    pytest.param(seed, marks=[] if seed in QUICK else [pytest.mark.slow]) for seed in range(12)
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_engines_epsilon_is_accepted_and_a_little_less_is_not(seed: int) -> None:
    grid, engine = drawn(seed)
    assert not understates(engine, grid)
    least = min(grid(fineness) for fineness in range(4))
    assert understates(least * (1.0 - 1.5e-4) - 2e-9, grid)


def test_cells_of_a_finer_grid_are_a_quarter_as_wide() -> None:
    history = (Steps(0.02, 1.0, 200),)
    widths = [composer(history, 1e-5, fineness).interval for fineness in (-1, 0, 1, 2)]
    assert [one / widths[1] for one in widths] == [4.0, 1.0, 0.25, 0.0625]


def test_the_dearest_of_several_is_asked_for_alone_where_it_suffices() -> None:
    asked = []

    def costing(coarse: float, fine: float) -> Budget:
        def finer(fineness: int) -> float:
            asked.append(coarse)
            return fine

        return Budget({"pld": Range(coarse, coarse, finer)})

    several = [costing(2.0, 1.9), costing(3.0, 2.5), costing(2.6, 2.4), costing(1.0, 1.0)]
    assert dearest(several, 0) == 3.0
    assert dearest(several, 1) == 2.5
    assert asked == [3.0, 2.6]
    assert dearest([], 1) == 0.0


def test_with_little_noise_a_right_curve_agrees_and_a_curve_below_is_found():
    # dp-accounting 0.6.0 says 0.0229157 and 9.8547e-6 on cells of 1e-5. Our coarse grid has 0.0239
    # for the first.
    history = [Steps(0.01045751633986928, 0.36542, 3)]
    for epsilon, right, low in ((0.0, 0.022916, 0.0222), (8.0, 9.8548e-6, 8.9e-6)):
        assert curve_fault({"profile": [[epsilon, right]]}, history, 1e-5) is None
        found = curve_fault({"profile": [[epsilon, low]]}, history, 1e-5)
        assert found == f"the privacy profile understates delta at epsilon = {epsilon:.4g}"


def gaussian(mu: float, **others: Any) -> dict[str, Any]:
    return {"gaussian_dp": {"mu": mu, "exact": False, "misses_smaller_by": 1e-10, **others}}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "least"),
    # The least mu whose curve lies nowhere below that of dp-accounting 0.6.0 (cells of 1e-4, for
    # 2,000 steps of 2e-4) where delta is above 1e-10.
    [
        (1.0, 0.02, 2000, 1.3000),
        (2.8, 0.2, 100, 0.79512),
        (0.37, 0.01, 12, 2.6495),
        (0.95, 0.1, 300, 2.7596),
    ],
)
def test_the_mu_that_covers_a_curve_is_accepted_and_one_that_does_not_is_found(
    sigma, rate, steps, least
):
    history = [Steps(rate, sigma, steps)]
    for mu in (least, 1.01 * least, 1.03 * least):
        assert curve_fault(gaussian(mu), history, 1e-5) is None
    found = curve_fault(gaussian(0.97 * least), history, 1e-5)
    assert f"mu = {0.97 * least:.7g} understates delta at epsilon = " in found
    found = curve_fault(gaussian(1.2 * least), history, 1e-5)
    assert f"mu is claimed as {1.2 * least:.4g}, which is overstated" in found


def test_a_mu_says_that_it_is_exact_where_every_record_is_in_every_step_and_only_there():
    whole, sampled = [Steps(1.0, 4.0, 9), Steps(1.0, 1.0, 1)], [Steps(0.5, 4.0, 9)]
    right = math.sqrt(9 / 16 + 1)
    exact = gaussian(right, exact=True, misses_smaller_by=0.0)
    assert curve_fault(exact, whole, 1e-5) is None
    assert curve_fault(gaussian(1.0001 * right, exact=True), whole, 1e-5) == (
        "mu is claimed as 1.250125 but is 1.25"
    )
    assert curve_fault(gaussian(right, exact=True), whole, 1e-5) == (
        "an exact mu holds for events of any probability"
    )
    said = "gaussian_dp is exact if and only if every record is in every step"
    assert curve_fault(exact, sampled, 1e-5) == said
    assert curve_fault(gaussian(right), whole, 1e-5) == said


def test_a_mu_of_a_profile_that_ends_promises_no_more_and_none_is_that_of_a_selection():
    history, mu = [Steps(0.2, 2.8, 100)], 0.797
    assert curve_fault(gaussian(mu), history, 1e-5) is None
    assert curve_fault(gaussian(mu, misses_smaller_by=0.0), history, 1e-5) == (
        "a profile that ends at delta = 1e-10 proves no mu for rarer events"
    )
    assert curve_fault({**gaussian(mu), "tuning": {}}, history, 1e-5) == (
        "gaussian_dp is that of one trial, and the run is the best of several"
    )
    with pytest.raises(FieldError, match="mu"):
        curve_fault(gaussian("many"), history, 1e-5)


@pytest.mark.parametrize("mu", [0.0, 5e-324, 1e-300, 1e300])
def test_a_mu_of_no_size_that_a_run_has_is_found(mu):
    found = curve_fault(gaussian(mu), [Steps(0.2, 2.8, 100)], 1e-5)
    assert ("overstated" if mu > 1 else "understates") in found
    assert 0.0 <= _gaussian_delta(mu, 3.0) <= 1.0


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("rate", "steps"), [(0.003, 3), (0.01, 3000), (0.3, 1), (0.3, 60)])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("sampling", ["poisson", "fixed-size", "shuffled", "full"])
def test_the_engines_mu_is_accepted_and_a_little_less_is_not(sampling, sigma, rate, steps):
    rate = rate if sampling in ("poisson", "fixed-size") else 1.0
    composition = Composition(sigma, rate, steps, sampling=sampling)
    fixed = sampling == "fixed-size"
    history = [Steps(rate, composition.noise_over_sensitivity, steps, fixed)]
    stated = gaussian_dp(composition)
    assert curve_fault({"gaussian_dp": stated}, history, 1e-5) is None
    less = {**stated, "mu": 0.96 * stated["mu"]}
    assert "mu" in str(curve_fault({"gaussian_dp": less}, history, 1e-5))
