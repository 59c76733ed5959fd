"""Privacy loss distributions of the subsampled Gaussian, discretised and composed by FFT.

Where it stands: `accounting` asks this module for the tight ε of a client's whole history and of
the third party's mixture. It is written for the audit and shares nothing with the engine's
accountant. Every approximation errs on the side of a larger ε:

* one step's losses are moved to a grid so that each cell keeps its mass under both neighbours
  (the discretisation of Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022), which dominates the
  true pair; its effect on ε is at most steps · order · interval² / 8;
* losses below the grid move up to its first point, losses above it count as infinite;
* what may lie outside the window of the composition is bounded by Chernoff and charged to δ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr, ndtri

from audit.rdp import epsilon_improved, fine_orders, log_sum_exp, rdp_of_step

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")

_TAIL_SHARE = 1e-5
_RELATIVE_ERROR = 2e-4
_LARGEST_LENGTH = 1 << 21


@dataclass(frozen=True)
class Steps:
    """A number of identical queries: Poisson rate in (0, 1], noise multiplier, how often."""

    sampling_rate: float
    noise_multiplier: float
    steps: int


@dataclass(frozen=True)
class _SingleStep:
    first: int
    masses: NDArray[np.float64]
    infinite: float


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


def _single_step(
    sampling_rate: float, sigma: float, interval: float, direction: Direction, tail: float
) -> _SingleStep:
    reach = -float(ndtri(tail / 2.0))
    lowest, highest = -sigma * reach, sigma * reach + 1.0

    def loss(output: float) -> float:
        exponent = (2.0 * output - 1.0) / (2.0 * sigma**2)
        rest = np.log1p(-sampling_rate) if sampling_rate < 1.0 else -np.inf
        return float(np.logaddexp(rest, np.log(sampling_rate) + exponent))

    ends = sorted(sign * loss(x) for x in (lowest, highest) for sign in _sign(direction))
    first, last = int(np.floor(ends[0] / interval)), int(np.ceil(ends[-1] / interval))
    grid = np.arange(first, last + 1, dtype=np.float64) * interval
    # Mass of each cell under the output's two laws; cells are ordered by growing loss.
    if direction == "remove":
        outputs = _threshold(grid, sampling_rate, sigma)
        bounds = np.concatenate(([-np.inf], outputs, [np.inf]))
    else:
        outputs = _threshold(-grid, sampling_rate, sigma)
        bounds = np.concatenate(([np.inf], outputs, [-np.inf]))[::-1]
    without = _interval_masses(bounds / sigma)
    shifted = _interval_masses((bounds - 1.0) / sigma)
    mixture = (1.0 - sampling_rate) * without + sampling_rate * shifted
    if direction == "remove":
        upper, lower = mixture, without
    else:
        upper, lower = without[::-1], mixture[::-1]
    masses = np.zeros_like(grid)
    inside_upper, inside_lower = upper[1:-1], lower[1:-1]
    # Split each cell between its ends so that both its masses are kept: a dominating pair.
    scaled_lower = inside_lower * np.exp(np.minimum(grid[:-1], 700.0))
    to_high = (inside_upper - scaled_lower) / -np.expm1(-interval)
    to_high = np.clip(to_high, 0.0, inside_upper)
    masses[1:] += to_high
    masses[:-1] += inside_upper - to_high
    masses[0] += upper[0]
    return _SingleStep(first=first, masses=masses, infinite=float(upper[-1]))


def _sign(direction: Direction) -> tuple[float]:
    return (1.0,) if direction == "remove" else (-1.0,)


@dataclass(frozen=True)
class _Window:
    first: int
    length: int
    charge: float


class Composer:
    """Composes the privacy loss of some steps, any number of times, on one grid.

    The single steps' transforms are computed once and shared by every step count and every
    mixture, which is what makes a whole run's history cheap.

    Args:
        history: the queries of the LARGEST composition that will be asked for; the grid is chosen
            for it and is then at least as accurate for every smaller one.
        delta: the δ in (0, 1) at which ε will be read; tails are cut relative to it.
    """

    def __init__(self, history: Sequence[Steps], delta: float) -> None:
        """Choose the grid and transform the single steps."""
        merged: dict[tuple[float, float], int] = {}
        for item in history:
            key = (item.sampling_rate, item.noise_multiplier)
            merged[key] = merged.get(key, 0) + item.steps
        self._kinds = tuple(merged)
        self._counts = tuple(merged.values())
        self._delta = delta
        self._total = max(1, sum(self._counts))
        self.interval = self._choose_interval()
        tail = delta * _TAIL_SHARE / self._total
        while True:
            self._singles = {
                direction: tuple(
                    _single_step(rate, sigma, self.interval, direction, tail)
                    for rate, sigma in self._kinds
                )
                for direction in DIRECTIONS
            }
            self._slopes = {d: self._log_moments(d) for d in DIRECTIONS}
            length = max(self._needed(direction) for direction in DIRECTIONS)
            if length <= _LARGEST_LENGTH:
                break
            # Only for absurdly large budgets: a coarser grid stays pessimistic.
            self.interval *= 1.5 * length / _LARGEST_LENGTH
        self._length = int(next_fast_len(length, real=True))
        self._transforms = {
            direction: tuple(self._transform(single) for single in self._singles[direction])
            for direction in DIRECTIONS
        }

    def _choose_interval(self) -> float:
        orders = fine_orders()
        rdp = np.zeros(len(orders))
        for (rate, sigma), count in zip(self._kinds, self._counts, strict=True):
            rdp = rdp + count * rdp_of_step(rate, sigma, orders)
        epsilon, order = epsilon_improved(rdp, orders, self._delta)
        epsilon = max(epsilon, 1e-2)
        bound = np.sqrt(8.0 * _RELATIVE_ERROR * epsilon / (self._total * order))
        return float(min(bound, epsilon / 100.0))

    @property
    def _tilts(self) -> NDArray[np.float64]:
        return np.geomspace(1e-3, 3e3, 80)

    def _log_moments(
        self, direction: Direction
    ) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]:
        """For every kind: log moments of the finite losses at positive and negative tilts."""
        found = []
        for single in self._singles[direction]:
            losses = (single.first + np.arange(len(single.masses))) * self.interval
            kept = single.masses > 0.0
            losses, logs = losses[kept], np.log(single.masses[kept])
            up = np.array([log_sum_exp(logs + tilt * losses) for tilt in self._tilts])
            down = np.array([log_sum_exp(logs - tilt * losses) for tilt in self._tilts])
            found.append((up, down))
        return tuple(found)

    def _bounds(self, moments: NDArray[np.float64], charge: float) -> int:
        """Chernoff: cells beyond which at most `charge` of mass lies."""
        return int(np.ceil(np.min((moments - np.log(charge)) / self._tilts) / self.interval)) + 1

    def _needed(self, direction: Direction) -> int:
        window = self._window(direction, self._counts, None)
        single = max(len(single.masses) for single in self._singles[direction])
        return max(window.length, single) + 2

    def _window(
        self, direction: Direction, counts: Sequence[int], mixture: tuple[int, float] | None
    ) -> _Window:
        charge = self._delta * _TAIL_SHARE
        up = np.zeros(len(self._tilts))
        down = np.zeros(len(self._tilts))
        for (plus, minus), count in zip(self._slopes[direction], counts, strict=True):
            up, down = up + count * plus, down + count * minus
        if mixture is not None:
            rounds, participation = mixture
            rest = np.log1p(-participation) if participation < 1.0 else -np.inf
            up = rounds * np.logaddexp(rest, np.log(participation) + up)
            down = rounds * np.logaddexp(rest, np.log(participation) + down)
        high, low = self._bounds(up, charge), -self._bounds(down, charge)
        return _Window(first=low, length=max(high - low + 1, 2), charge=2.0 * charge)

    def _transform(self, single: _SingleStep) -> NDArray[np.complex128]:
        circle = np.zeros(self._length)
        positions = (single.first + np.arange(len(single.masses))) % self._length
        np.add.at(circle, positions, single.masses)
        result: NDArray[np.complex128] = rfft(circle)
        return result

    def distribution(
        self, counts: Sequence[int] | None = None, mixture: tuple[int, float] | None = None
    ) -> LossPair:
        """Compose and return the privacy loss distributions of both directions.

        Args:
            counts: steps of each kind of query, in the order of the history's kinds; None for
                the history itself.
            mixture: (rounds, participation in (0, 1]): the composition is that of a Binomial
                number of rounds, each of which makes `counts` steps. Hockey-stick divergences of
                a mixture are at most the mixture of the divergences, and the latter is linear in
                the distributions, so one product does all participation counts exactly.
        """
        numbers = tuple(self._counts if counts is None else counts)
        losses = []
        for direction in DIRECTIONS:
            window = self._window(direction, numbers, mixture)
            product = np.ones(self._length // 2 + 1, dtype=np.complex128)
            log_finite = 0.0
            for transform, single, count in zip(
                self._transforms[direction], self._singles[direction], numbers, strict=True
            ):
                product = product * transform**count
                log_finite += count * float(np.log1p(-single.infinite))
            if mixture is not None:
                rounds, participation = mixture
                product = (1.0 - participation + participation * product) ** rounds
                log_finite = rounds * float(np.log1p(participation * np.expm1(log_finite)))
            circle = np.maximum(irfft(product, self._length), 0.0)
            cells = window.first + np.arange(min(window.length, self._length))
            losses.append(
                _Losses(
                    first=window.first,
                    interval=self.interval,
                    masses=circle[cells % self._length],
                    infinite=-float(np.expm1(log_finite)) + window.charge,
                )
            )
        return LossPair(losses[0], losses[1])


@dataclass(frozen=True)
class _Losses:
    first: int
    interval: float
    masses: NDArray[np.float64]
    infinite: float

    def delta(self, epsilon: float) -> float:
        start = max(0, int(np.floor(epsilon / self.interval)) + 1 - self.first)
        masses = self.masses[start:]
        losses = (self.first + start + np.arange(len(masses))) * self.interval
        gain = -np.expm1(epsilon - losses)
        return min(1.0, self.infinite + float(np.dot(masses, np.maximum(gain, 0.0))))

    def epsilon(self, delta: float) -> float:
        if self.infinite >= delta:
            return float("inf")
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0, max(1, self.first + len(self.masses))
        while high - low > 1:
            middle = (low + high) // 2
            if self.delta(middle * self.interval) <= delta:
                high = middle
            else:
                low = middle
        # Between two grid points δ is linear in e^ε, so the crossing is exact.
        start = max(0, high - self.first)
        masses = self.masses[start:]
        offsets = np.arange(len(masses)) * self.interval
        mass = float(masses.sum()) - (delta - self.infinite)
        weight = float(np.dot(masses, np.exp(-offsets)))
        top = high * self.interval
        if mass <= 0.0 or weight <= 0.0:
            return top
        return float(np.clip(top + np.log(mass / weight), low * self.interval, top))


@dataclass(frozen=True)
class LossPair:
    """Composed privacy losses for removing and for adding one record."""

    remove: _Losses
    add: _Losses

    def epsilon(self, delta: float) -> float:
        """Least ε (≥ 0, possibly infinite) with δ(ε) ≤ delta in both directions."""
        return max(self.remove.epsilon(delta), self.add.epsilon(delta))

    def delta(self, epsilon: float) -> float:
        """Greatest δ(ε) of the two directions, for ε ≥ 0."""
        return max(self.remove.delta(epsilon), self.add.delta(epsilon))
