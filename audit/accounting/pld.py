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
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import gammaln, logsumexp, ndtr, ndtri

from audit.accounting.rdp import epsilon_improved, fine_orders, rdp_of_step
from audit.accounting.registry import (
    Accountant,
    Kind,
    Losses,
    LossPair,
    Range,
    Steps,
    log_sum_exp,
    register,
)
from audit.errors import UnverifiedError

Direction = Literal["remove", "add"]
DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")
# Chances of a number of drawn records that are given to a larger number.
_THIN = 1e-13
# As many as the engine states an ε for.
_MOST_RECORDS = 1000
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

    Raises:
        UnverifiedError: there are more than any claim is stated for.
    """
    if records > _MOST_RECORDS:
        raise UnverifiedError(
            f"what {records:,} records of one person cost is not composed; at most "
            f"{_MOST_RECORDS:,} are"
        )
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


def spread(
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
        direction: which neighbour has the record; ignored for a fixed size.
        tail: probability of the outputs that may be cut off, on either side.
        fixed_size: whether the sample has a fixed size and a record is replaced, rather than
            Poisson with a record added or removed.
        records: how many records of a Poisson sample are added or removed together.

    Returns:
        A pessimistic loss distribution of total mass 1.

    Raises:
        UnverifiedError: several records of one sample of fixed size, of which no bound is known.
    """
    if fixed_size and sampling_rate < 1.0:
        if records > 1:
            raise UnverifiedError(
                "no accountant covers several records of one person in batches of fixed size"
            )
        return _fixed_size_step(sampling_rate, sigma, interval, tail)
    low, high = loss_range(sampling_rate, sigma, direction, tail, records)
    first, last = int(np.floor(low / interval)), int(np.ceil(high / interval))
    grid = np.arange(first, last + 1, dtype=np.float64) * interval
    upper, lower = _cells(grid, sampling_rate, sigma, direction, records)
    masses = spread(grid, interval, upper, lower)
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
    masses[-first:] += spread(gains, interval, gains_upper, gains_lower)
    masses[: 1 - first] += spread(drops, interval, drops_upper, drops_lower)
    masses[0] += drops_upper[0]
    masses[-first] += (1.0 - sampling_rate) * (1.0 - 2.0 * float(ndtr(-0.5 / sigma)))
    return SingleStep(first=first, masses=masses, infinite=float(gains_upper[-1]))


_TAIL_SHARE = 1e-5
_RELATIVE_ERROR = 2e-4
_LARGEST_LENGTH = 1 << 21
# Each kind of query takes hundredths of a second, and up to 32 bytes for each cell of the grid.
# A ledger may name very many, none of which costs its author anything.
_MOST_KINDS, _MOST_CELLS = 4096, 1 << 26
_MOST_KEPT = 32


@dataclass(frozen=True)
class _Window:
    first: int
    length: int
    charge: float


# Rounds of each kind of query, and the chance with which each of them happens.
Mixture = tuple[Sequence[int], Sequence[float]]


class Composer:
    """Composes the privacy loss of some steps, any number of times, on one grid.

    The single steps' transforms are computed once and shared by every step count and every
    mixture, which is what makes a whole run's history cheap.

    Args:
        history: the queries of the LARGEST composition that will be asked for; the grid is chosen
            for it and is then at least as accurate for every smaller one.
        delta: the δ in (0, 1) at which ε will be read; tails are cut relative to it.
        fineness: the grid's cells are 4^fineness times as narrow as what decides most claims.

    Raises:
        UnverifiedError: there are more kinds of queries than can be composed in some minutes, or
            too many for their steps.
    """

    def __init__(self, history: Sequence[Steps], delta: float, fineness: int = 0) -> None:
        """Choose the grid and transform the single steps."""
        merged: dict[Kind, int] = {}
        for item in history:
            merged[item.kind] = merged.get(item.kind, 0) + item.steps
        if len(merged) > _MOST_KINDS:
            raise UnverifiedError(
                f"the charges are of more than {_MOST_KINDS:,} kinds of noise and sampling rate, "
                "which the auditor does not compose"
            )
        self._kinds = tuple(merged)
        largest = min(_LARGEST_LENGTH, _MOST_CELLS // max(1, len(merged)))
        self._counts = tuple(merged.values())
        self._delta = delta
        self._total = max(1, sum(self._counts))
        widest = 2.0 * self._choose_interval()
        self.interval = widest / 2.0 / 4.0**fineness
        tail = delta * _TAIL_SHARE / self._total
        # Keeps a hostile ledger from asking for more memory than a machine has.
        reach = max(
            high - low
            for kind in self._kinds
            for direction in DIRECTIONS
            for low, high in [self._range(kind, direction, tail)]
        )
        self.interval = max(self.interval, 2.0 * reach / largest)
        if fineness >= 0 and largest < _LARGEST_LENGTH and self.interval > widest:
            raise self._too_many()
        while True:
            self._singles = {
                direction: tuple(self._single(kind, direction, tail) for kind in self._kinds)
                for direction in DIRECTIONS
            }
            self._slopes = {d: self._log_moments(d) for d in DIRECTIONS}
            length = max(self._needed(direction) for direction in DIRECTIONS)
            if length <= largest:
                break
            if fineness > 0:
                # Exactly the coarser grid, so that nobody takes a value for settled that only
                # cannot become finer.
                vars(self).update(vars(Composer(history, delta, fineness - 1)))
                return
            if largest < _LARGEST_LENGTH and self.interval * length / largest > widest:
                raise self._too_many()
            # Only for absurdly large budgets: a coarser grid stays pessimistic.
            self.interval *= 1.5 * length / largest
        self._length = int(next_fast_len(length, real=True))
        self._transforms = {
            direction: tuple(self._transform(single) for single in self._singles[direction])
            for direction in DIRECTIONS
        }

    def _too_many(self) -> UnverifiedError:
        return UnverifiedError(
            f"the charges are of {len(self._kinds):,} kinds of noise and sampling rate, too many "
            f"to compose {self._total:,} steps finely enough"
        )

    @property
    def cells(self) -> int:
        """How many cells it holds for all kinds of queries, in each direction."""
        return self._length * len(self._kinds)

    def _range(self, kind: Kind, direction: Direction, tail: float) -> tuple[float, float]:
        rate, sigma, _, records = kind
        return loss_range(rate, sigma, direction, tail, records)

    def _single(self, kind: Kind, direction: Direction, tail: float) -> SingleStep:
        rate, sigma, fixed_size, records = kind
        return single_step(rate, sigma, self.interval, direction, tail, fixed_size, records)

    def _divergence(self, kind: Kind, orders: tuple[float, ...]) -> NDArray[np.float64]:
        """Rényi divergence of one step, as far as choosing a grid needs it."""
        rate, sigma, _, records = kind
        # For fixed sizes too: the Poisson value is close enough to choose a grid by; and of
        # several records, as many as are drawn on average where any is.
        if records > 1:
            one, rate = rate, 1.0 - (1.0 - rate) ** records
            sigma *= rate / (one * records)
        return rdp_of_step(rate, sigma, orders)

    def _choose_interval(self) -> float:
        orders = fine_orders()
        rdp = np.zeros(len(orders))
        for kind, count in zip(self._kinds, self._counts, strict=True):
            rdp = rdp + count * self._divergence(kind, orders)
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
        mixture: Mixture | None,
    ) -> _Window:
        charge = self._delta * _TAIL_SHARE
        up = np.zeros(len(self._tilts))
        down = np.zeros(len(self._tilts))
        rounds, shares = mixture or ([1] * len(counts), [1.0] * len(counts))
        for (plus, minus), count, often, participation in zip(
            self._slopes[direction], counts, rounds, shares, strict=True
        ):
            if mixture is not None:
                rest = np.log1p(-participation) if participation < 1.0 else -np.inf
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
        mixture: Mixture | None = None,
    ) -> LossPair:
        """Compose and return the privacy loss distributions of both directions.

        Args:
            counts: steps of each kind of query, in the order of the history's kinds; None for
                the history itself.
            mixture: (rounds of each kind, its participation in (0, 1]): of every kind of query the
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
            rounds, shares = mixture or ([1] * len(numbers), [1.0] * len(numbers))
            for transform, single, count, often, participation in zip(
                self._transforms[direction],
                self._singles[direction],
                numbers,
                rounds,
                shares,
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


_kept: dict[tuple[type[Composer], tuple[Steps, ...], float, int], Composer] = {}


def composer(
    history: tuple[Steps, ...], delta: float, fineness: int = 0, kind: type[Composer] = Composer
) -> Composer:
    """The composer of a history; the last ones are kept, as long as they are small."""
    key = kind, history, delta, fineness
    found = _kept.pop(key, None) or kind(history, delta, fineness)
    _kept[key] = found
    while len(_kept) > 1 and (
        len(_kept) > _MOST_KEPT or sum(one.cells for one in _kept.values()) > _MOST_CELLS
    ):
        del _kept[next(iter(_kept))]
    return found


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
