"""The privacy loss of one subsampled Gaussian query, put on a grid without understating it.

`pld` composes what this module discretises. Each cell of the grid keeps its mass under both
neighbours (Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022), so the discrete pair dominates
the true one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, ndtr, ndtri

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")
# Chances of a number of drawn records that are given to a larger number.
_THIN = 1e-13
_HALVINGS = 60
# Outputs whose loss is computed at once.
_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class SingleStep:
    """Masses of finite losses (first + index)·interval, and the mass of an infinite loss."""

    first: int
    masses: NDArray[np.float64]
    infinite: float


def _drawn(records: int, sampling_rate: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How many of somebody's records a Poisson sample may hold, and the chance of each number.

    The thin upper tail is given to its largest number, which can only cost more.
    """
    numbers = np.arange(records + 1, dtype=np.float64)
    if sampling_rate >= 1.0:
        return numbers[-1:], np.ones(1)
    if records == 1:
        return numbers, np.array([1.0 - sampling_rate, sampling_rate])
    logs = gammaln(records + 1) - gammaln(numbers + 1) - gammaln(records - numbers + 1)
    logs += numbers * np.log(sampling_rate) + (records - numbers) * np.log1p(-sampling_rate)
    chances = np.exp(logs)
    kept = (chances > _THIN) | (numbers == 0.0) | (numbers == records)
    numbers, chances = numbers[kept], chances[kept]
    chances[-1] = max(0.0, 1.0 - float(chances[:-1].sum()))
    return numbers, chances


def _loss(
    outputs: NDArray[np.float64], sigma: float, drawn: tuple[NDArray[np.float64], ...]
) -> NDArray[np.float64]:
    """Loss of "remove" of somebody with several records: it grows with the output."""
    numbers, chances = drawn
    found = np.empty(len(outputs))
    for start in range(0, len(outputs), _AT_ONCE):
        some = outputs[start : start + _AT_ONCE, None]
        with np.errstate(divide="ignore"):
            terms = np.log(chances) + numbers * (2.0 * some - numbers) / (2.0 * sigma**2)
        found[start : start + _AT_ONCE] = logsumexp(terms, axis=1)
    return found


def _threshold_of_several(
    losses: NDArray[np.float64], sigma: float, drawn: tuple[NDArray[np.float64], ...]
) -> NDArray[np.float64]:
    """Output at which that loss equals each value, by bisection; −∞ below the least loss."""
    numbers, chances = drawn
    least = float(np.log(chances[0])) if numbers[0] == 0.0 else -np.inf
    inside = losses > least
    wanted = losses[inside]
    # The largest number alone makes at least this of the loss, and any number at most that.
    largest = float(numbers[-1])
    low = np.full(len(wanted), -1e4 * sigma)
    with np.errstate(divide="ignore"):
        spare = max(1.0, -float(np.log(chances[-1])) if chances[-1] > 0.0 else 1e4)
    high = sigma**2 * (np.maximum(wanted, 0.0) + spare) / largest + 0.5 * largest + 1e4 * sigma
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        above = _loss(middle, sigma, drawn) >= wanted
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    found = np.full(len(losses), -np.inf)
    found[inside] = high
    return found


def _threshold(
    losses: NDArray[np.float64], sampling_rate: float, sigma: float
) -> NDArray[np.float64]:
    """Output at which the loss of "remove" equals each value; −∞ below the least loss."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # log((e^loss − (1−q))/q), arranged so that large losses do not overflow.
        inner = losses + np.log1p(-(1.0 - sampling_rate) * np.exp(-losses)) - np.log(sampling_rate)
        inner = np.where(np.isnan(inner), -np.inf, inner)
    return sigma**2 * inner + 0.5


def _interval_masses(bounds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard normal mass between consecutive increasing bounds, accurate in both tails."""
    low, high = bounds[:-1], bounds[1:]
    flip = low > 0.0
    mass: NDArray[np.float64] = np.where(flip, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low))
    return np.maximum(mass, 0.0)


def loss_range(
    sampling_rate: float, sigma: float, direction: Direction, tail: float, records: int = 1
) -> tuple[float, float]:
    """Least and greatest loss of a step, save outputs of probability `tail`."""
    reach = -float(ndtri(tail / 2.0))
    lowest, highest = -sigma * reach, sigma * reach + records
    several = _drawn(records, sampling_rate) if records > 1 else None

    def loss(output: float) -> float:
        if several is not None:
            return float(_loss(np.array([output]), sigma, several)[0])
        exponent = (2.0 * output - 1.0) / (2.0 * sigma**2)
        rest = np.log1p(-sampling_rate) if sampling_rate < 1.0 else -np.inf
        return float(np.logaddexp(rest, np.log(sampling_rate) + exponent))

    if direction == "remove":
        return loss(lowest), loss(highest)
    return -loss(highest), -loss(lowest)


def _cells(
    grid: NDArray[np.float64],
    sampling_rate: float,
    sigma: float,
    direction: Direction,
    records: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mass of each cell of growing losses under the output's two laws.

    The first cell lies below the grid and the last one above it.
    """
    drawn = _drawn(records, sampling_rate)

    def threshold(losses: NDArray[np.float64]) -> NDArray[np.float64]:
        if records > 1:
            return _threshold_of_several(losses, sigma, drawn)
        return _threshold(losses, sampling_rate, sigma)

    if direction == "remove":
        bounds = np.concatenate(([-np.inf], threshold(grid), [np.inf]))
    else:
        bounds = np.concatenate(([np.inf], threshold(-grid), [-np.inf]))[::-1]
    without = _interval_masses(bounds / sigma)
    mixture = np.zeros_like(without)
    for number, chance in zip(*drawn, strict=True):
        mixture += chance * _interval_masses((bounds - number) / sigma)
    if direction == "remove":
        return mixture, without
    return without[::-1], mixture[::-1]


def _spread(
    grid: NDArray[np.float64],
    interval: float,
    upper: NDArray[np.float64],
    lower: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Split each cell between its ends so that both its masses are kept: a dominating pair."""
    masses = np.zeros_like(grid)
    inside_upper, inside_lower = upper[1:-1], lower[1:-1]
    scaled_lower = inside_lower * np.exp(np.minimum(grid[:-1], 700.0))
    to_high = (inside_upper - scaled_lower) / -np.expm1(-interval)
    to_high = np.clip(to_high, 0.0, inside_upper)
    masses[1:] += to_high
    masses[:-1] += inside_upper - to_high
    return masses


def single_step(
    sampling_rate: float,
    sigma: float,
    interval: float,
    direction: Direction,
    tail: float,
    fixed_size: bool = False,
    records: int = 1,
) -> SingleStep:
    """Discretise the loss of one step.

    Args:
        sampling_rate: q in (0, 1].
        sigma: noise over how far one neighbour moves the sum, above 0.
        interval: width of a cell in nats.
        direction: which neighbour has the record; no matter for a fixed size.
        tail: probability of the outputs that may be cut off, on either side.
        fixed_size: whether the sample has a fixed size and a record is replaced, rather than
            Poisson with a record added or removed.
        records: how many records of a Poisson sample are added or removed together.

    Returns:
        A pessimistic loss distribution of total mass 1.
    """
    if fixed_size and sampling_rate < 1.0:
        return _fixed_size_step(sampling_rate, sigma, interval, tail)
    low, high = loss_range(sampling_rate, sigma, direction, tail, records)
    first, last = int(np.floor(low / interval)), int(np.ceil(high / interval))
    grid = np.arange(first, last + 1, dtype=np.float64) * interval
    upper, lower = _cells(grid, sampling_rate, sigma, direction, records)
    masses = _spread(grid, interval, upper, lower)
    masses[0] += upper[0]
    return SingleStep(first=first, masses=masses, infinite=float(upper[-1]))


def _fixed_size_step(
    sampling_rate: float, sigma: float, interval: float, tail: float
) -> SingleStep:
    """The pair that dominates a sample of fixed size when one record is replaced.

    Its gains are those of (1-q)Q + qP against Q, its negative losses those of P against
    (1-q)P + qQ, and what is left has no loss at all: the subsampling operator of Dong, Roth & Su
    (2022), whose trade-off curve is straight where neither half is the lesser. The same pair serves
    both directions.
    """
    high = loss_range(sampling_rate, sigma, "remove", tail)[1]
    low = loss_range(sampling_rate, sigma, "add", tail)[0]
    first, last = min(-1, int(np.floor(low / interval))), max(1, int(np.ceil(high / interval)))
    gains = np.arange(last + 1, dtype=np.float64) * interval
    drops = np.arange(first, 1, dtype=np.float64) * interval
    gains_upper, gains_lower = _cells(gains, sampling_rate, sigma, "remove")
    drops_upper, drops_lower = _cells(drops, sampling_rate, sigma, "add")
    masses = np.zeros(last - first + 1)
    masses[-first:] += _spread(gains, interval, gains_upper, gains_lower)
    masses[: 1 - first] += _spread(drops, interval, drops_upper, drops_lower)
    masses[0] += drops_upper[0]
    masses[-first] += (1.0 - sampling_rate) * (1.0 - 2.0 * float(ndtr(-0.5 / sigma)))
    return SingleStep(first=first, masses=masses, infinite=float(gains_upper[-1]))
