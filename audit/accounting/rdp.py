"""Rényi differential privacy of subsampled Gaussians, written for the audit alone.

A second opinion on `pld`, an accountant for each conversion. On samples of fixed size, where one
record is replaced, it is the bound of Wang, Balle & Kasiviswanathan (2019), which is far from tight
where much is spent. Nothing here is shared with the accountant that the engine used, so that one
mistake cannot hide in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, gammasgn, log_ndtr

from audit.accounting.registry import Accountant, Range, Steps, log_sum_exp, register

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


# Over 20 deviations apart the integral has its value in closed form, and points would be too many.
_WIDE = 20.0


@lru_cache(maxsize=4096)
def _log_central_moment(sigma: float, power: int) -> float:
    """Log of E_Q[(P/Q - 1)^power], power even, for Gaussians P and Q one sensitivity apart.

    The forward difference of the theorem. Summed term by term it cancels to nothing for small
    losses; as an integral of a function that is nowhere negative it does not.
    """
    width = 1.0 / sigma
    if width > _WIDE:
        # At most 1 + E_Q[(P/Q)^power], and less by a part in e^400 at most.
        return float(np.logaddexp(0.0, 0.5 * power * (power - 1) * width**2))
    outputs = np.linspace(-14.0, 14.0 + power * width, int(400 * (28.0 + power * width)))
    exponent = width * outputs - 0.5 * width**2
    with np.errstate(divide="ignore"):
        # log|e^x - 1|, without overflow.
        log_ratio = np.maximum(exponent, 0.0) + np.log(-np.expm1(-np.abs(exponent)))
    logs = power * log_ratio - 0.5 * outputs**2 - 0.5 * np.log(2.0 * np.pi)
    return log_sum_exp(logs[np.isfinite(logs)]) + float(np.log(outputs[1] - outputs[0]))


_SERIES_TERMS = 400


@lru_cache(maxsize=1)
def fine_orders() -> tuple[float, ...]:
    """Rényi orders of the optimum: dense where it usually lies, geometric up to 4096.

    Those that common accountants evaluate are among them, so that none can find less.
    """
    near_one = [1.0 + step / 200 for step in range(1, 20)]
    dense = [1.1 + step / 20 for step in range(220)]
    integers = [float(order) for order in range(12, 65)]
    wide = [float(round(64 * 1.06**step)) for step in range(1, 72)]
    every = (*near_one, *dense, *integers, *wide, *whole_orders())
    return tuple(sorted({round(order, 6) for order in every}))


@lru_cache(maxsize=1)
def whole_orders() -> tuple[float, ...]:
    """Whole orders that every accountant evaluates exactly.

    Common accountants add fractional ones, but bound their series from above, or drop orders at
    which it converges slowly. An honest value over any such grid lies at or below this grid's.
    """
    return tuple(float(order) for order in (*range(2, 64), 128, 256, 512, 1024))


def _log_binomial(order: NDArray[np.float64], index: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = (
        gammaln(order + 1.0) - gammaln(index + 1.0) - gammaln(order - index + 1.0)
    )
    return result


def _log_moment_integer(sampling_rate: float, noise_multiplier: float, order: int) -> float:
    index = np.arange(order + 1, dtype=np.float64)
    terms = (
        _log_binomial(np.float64(order) * np.ones_like(index), index)
        + index * np.log(sampling_rate)
        + (order - index) * np.log1p(-sampling_rate)
        + (index * index - index) / (2.0 * noise_multiplier**2)
    )
    return log_sum_exp(terms)


def _log_moments_fractional(
    sampling_rate: float, noise_multiplier: float, orders: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Log of the order-th moment for fractional orders, all orders at once.

    The integral is split where the two mixture components are equal and each half is expanded in
    its own convergent binomial series (Mironov, Talwar & Zhang 2019, section 3.3). The terms
    alternate in sign beyond the order, so the mean of the last two partial sums is closer than
    the first omitted term.
    """
    sigma = noise_multiplier
    split = sigma**2 * np.log(1.0 / sampling_rate - 1.0) + 0.5
    index = np.arange(_SERIES_TERMS, dtype=np.float64)[None, :]
    order = orders[:, None]
    sign = gammasgn(order - index + 1.0)
    binomial = _log_binomial(order, index)
    rest = order - index
    log_rate, log_rest = np.log(sampling_rate), np.log1p(-sampling_rate)
    lower = (
        index * log_rate
        + rest * log_rest
        + (index * index - index) / (2.0 * sigma**2)
        + log_ndtr((split - index) / sigma)
    )
    upper = (
        rest * log_rate
        + index * log_rest
        + (rest * rest - rest) / (2.0 * sigma**2)
        + log_ndtr((rest - split) / sigma)
    )
    logs = binomial + np.logaddexp(lower, upper)
    scale = logs.max(axis=1, keepdims=True)
    terms = sign * np.exp(logs - scale)
    total = terms.sum(axis=1) - 0.5 * terms[:, -1]
    result: NDArray[np.float64] = np.log(total) + scale[:, 0]
    return result


def rdp_of_step(
    sampling_rate: float,
    noise_multiplier: float,
    orders: tuple[float, ...],
) -> NDArray[np.float64]:
    """Rényi divergence of one subsampled Gaussian query under add/remove.

    Args:
        sampling_rate: Poisson rate q in (0, 1].
        noise_multiplier: σ > 0, noise standard deviation over the clipping norm.
        orders: Rényi orders, each above 1.

    Returns:
        One value an order, in nats. Source: Mironov, Talwar & Zhang 2019.
    """
    return _cached_rdp(float(sampling_rate), float(noise_multiplier), orders).copy()


@lru_cache(maxsize=1024)
def _cached_rdp(
    sampling_rate: float, noise_multiplier: float, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    alpha = np.asarray(orders, dtype=np.float64)
    if sampling_rate >= 1.0:
        gaussian: NDArray[np.float64] = alpha / (2.0 * noise_multiplier**2)
        return gaussian
    log_moment = np.empty_like(alpha)
    whole = alpha == np.round(alpha)
    for position in np.flatnonzero(whole):
        log_moment[position] = _log_moment_integer(
            sampling_rate, noise_multiplier, int(alpha[position])
        )
    if not whole.all():
        log_moment[~whole] = _log_moments_fractional(sampling_rate, noise_multiplier, alpha[~whole])
    result: NDArray[np.float64] = np.maximum(log_moment, 0.0) / (alpha - 1.0)
    return result


def epsilon_classic(
    rdp: NDArray[np.float64], orders: tuple[float, ...], delta: float
) -> tuple[float, float]:
    """Mironov's conversion (2017, proposition 3): ε = ε_α + log(1/δ)/(α−1).

    Returns:
        The least ε over the orders and the order where it is reached.
    """
    alpha = np.asarray(orders)
    return _least(rdp - np.log(delta) / (alpha - 1.0), alpha)


def epsilon_improved(
    rdp: NDArray[np.float64], orders: tuple[float, ...], delta: float
) -> tuple[float, float]:
    """The conversion of Canonne, Kamath & Steinke 2020 (proposition 12).

    ε = ε_α + log(1 − 1/α) − log(δα)/(α−1). Where a divergence is so small that the total variation,
    at most √(1 − e^(−ε_α)) (Bretagnolle & Huber 1979), is within δ, ε is 0: the conversion does
    not see this, and says more than 0 of a run in which next to nothing is drawn.

    Returns:
        The least ε over the orders (not below 0) and the order where it is reached.
    """
    alpha = np.asarray(orders)
    epsilons = rdp + np.log1p(-1.0 / alpha) - (np.log(delta) + np.log(alpha)) / (alpha - 1.0)
    return _least(np.where(-np.expm1(-rdp) <= delta**2, 0.0, epsilons), alpha)


def _least(epsilons: NDArray[np.float64], alpha: NDArray[np.float64]) -> tuple[float, float]:
    usable = np.where(np.isfinite(epsilons), epsilons, np.inf)
    best = int(np.argmin(usable))
    return max(0.0, float(usable[best])), float(alpha[best])


def composed_rdp(history: Sequence[Steps], orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Rényi divergence of a whole history, one value an order."""
    total = np.zeros(len(orders))
    for item in history:
        rdp_of = rdp_of_fixed_size_step if item.fixed_size else rdp_of_step
        total = total + item.steps * rdp_of(item.sampling_rate, item.noise_multiplier, orders)
    return total


def _epsilon(
    conversion: Callable[..., tuple[float, float]], history: tuple[Steps, ...], delta: float
) -> Range:
    """ε at the best of the fine orders, and at the best of the whole ones."""
    fine, whole = (
        conversion(composed_rdp(history, orders), orders, delta)[0]
        for orders in (fine_orders(), whole_orders())
    )
    return Range(fine, whole)


_WORDS = "Rényi orders with both conversions"
for _name, _conversion in (("rdp", epsilon_improved), ("rdp-classic", epsilon_classic)):
    register(
        Accountant(name=_name, words=_WORDS, epsilon=partial(_epsilon, _conversion), expected=True)
    )
