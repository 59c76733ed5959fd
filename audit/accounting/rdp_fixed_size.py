"""Rényi divergence of a Gaussian query on a sample of fixed size, when one record is replaced.

The bound of Wang, Balle & Kasiviswanathan (2019), written anew for the audit. It is far from tight
where much is spent; `pld` is tight there, and this stands beside it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from audit.accounting.losses import log_sum_exp

# Beyond this order the sharper terms, which need one integral each, are left out.
_LARGEST_SHARP = 256


def rdp_of_fixed_size_step(
    sampling_rate: float, noise_multiplier: float, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """Rényi divergence of one query on a sample of fixed size under replace-one.

    Args:
        sampling_rate: q = B/R in (0, 1].
        noise_multiplier: σ/2 > 0, noise over the 2C by which a replaced record moves the sum.
        orders: Rényi orders, each above 1.

    Returns:
        One value an order, in nats. Between whole orders the logarithm of the moment is
        interpolated, which its convexity allows.
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if sampling_rate >= 1.0:
        gaussian: NDArray[np.float64] = alpha / (2.0 * noise_multiplier**2)
        return gaussian
    below, above = np.floor(alpha), np.ceil(alpha)
    wanted = sorted({int(order) for order in (*below, *above)})
    moments = {
        order: _log_moment(float(sampling_rate), float(noise_multiplier), order) for order in wanted
    }
    low = np.array([moments[int(order)] for order in below])
    high = np.array([moments[int(order)] for order in above])
    result: NDArray[np.float64] = (low + (alpha - below) * (high - low)) / (alpha - 1.0)
    return result


@lru_cache(maxsize=16384)
def _log_moment(rate: float, sigma: float, order: int) -> float:
    """(α-1)·ε(α) for a whole order α: theorem 27 (theorem 9 beyond the sharp orders)."""
    if order == 1:
        return 0.0
    index = np.arange(2, order + 1, dtype=np.float64)
    # Theorem 9: 2·e^((j-1)ε(j)), and the least of two for j = 2.
    plain = np.log(2.0) + index * (index - 1.0) / (2.0 * sigma**2)
    excess = 1.0 / sigma**2
    second = np.log(4.0) + excess + np.log(-np.expm1(-excess))
    plain[0] = min(second, np.log(2.0) + excess)
    if 2 < order <= _LARGEST_SHARP:
        even = np.array(
            [0.0, *(_log_central_moment(sigma, 2 * half) for half in range(1, order // 2 + 2))]
        )
        sharp = np.log(4.0) + 0.5 * (
            even[(index // 2).astype(int)] + even[np.ceil(index / 2).astype(int)]
        )
        plain[1:] = np.minimum(plain[1:], sharp[1:])
    logs = (
        gammaln(order + 1.0)
        - gammaln(index + 1.0)
        - gammaln(order - index + 1.0)
        + index * np.log(rate)
        + plain
    )
    return log_sum_exp(np.concatenate([[0.0], logs]))


@lru_cache(maxsize=4096)
def _log_central_moment(sigma: float, power: int) -> float:
    """Log of E_Q[(P/Q - 1)^power], power even, for Gaussians P and Q one sensitivity apart.

    The forward difference of the theorem. Summed term by term it cancels to nothing for small
    losses; as an integral of a function that is nowhere negative it does not.
    """
    width = 1.0 / sigma
    outputs = np.linspace(-14.0, 14.0 + power * width, int(400 * (28.0 + power * width)))
    exponent = width * outputs - 0.5 * width**2
    with np.errstate(divide="ignore"):
        # log|e^x - 1|, without overflow.
        log_ratio = np.maximum(exponent, 0.0) + np.log(-np.expm1(-np.abs(exponent)))
    logs = power * log_ratio - 0.5 * outputs**2 - 0.5 * np.log(2.0 * np.pi)
    return log_sum_exp(logs[np.isfinite(logs)]) + float(np.log(outputs[1] - outputs[0]))
