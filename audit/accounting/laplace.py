"""Privacy loss of Laplace noise on a sum that is clipped in the ℓ1 norm, composed as in `pld`.

Recorded loops of others may state such noise. One record moves the sum by C at most in the ℓ1 norm,
and every coordinate gets noise of scale b·C. Moving all of C along one coordinate is the worst
case: by group privacy, which is exact for Laplace noise, moves of δ1 and then δ2 along two
coordinates are told apart no better than one of δ1 + δ2 along one (Dong, Roth & Su 2022, §2.4).
So one step's pair is (1−q)·Lap(0, b) + q·Lap(1, b) against Lap(0, b), as in dp-accounting's
`LaplaceDpEvent`; nothing here is shared with that library.

The loss lies between log(1−q+q·e^(−1/b)) and log(1−q+q·e^(1/b)), and each end has mass of its own:
no loss is infinite, and without δ the composition is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.accounting.budget import Budget
from audit.accounting.pld import Composer, Direction, SingleStep, composer, spread
from audit.accounting.registry import Kind, Range, Steps, merge
from audit.errors import UnverifiedError

# Points at which the Rényi divergence is integrated, by which the grid alone is chosen.
_POINTS = 2001


def _cumulative(outputs: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Mass of Lap(0, scale) below each output."""
    tails = 0.5 * np.exp(-np.abs(outputs) / scale)
    return np.where(outputs < 0.0, tails, 1.0 - tails)


def _between(bounds: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Mass of Lap(0, scale) between consecutive increasing bounds, accurate in both tails."""
    low, high = bounds[:-1], bounds[1:]
    mass: NDArray[np.float64] = np.where(
        low > 0.0,
        _cumulative(-low, scale) - _cumulative(-high, scale),
        _cumulative(high, scale) - _cumulative(low, scale),
    )
    return np.maximum(mass, 0.0)


def _range(rate: float, scale: float) -> tuple[float, float]:
    """Least and greatest loss of "remove"."""
    rest = np.log1p(-rate) if rate < 1.0 else -np.inf
    low, high = (float(np.logaddexp(rest, np.log(rate) + side / scale)) for side in (-1.0, 1.0))
    return low, high


def _threshold(losses: NDArray[np.float64], rate: float, scale: float) -> NDArray[np.float64]:
    """Output up to which the loss of "remove" is below each value; it grows with the output."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio = losses + np.log1p(-(1.0 - rate) * np.exp(-losses)) - np.log(rate)
    ratio = np.where(np.isnan(ratio), -np.inf, ratio)
    inside = 0.5 * (np.clip(ratio, -1.0 / scale, 1.0 / scale) * scale + 1.0)
    # All outputs below 0 have the least loss, and all above 1 the greatest.
    return np.where(ratio < -1.0 / scale, -np.inf, np.where(ratio >= 1.0 / scale, np.inf, inside))


class LaplaceComposer(Composer):
    """`Composer` of steps with Laplace noise; a kind's noise multiplier is b."""

    def _range(self, kind: Kind, direction: Direction, _tail: float) -> tuple[float, float]:
        low, high = _range(kind[0], kind[1])
        return (low, high) if direction == "remove" else (-high, -low)

    def _single(self, kind: Kind, direction: Direction, tail: float) -> SingleStep:
        rate, scale, _, _ = kind
        low, high = self._range(kind, direction, tail)
        first, last = int(np.floor(low / self.interval)), int(np.ceil(high / self.interval))
        grid = np.arange(first, last + 1, dtype=np.float64) * self.interval
        if direction == "remove":
            bounds = np.concatenate(([-np.inf], _threshold(grid, rate, scale), [np.inf]))
        else:
            bounds = np.concatenate(([np.inf], _threshold(-grid, rate, scale), [-np.inf]))[::-1]
        without = _between(bounds, scale)
        mixture = (1.0 - rate) * without + rate * _between(bounds - 1.0, scale)
        upper, lower = (
            (mixture, without) if direction == "remove" else (without[::-1], mixture[::-1])
        )
        masses = spread(grid, self.interval, upper, lower)
        # What rounding leaves outside the grid lies at its ends.
        masses[0] += upper[0]
        masses[-1] += upper[-1]
        return SingleStep(first=first, masses=masses, infinite=0.0)

    def _divergence(self, kind: Kind, orders: tuple[float, ...]) -> NDArray[np.float64]:
        rate, scale, _, _ = kind
        outputs = np.linspace(0.0, 1.0, _POINTS)
        rest = np.log1p(-rate) if rate < 1.0 else -np.inf
        losses = np.logaddexp(rest, np.log(rate) + (2.0 * outputs - 1.0) / scale)
        masses = np.exp(-outputs / scale) / (2.0 * scale * (_POINTS - 1))
        masses[0], masses[-1] = 0.5, 0.5 * np.exp(-1.0 / scale)
        alpha = np.asarray(orders, dtype=np.float64)[:, None]
        logs = np.log(masses)
        moments = [
            np.logaddexp.reduce(logs + power * losses, axis=1) for power in (alpha, 1.0 - alpha)
        ]
        found: NDArray[np.float64] = np.maximum(*moments) / (alpha[:, 0] - 1.0)
        return np.maximum(found, 1e-12)


def _at(history: tuple[Steps, ...], delta: float, fineness: int) -> float:
    return composer(history, delta, fineness, LaplaceComposer).distribution().epsilon(delta)


def laplace_budget(history: Sequence[Steps], delta: float) -> Budget:
    """ε(δ) of a composition of steps with Laplace noise, by the leading accountant alone.

    Args:
        history: steps, whose noise multiplier is b over the ℓ1 norm by which a neighbour moves
            the sum.
        delta: δ in (0, 1).

    Raises:
        UnverifiedError: steps draw samples of fixed size, for which there is no accountant.
    """
    events = merge(history)
    if any(item.fixed_size for item in events):
        raise UnverifiedError(
            "no accountant of the auditor covers Laplace noise on batches of fixed size; Poisson "
            "batches, or all records in each step, can be accounted"
        )
    epsilon = _at(events, delta, 0) if events else 0.0
    return Budget({"pld": Range(epsilon, epsilon, partial(_at, events, delta))})


def laplace_curve(
    history: Sequence[Steps], counts: Sequence[Sequence[int]], delta: float
) -> list[float]:
    """ε after each of several stages of one history; as `budget.epsilon_curve`."""
    composed = composer(tuple(history), delta, kind=LaplaceComposer)
    return [composed.distribution(stage).epsilon(delta) for stage in counts]
