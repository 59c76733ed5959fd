"""The statistic of the check second-moment, in real runs, has the law that the check supposes.

`tests/audit/statistics/test_moments.py` draws that law. Here the engine makes the runs: its rule,
server, noise, float32 and the public grid that all uploads lie on.
"""

from __future__ import annotations

import numpy as np
import pytest

from audit.checks.second_moment import _followed
from audit.reading.bundle import open_bundle
from audit.statistics.moments import promised_rule
from dpfedadamw.run import training as engine_run
from tests.runs import begin, small_spec

RUNS = 100


def deviation(seed: int, folder, overrides: tuple[str, ...]) -> float:
    """How many standard deviations the shift of a run lies from what is expected, all blocks."""
    training = begin(small_spec(overrides=overrides, seed=seed), folder)
    with training.lock:
        engine_run.train(training)
    bundle = open_bundle(training.run.path)
    beta2 = bundle.layout().beta2
    assert beta2 is not None
    recursion = _followed(bundle, promised_rule(bundle.readable_spec, beta2), [])
    sums, sizes = recursion.sums, recursion.sizes
    variance = float(sums.variance @ sizes**2)
    return float((sums.total - sums.expected) @ sizes) / np.sqrt(variance)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["heads", "full", "none"])
def test_real_runs_deviate_as_much_as_the_check_supposes(aggregation, tmp_path):
    """A correct engine fails one of these once in five thousand times; the seeds are fixed."""
    shared = f"algorithm.second_moment={{aggregation: {aggregation}}}"
    deviations = [deviation(seed, tmp_path / str(seed), (shared,)) for seed in range(RUNS)]
    assert abs(np.mean(deviations)) < 4.0 / np.sqrt(RUNS)
    assert abs(np.mean(np.square(deviations)) - 1.0) < 4.0 * np.sqrt(2.0 / RUNS)
