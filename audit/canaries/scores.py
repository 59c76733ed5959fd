"""Scores: how much a release speaks for a canary's having been there.

White-box: the adversary of the claim sees every noised sum and knows all other records, so it
takes away what those put in and looks along the canary's own direction. What is left in units of C
is N(0, σ²) with a shift of 1 in each step that drew the canary. Adding the logarithms of the
likelihood ratio over the steps is the best that anybody can do with it (Neyman & Pearson 1933).

Black-box: the canary's loss under the final model against that under the initial one; a record that
was trained on has a smaller loss.

The noise is that of the ledger, or what the releases themselves show where they show less
(`noise_shown`): the adversary looks before it weighs, or else a single draw of a canary would count
little under noise that is not there.

A score is only ever used to order the canaries: a bad one costs power, and never makes a bound
wrong.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Of the normal law: median of |x| over the standard deviation.
_MEDIAN_MAGNITUDE = 0.6744897501960817
_LEAST_SHARE = 0.02


def noise_shown(standardised: NDArray[np.float64]) -> float:
    """The noise that releases show over the ledger's, in [0.02, 1].

    The median magnitude, because most releases say nothing but noise: half of the canaries are out,
    and the others are in few batches.

    Args:
        standardised: projections over the noise multiplier that the ledger names.
    """
    if not standardised.size:
        return 1.0
    shown = float(np.median(np.abs(standardised))) / _MEDIAN_MAGNITUDE
    return min(1.0, max(_LEAST_SHARE, shown))


def log_likelihood_ratio(
    projections: NDArray[np.float64],
    noise_multiplier: float,
    sampling_rate: float,
    queries: float | NDArray[np.float64] = 1,
    opposed: bool = False,
) -> NDArray[np.float64]:
    """Log-likelihood ratio of "in" against "out" for one step.

    Args:
        projections: sum over the step's queries of the released sum along each canary's direction,
            without what other records put in, in units of C, times what the canary would move it
            by; any shape.
        noise_multiplier: σ of one query.
        sampling_rate: q, a canary's chance to be in the step's batch.
        queries: noised answers on the step's one batch; or, where a canary moves some of them by
            other than 1, the sum of the squares of what it moves them by, of the same shape.
        opposed: whether a canary that is out points the other way, as under replace-one adjacency,
            instead of being absent.
    """
    inside = _mixture(projections, noise_multiplier, sampling_rate, queries)
    if not opposed:
        return inside
    return inside - _mixture(-projections, noise_multiplier, sampling_rate, queries)


def _mixture(
    projections: NDArray[np.float64],
    noise_multiplier: float,
    rate: float,
    queries: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    present: NDArray[np.float64] = (projections - queries / 2.0) / noise_multiplier**2
    if rate >= 1.0:
        return present
    mixed: NDArray[np.float64] = np.logaddexp(np.log1p(-rate), np.log(rate) + present)
    return mixed


def loss_reduction(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much smaller each canary's loss became, [m]; what is not finite counts as 0."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(before - after, nan=0.0, posinf=0.0, neginf=0.0)
