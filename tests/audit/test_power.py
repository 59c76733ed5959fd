"""How small a fault the checks catch: the formulas, and runs that have just such a fault."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from audit import power
from audit.accounting.budget import Steps
from audit.checks.noise import (
    coordinate_alpha,
    drift_alpha,
    grain_alpha,
    scale_alpha,
    silent_alpha,
    tail_alpha,
)
from audit.power import (
    BEGIN,
    END,
    Parts,
    caught_claimed_sigma,
    caught_coordinates,
    caught_drift,
    caught_noise_scales,
    caught_rates,
    caught_silence,
    caught_table,
    noise_half_width,
    tables,
    values_for_a_cut,
)
from audit.statistics.batches import rate_alpha
from audit.statistics.intervals import binomial_p_value, chi_square_interval
from audit.statistics.noise_values import (
    coincidence_p_value,
    coordinate_p_values,
    extremes,
    halves_p_value,
    silent_p_values,
    tail_levels,
    zeros_expected,
)
from audit.verdict import Verdict
from tests.audit.corruptions import finding_of
from tests.audit.synthetic_run import Settings, build_run

DOCS = Path(__file__).resolve().parents[2] / "docs" / "detection.md"

# rounds * clients a round * local steps * parameters of the run below.
COORDINATES = 4 * 3 * 3 * 340
MANY = Parts(50, 8, 100, 5)


def test_noise_off_by_three_and_one_per_cent_is_rejected_at_99_9_per_cent() -> None:
    assert noise_half_width(10**4, Parts()) <= 0.03
    assert noise_half_width(10**5, Parts()) <= 0.01
    # The tests of a run are shared out; a correct run fails less often than once in a thousand.
    assert scale_alpha(3) < 1e-3


def test_the_docs_say_what_the_formulas_say() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == tables()


def test_the_command_rewrites_the_tables_of_a_page_and_nothing_else_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "tables", lambda: "| σ |\n|---|")
    page = tmp_path / "page.md"
    page.write_text(f"# Before\n{BEGIN}\nold\n{END}\nAfter {END}\n", encoding="utf-8")
    for _ in range(2):
        assert power.main([str(page)]) == 0
        assert page.read_text(encoding="utf-8") == (
            f"# Before\n{BEGIN}\n\n| σ |\n|---|\n\n{END}\nAfter {END}\n"
        )


@pytest.mark.parametrize("coordinates", [10**4, 10**5])
def test_simulated_noise_is_caught_as_often_as_promised(coordinates: int) -> None:
    rng = np.random.default_rng(coordinates)
    low, high = chi_square_interval(coordinates, MANY.alpha)
    draws = rng.chisquare(coordinates, 20_000) / coordinates
    for scale in caught_noise_scales(coordinates, MANY):
        ratio = scale**2 * draws
        missed = np.mean((low <= ratio) & (ratio <= high))
        # 1 in 1000 expected; 20 of 20,000 is within four standard deviations up to 38.
        assert 0.0002 < missed < 0.0019
    assert np.mean((low <= draws) & (draws <= high)) > 0.999
    half = noise_half_width(coordinates, MANY)
    near = np.mean(((1.0 + half) ** 2 * draws) > high)
    assert 0.4 < near < 0.6


@pytest.mark.parametrize(("vectors", "weak"), [(30, 1), (240, 10)])
def test_simulated_noise_on_a_few_coordinates_is_caught_as_often_as_promised(
    vectors: int, weak: int
) -> None:
    rng, size, times = np.random.default_rng(weak), 650, 3000
    scale = caught_coordinates(size, vectors, weak)
    assert scale is not None
    # The quantiles at which tails are counted, once for all repetitions.
    levels = np.array(tail_levels(size))
    edges = stats.chi2.ppf(levels, vectors)
    missed = 0
    for _ in range(times):
        squares = rng.chisquare(vectors, size)
        squares[:weak] *= scale**2
        counts = np.count_nonzero(squares[:, None] < edges, axis=0)
        p_value = len(levels) * stats.binom.sf(counts - 1, size, levels).min()
        missed += p_value >= coordinate_alpha()
    # 3 expected where they alone decide; chance lows among the others only help.
    assert missed <= 11
    squares = rng.chisquare(vectors, size)
    squares[:weak] = 0.0
    assert coordinate_p_values(squares, np.full(size, vectors)).low < coordinate_alpha()


def test_a_drift_is_caught_as_often_as_promised() -> None:
    values = 10**4
    rng, ratio = np.random.default_rng(2), caught_drift(10**4)
    missed = 0
    for first, second in rng.chisquare(values / 2, (5000, 2)):
        squares = np.array([ratio**2 * first, second])
        missed += halves_p_value(squares, np.array([values / 2, values / 2])) >= drift_alpha()
    assert 0 < missed < 16  # 5 expected


@pytest.mark.parametrize("cut", [3.0, 3.5])
def test_a_cut_off_is_caught_from_so_many_values_on_and_not_before(cut: float) -> None:
    enough = values_for_a_cut(cut)
    for values, caught in ((enough, True), (int(0.9 * enough), False)):
        found = extremes(np.array([cut]), np.array([float(values)]))
        assert (found.too_small < tail_alpha()) is caught


def test_a_table_of_the_size_that_is_told_is_caught() -> None:
    rng, samples = np.random.default_rng(6), 12_288
    size = caught_table(samples)
    assert 3e5 < size < 1e6
    for _ in range(20):
        table = rng.standard_normal(size)
        values = table[rng.integers(0, size, samples)]
        assert coincidence_p_value(values) < grain_alpha()
        assert coincidence_p_value(rng.standard_normal(samples)) > grain_alpha()


def test_a_few_coordinates_without_noise_are_enough_in_any_one_vector() -> None:
    assert caught_silence(19_210, 80 * 5) <= 5
    expected = zeros_expected(np.full(400, 19_210.0), np.full(400, 10.0))
    silent = np.zeros(400, dtype=np.int64)
    silent[17] = caught_silence(19_210, 400)
    each, _ = silent_p_values(silent, expected)
    assert each[17] < silent_alpha() / 400
    silent[17] -= 1
    each, _ = silent_p_values(silent, expected)
    assert each[17] >= silent_alpha() / 400


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_run_with_the_smallest_caught_noise_fails(tmp_path: Path, side: int, seed: int) -> None:
    scale = caught_noise_scales(COORDINATES, Parts(5, 3, 4, 3))[side]
    run = build_run(tmp_path / "run", Settings(seed=seed, noise_scale=scale))
    finding = finding_of(run, "noise-scale")
    assert finding.verdict is Verdict.FAIL
    assert f"all queries: variance {('below', 'above')[side]}" in finding.measurement


def test_a_ledger_that_misreports_sigma_by_as_much_fails(tmp_path: Path) -> None:
    scale = caught_noise_scales(COORDINATES, Parts(5, 3, 4, 3))[0]
    extra = Settings().noise_multiplier * (1.0 / scale - 1.0)
    run = build_run(tmp_path / "run", Settings(ledger_sigma_extra=extra))
    assert finding_of(run, "noise-scale").verdict is Verdict.FAIL


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
    assert 1.00005 < factor < 1.001
