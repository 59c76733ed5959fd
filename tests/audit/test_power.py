"""How small a fault the checks catch: the formulas, and runs that have just such a fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit import audit_run
from audit.accounting.budget import Steps
from audit.checks.noise import scale_alpha
from audit.power import (
    BEGIN,
    END,
    caught_claimed_sigma,
    caught_noise_scales,
    caught_rates,
    noise_half_width,
    tables,
)
from audit.statistics.batches import rate_alpha
from audit.statistics.intervals import binomial_p_value, chi_square_interval
from audit.verdict import Verdict
from tests.audit.synthetic_run import Settings, build_run

DOCS = Path(__file__).resolve().parents[2] / "docs" / "detection.md"

# rounds * clients a round * local steps * parameters of the run below.
COORDINATES = 4 * 3 * 3 * 340


def test_noise_off_by_three_and_one_per_cent_is_rejected_at_99_9_per_cent() -> None:
    assert noise_half_width(10**4, 1, 1) <= 0.03
    assert noise_half_width(10**5, 1, 1) <= 0.01
    # The tests of a run are shared out; a correct run fails less often than once in a thousand.
    assert scale_alpha(3) < 1e-3


def test_the_docs_say_what_the_formulas_say() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == tables()


@pytest.mark.parametrize("coordinates", [10**4, 10**5])
def test_simulated_noise_is_caught_as_often_as_promised(coordinates: int) -> None:
    rng = np.random.default_rng(coordinates)
    low, high = chi_square_interval(coordinates, scale_alpha(59))
    draws = rng.chisquare(coordinates, 20_000) / coordinates
    for scale in caught_noise_scales(coordinates, 50, 8):
        ratio = scale**2 * draws
        missed = np.mean((low <= ratio) & (ratio <= high))
        # 1 in 1000 expected; 20 of 20,000 is within four standard deviations up to 38.
        assert 0.0002 < missed < 0.0019
    assert np.mean((low <= draws) & (draws <= high)) > 0.999
    half = noise_half_width(coordinates, 50, 8)
    near = np.mean(((1.0 + half) ** 2 * draws) > high)
    assert 0.4 < near < 0.6


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_run_with_the_smallest_caught_noise_fails(tmp_path: Path, side: int, seed: int) -> None:
    scale = caught_noise_scales(COORDINATES, 5, 3)[side]
    run = build_run(tmp_path / "run", Settings(seed=seed, noise_scale=scale))
    finding = audit_run(run).named("noise-scale")
    assert finding.verdict is Verdict.FAIL
    assert f"all queries: variance {('below', 'above')[side]}" in finding.measurement


def test_a_ledger_that_misreports_sigma_by_as_much_fails(tmp_path: Path) -> None:
    scale = caught_noise_scales(COORDINATES, 5, 3)[0]
    extra = Settings().noise_multiplier * (1.0 / scale - 1.0)
    run = build_run(tmp_path / "run", Settings(ledger_sigma_extra=extra))
    assert audit_run(run).named("noise-scale").verdict is Verdict.FAIL


@pytest.mark.parametrize(("records", "rate", "steps"), [(1000, 0.016, 200), (100, 0.16, 20)])
def test_simulated_rates_are_caught_as_often_as_promised(
    records: int, rate: float, steps: int
) -> None:
    rng = np.random.default_rng(steps)
    alpha, trials = rate_alpha(50), records * steps
    assert binomial_p_value(round(trials * rate), trials, rate) > alpha
    for true in caught_rates(records, rate, steps, 50):
        counts, times = np.unique(rng.binomial(trials, true, 20_000), return_counts=True)
        passed = [binomial_p_value(int(count), trials, rate) >= alpha for count in counts]
        assert 0.0002 < float(times[passed].sum()) / 20_000 < 0.0019


def test_rates_that_no_test_can_tell_are_said_to_be_so() -> None:
    # Two steps on ten records: not even an empty batch each time is unusual.
    assert caught_rates(10, 0.1, 2, 50)[0] == 0.0


def test_a_claim_computed_from_a_larger_sigma_is_caught() -> None:
    factor = caught_claimed_sigma(Steps(0.016, 1.0, 2000), 1e-5)
    assert 1.001 < factor < 1.01
