"""Privacy losses on a grid, composed at a cost that hardly grows with the number of compositions.

`pld` chooses the grid and asks for single steps; here they are composed. A loss distribution is
squared again and again, and after every second squaring its grid is made twice as coarse: the
spread of n summed losses grows like √n, so the number of cells stays about the same while n grows.
dp-accounting composes by one power of a Fourier transform, whose length grows with the number of
compositions.

Whatever is approximated makes the loss larger, never smaller:

* a coarser grid divides each mass between its two neighbours so that both distributions of the pair
  keep their mass, which dominates the finer pair (Doroshenko et al. 2022, "connect the dots");
* losses above the window of a composition count as infinite, losses below it as the window's least.
  How far the window must reach follows from Chernoff bounds on the moments of the single step,
  which are carried along with the masses, so that no rounding error of a transform enters them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

__all__ = ["TILTS", "LossPair", "Losses", "coarsenings_of", "on_grid"]

# Where moments E[exp(t·loss)] are bounded, on either side of 0: windows of 10^-7 to 10^7 nats.
TILTS: NDArray[np.float64] = 2.0 ** np.arange(-24.0, 25.0)
TILTS.setflags(write=False)
# Numbers that are worked on at once where moments are taken.
_AT_ONCE = 1 << 15


@dataclass(frozen=True, eq=False)
class Losses:
    """The distribution of a privacy loss, for one of the two neighbours.

    Attributes:
        interval: Width h of the grid, above 0.
        first: The least loss over h, an integer.
        masses: Probabilities of the losses (first + index)·h, float64 [n].
        infinite: Probability that the loss is infinite.
        rising: Upper bounds on log E[exp(t·loss)] of finite losses, at each tilt t > 0.
        falling: The same at each -t.
    """

    interval: float
    first: int
    masses: NDArray[np.float64]
    infinite: float
    rising: NDArray[np.float64]
    falling: NDArray[np.float64]

    def composed_with(self, other: Losses, tail: float) -> Losses:
        """The sum of two independent losses on one grid.

        Args:
            other: The other loss.
            tail: Probability that may be moved out of the window on either side, upwards.
        """
        rising, falling = self.rising + other.rising, self.falling + other.falling
        first = self.first + other.first
        masses = _convolved(self.masses, other.masses)
        highest = _reach(rising, tail, self.interval) - first
        lowest = -_reach(falling, tail, self.interval) - first
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        if highest < len(masses) - 1:
            masses = masses[: max(1, highest + 1)]
            infinite += tail
        if lowest > 0:
            lowest = min(lowest, len(masses) - 1)
            below = float(masses[:lowest].sum())
            masses = masses[lowest:].copy()
            masses[0] += below
            first += lowest
        return Losses(self.interval, first, masses, min(1.0, infinite), rising, falling)

    def repeated(self, times: int, coarsenings: int, tail: float) -> Losses:
        """The sum of `times` such losses, on a grid 2^coarsenings times as coarse.

        Args:
            times: How many, at least 1.
            coarsenings: How often the grid doubles, spread over the squarings where they last.
            tail: Probability that may be moved out of the windows in all, upwards.
        """
        total: Losses | None = None
        left = times
        # As for the largest number of as many bits, so that its powers are those of all of them.
        share = tail / (2 * times.bit_length() * 2.0 ** times.bit_length())
        for place, power in enumerate(_powers(self, times.bit_length(), coarsenings, share)):
            while total is not None and total.interval < power.interval:
                total = total.coarser()
            if left & 1:
                total = power if total is None else total.composed_with(power, 2.0**place * share)
            left >>= 1
        assert total is not None
        coarsest = self.interval * 2.0**coarsenings
        while total.interval < coarsest:
            total = total.coarser()
        return total

    def coarser(self) -> Losses:
        """The same losses on every second point of the grid, dominating these."""
        masses, first = self.masses, self.first
        if first % 2:
            masses, first = np.concatenate(([0.0], masses)), first - 1
        if len(masses) % 2 == 0:
            masses = np.append(masses, 0.0)
        between = masses[1::2]
        # e^h parts of an odd point's mass go up for one that goes down: both laws keep their mass.
        up = between / (1.0 + math.exp(-min(self.interval, 700.0)))
        kept = masses[::2].copy()
        kept[1:] += up
        kept[:-1] += between - up
        return Losses(
            2.0 * self.interval,
            first // 2,
            kept,
            self.infinite,
            self.rising + _widening(TILTS, self.interval),
            self.falling + _widening(-TILTS, self.interval),
        )

    def happening(self, probability: float) -> Losses:
        """The loss of what happens with a probability, and otherwise loses nothing."""
        below, above = max(0, self.first), max(0, -(self.first + len(self.masses) - 1))
        masses = np.pad(probability * self.masses, (below, above))
        first = self.first - below
        masses[-first] += 1.0 - probability
        rest = math.log1p(-probability) if probability < 1.0 else -math.inf
        return replace(
            self,
            first=first,
            masses=masses,
            infinite=probability * self.infinite,
            rising=np.logaddexp(rest, math.log(probability) + self.rising),
            falling=np.logaddexp(rest, math.log(probability) + self.falling),
        )

    def delta(self, epsilon: float) -> float:
        """δ(ε) = E[(1 - e^(ε - loss))+], in [0, 1]."""
        start = max(0, math.floor(epsilon / self.interval) + 1 - self.first)
        masses = self.masses[start:]
        losses = (self.first + start + np.arange(len(masses))) * self.interval
        gain = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)
        return min(1.0, self.infinite + float(np.dot(masses, gain)))

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0 with δ(ε) ≤ delta; infinite where there is none."""
        if self.infinite > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0, max(1, self.first + len(self.masses))
        while high - low > 1:
            middle = (low + high) // 2
            if self.delta(middle * self.interval) <= delta:
                high = middle
            else:
                low = middle
        # Between two points of the grid δ is linear in e^ε: δ = infinite + m - e^(ε - top)·w.
        top, start = high * self.interval, max(0, high - self.first)
        masses = self.masses[start:]
        mass = self.infinite + float(masses.sum()) - delta
        weight = float(np.dot(masses, np.exp(-self.interval * np.arange(len(masses)))))
        if mass <= 0.0 or weight <= 0.0:
            return top
        return min(top, max(low * self.interval, top + math.log(mass / weight)))


@dataclass(frozen=True, eq=False)
class LossPair:
    """The losses of one mechanism for both neighbours.

    Attributes:
        remove: Where the first of two neighbours has one record more.
        add: Where the second has; the same object for a symmetric mechanism.
    """

    remove: Losses
    add: Losses

    def composed_with(self, other: LossPair, tail: float) -> LossPair:
        """As for `Losses`."""
        add = None
        if self.add is not self.remove or other.add is not other.remove:
            add = self.add.composed_with(other.add, tail)
        remove = self.remove.composed_with(other.remove, tail)
        return LossPair(remove, remove if add is None else add)

    def repeated(self, times: int, coarsenings: int, tail: float) -> LossPair:
        """As for `Losses`."""
        return self._both(lambda losses: losses.repeated(times, coarsenings, tail))

    def happening(self, probability: float) -> LossPair:
        """As for `Losses`."""
        return self._both(lambda losses: losses.happening(probability))

    def delta(self, epsilon: float) -> float:
        """The larger δ(ε)."""
        return max(self.remove.delta(epsilon), self.add.delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The larger ε for a δ."""
        return max(self.remove.epsilon(delta), self.add.epsilon(delta))

    def _both(self, change: Callable[[Losses], Losses]) -> LossPair:
        remove = change(self.remove)
        return LossPair(remove, remove if self.add is self.remove else change(self.add))


def on_grid(
    interval: float,
    first: int,
    masses: NDArray[np.float64],
    infinite: float,
    coarser: Losses | None = None,
) -> Losses:
    """Losses of given masses, with bounds on their moments.

    Args:
        interval: Width h of the grid, above 0; a power of two where grids are to be compared.
        first: The least loss over h.
        masses: Probabilities of the losses (first + index)·h, float64 [n].
        infinite: Probability of an infinite loss.
        coarser: The same losses on a coarser grid, if they are known. E[exp(t·loss)] only grows
            with the width of the grid where t > 0 or t ≤ -1, so those moments bound these, and are
            not computed over many more cells.
    """
    positive = np.flatnonzero(masses > 0.0)
    losses = np.asarray((first + positive) * interval, np.float64)
    logs = np.log(masses[positive])
    if coarser is None:
        rising, falling = (_log_moments(logs, tilts, losses) for tilts in (TILTS, -TILTS))
        return Losses(interval, first, masses, infinite, rising, falling)
    between = _log_moments(logs, -TILTS[TILTS < 1.0], losses)
    falling = np.concatenate((between, coarser.falling[TILTS >= 1.0]))
    return Losses(interval, first, masses, infinite, coarser.rising, falling)


@lru_cache(maxsize=4)
def _powers(losses: Losses, bits: int, coarsenings: int, share: float) -> tuple[Losses, ...]:
    """The sums of 1, 2, 4, … 2^(bits-1) losses; after every second squaring the grid doubles.

    A run asks for its ε after each round, which is one of many numbers of as many bits.
    """
    powers = [losses]
    for squaring in range(1, bits):
        power = powers[-1].composed_with(powers[-1], 2.0**squaring * share)
        if squaring % 2 == 0 and coarsenings:
            power, coarsenings = power.coarser(), coarsenings - 1
        powers.append(power)
    return tuple(powers)


def coarsenings_of(times: int) -> int:
    """How often the grid doubles over so many compositions: once for every factor of four."""
    return (times.bit_length() - 1) // 2


def _log_moments(
    logs: NDArray[np.float64], tilts: NDArray[np.float64], losses: NDArray[np.float64]
) -> NDArray[np.float64]:
    found = np.empty(len(tilts))
    # As many tilts at once as stay in a core's cache.
    many = max(1, _AT_ONCE // len(losses))
    for start in range(0, len(tilts), many):
        exponents = logs + tilts[start : start + many, np.newaxis] * losses
        largest = exponents.max(axis=1)
        exponents -= largest[:, np.newaxis]
        totals = np.exp(exponents, out=exponents).sum(axis=1)
        found[start : start + many] = largest + [math.log(total) for total in totals.tolist()]
    return found


def _convolved(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """The masses of a sum; a transform's rounding errors below 0 are left out, which adds mass."""
    count = len(one) + len(other) - 1
    length = next_fast_len(count, real=True)
    transform = rfft(one, length)
    factor = transform if other is one else rfft(other, length)
    masses: NDArray[np.float64] = np.maximum(irfft(transform * factor, length)[:count], 0.0)
    return masses


def _reach(moments: NDArray[np.float64], tail: float, interval: float) -> int:
    """Cells beyond which at most `tail` of the mass lies (Chernoff)."""
    return math.ceil(float(np.min((moments - math.log(tail)) / TILTS)) / interval)


def _widening(tilts: NDArray[np.float64], interval: float) -> NDArray[np.float64]:
    """Most that a coarser grid adds to log E[exp(t·loss)], of points that are moved by h."""
    moved: NDArray[np.float64] = np.logaddexp(
        tilts * interval - math.log1p(math.exp(-min(interval, 700.0))),
        -tilts * interval - np.logaddexp(0.0, interval),
    )
    return np.maximum(moved, 0.0)
