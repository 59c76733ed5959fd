"""What noise does to an exponential average of squares: means and variances of its innovations.

The statistics behind the check "second-moment", apart from its judgement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.reading.evidence import RoundEvidence, SecondMoment

Array = NDArray[np.float64]


@dataclass
class InnovationSums:
    """Innovations of D = noisy − clean over all clients and rounds: sums, one entry a block."""

    total: Array
    expected: Array
    variance: Array
    noise_variance: Array
    count: int = 0


def step_weights(beta2: float, steps: int) -> Array:
    """(1−β2)·β2^(K−j) for j = 1…K: how much the j-th square counts at the end of the round."""
    ages = np.arange(steps - 1, -1, -1, dtype=np.float64)
    result: Array = (1.0 - beta2) * np.power(beta2, ages)
    return result


def steps_gain(beta2: float, steps: int) -> float:
    """1 − β2^steps without cancellation."""
    return float(-np.expm1(steps * np.log(beta2))) if beta2 > 0.0 else 1.0


def accumulate(
    sums: InnovationSums,
    evidence: RoundEvidence,
    moment: SecondMoment,
    start: Array,
    beta2: float,
    variance_of_noise: float,
    sizes: Array,
) -> Array:
    """Add one round's innovations; returns the difference D of every client at its end.

    Given the past, the innovation D_end − β2^K·D_start of a client is a sum of independent means
    of ξ² + 2ξg with ξ ~ N(0, Φ): its mean is (1−β2^K)Φ and step j has variance
    (1−β2)²β2^(2(K−j))·(2Φ²/n + 4Φ·Σg²/n²) over a block of n coordinates. Clients share the start
    of a round but not its innovations, which is what makes them independent terms.
    """
    steps = evidence.batch_size.shape[1]
    weights = step_weights(beta2, steps)
    difference = moment.noisy - moment.clean
    innovations = difference - beta2**steps * start
    phi = variance_of_noise
    square = np.square(weights)
    spread = (
        square.sum() * 2.0 * phi**2 / sizes
        + np.tensordot(evidence.clean_sum_squares, square, axes=(1, 0)) * 4.0 * phi / sizes**2
    )
    clients = len(evidence.clients)
    sums.total += innovations.sum(axis=0)
    sums.expected += clients * steps_gain(beta2, steps) * phi
    sums.variance += spread.sum(axis=0)
    sums.noise_variance += clients * square.sum() * 2.0 * phi**2 / sizes
    sums.count += clients
    return difference
