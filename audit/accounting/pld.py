"""Privacy loss distributions of subsampled Gaussians, discretised and composed by FFT.

Where it stands: `budget` asks this module for the tight ε of a client's whole history and of
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
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from audit.accounting.loss_grid import DIRECTIONS, Direction, SingleStep, loss_range, single_step
from audit.accounting.losses import Losses, LossPair, log_sum_exp
from audit.accounting.rdp import epsilon_improved, fine_orders, rdp_of_step
from audit.accounting.registry import Accountant, Range, register
from audit.accounting.steps import Kind, Steps

_TAIL_SHARE = 1e-5
_RELATIVE_ERROR = 2e-4
_LARGEST_LENGTH = 1 << 21


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
        fineness: the grid's cells are 4^fineness times as narrow as what decides most claims.
    """

    def __init__(self, history: Sequence[Steps], delta: float, fineness: int = 0) -> None:
        """Choose the grid and transform the single steps."""
        merged: dict[Kind, int] = {}
        for item in history:
            merged[item.kind] = merged.get(item.kind, 0) + item.steps
        self._kinds = tuple(merged)
        self._counts = tuple(merged.values())
        self._delta = delta
        self._total = max(1, sum(self._counts))
        self.interval = self._choose_interval() / 4.0**fineness
        tail = delta * _TAIL_SHARE / self._total
        # Keeps a hostile ledger from asking for more memory than a machine has.
        reach = max(
            high - low
            for rate, sigma, _, records in self._kinds
            for direction in DIRECTIONS
            for low, high in [loss_range(rate, sigma, direction, tail, records)]
        )
        self.interval = max(self.interval, 2.0 * reach / _LARGEST_LENGTH)
        while True:
            self._singles = {
                direction: tuple(
                    single_step(rate, sigma, self.interval, direction, tail, fixed_size, records)
                    for rate, sigma, fixed_size, records in self._kinds
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
        for (rate, sigma, _, records), count in zip(self._kinds, self._counts, strict=True):
            # For fixed sizes too: the Poisson value is close enough to choose a grid by; and of
            # several records, as many as are drawn on average where any is.
            if records > 1:
                one, rate = rate, 1.0 - (1.0 - rate) ** records
                sigma *= rate / (one * records)
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
        self,
        direction: Direction,
        counts: Sequence[int],
        mixture: tuple[Sequence[int], float] | None,
    ) -> _Window:
        charge = self._delta * _TAIL_SHARE
        up = np.zeros(len(self._tilts))
        down = np.zeros(len(self._tilts))
        rounds, participation = mixture or ([1] * len(counts), 1.0)
        rest = np.log1p(-participation) if participation < 1.0 else -np.inf
        for (plus, minus), count, often in zip(
            self._slopes[direction], counts, rounds, strict=True
        ):
            if mixture is not None:
                plus = np.logaddexp(rest, np.log(participation) + count * plus)
                minus = np.logaddexp(rest, np.log(participation) + count * minus)
                count = often
            up, down = up + count * plus, down + count * minus
        high, low = self._bounds(up, charge), -self._bounds(down, charge)
        return _Window(first=low, length=max(high - low + 1, 2), charge=2.0 * charge)

    def _transform(self, single: SingleStep) -> NDArray[np.complex128]:
        circle = np.zeros(self._length)
        positions = (single.first + np.arange(len(single.masses))) % self._length
        np.add.at(circle, positions, single.masses)
        result: NDArray[np.complex128] = rfft(circle)
        return result

    def distribution(
        self,
        counts: Sequence[int] | None = None,
        mixture: tuple[Sequence[int], float] | None = None,
    ) -> LossPair:
        """Compose and return the privacy loss distributions of both directions.

        Args:
            counts: steps of each kind of query, in the order of the history's kinds; None for
                the history itself.
            mixture: (rounds of each kind, participation in (0, 1]): of every kind of query the
                composition is that of a Binomial number of rounds, each of which makes that kind's
                count of steps. Hockey-stick divergences of a mixture are at most the mixture of
                the divergences, and the latter is linear in the distributions, so one product does
                all participation counts exactly.
        """
        numbers = tuple(self._counts if counts is None else counts)
        losses = []
        for direction in DIRECTIONS:
            window = self._window(direction, numbers, mixture)
            product = np.ones(self._length // 2 + 1, dtype=np.complex128)
            log_finite = 0.0
            rounds, participation = mixture or ([1] * len(numbers), 1.0)
            for transform, single, count, often in zip(
                self._transforms[direction],
                self._singles[direction],
                numbers,
                rounds,
                strict=True,
            ):
                factor, finite = transform**count, count * float(np.log1p(-single.infinite))
                if mixture is not None:
                    factor = (1.0 - participation + participation * factor) ** often
                    finite = often * float(np.log1p(participation * np.expm1(finite)))
                product, log_finite = product * factor, log_finite + finite
            circle = np.maximum(irfft(product, self._length), 0.0)
            cells = window.first + np.arange(min(window.length, self._length))
            losses.append(
                Losses(
                    first=window.first,
                    interval=self.interval,
                    masses=circle[cells % self._length],
                    infinite=-float(np.expm1(log_finite)) + window.charge,
                )
            )
        return LossPair(losses[0], losses[1])


@lru_cache(maxsize=32)
def composer(history: tuple[Steps, ...], delta: float, fineness: int = 0) -> Composer:
    """The composer of a history; some are kept."""
    return Composer(history, delta, fineness)


def _at(history: tuple[Steps, ...], delta: float, fineness: int) -> float:
    return composer(history, delta, fineness).distribution().epsilon(delta)


def _epsilon(history: tuple[Steps, ...], delta: float) -> Range:
    epsilon = _at(history, delta, 0)
    return Range(epsilon, epsilon, partial(_at, history, delta))


register(
    Accountant(
        name="pld", words="privacy loss distributions", epsilon=_epsilon, leads=True, expected=True
    )
)
