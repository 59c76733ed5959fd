"""Privacy loss distributions: the tight accountant, which carries every claim.

Each step's loss is put on a grid so that it is never understated (`step_losses`) and composed
by repeated squaring (`losses`; Koskela et al. 2020, Doroshenko et al. 2022), for the
directions add and remove. A run of 10^6 rounds of 10^5 steps costs little more than one of a
hundred.

The public functions ask for ε, δ or the whole profile of a composition, or of rounds that each
happen with a probability. All go through `_composed`: like steps are told from unlike ones
(`_Steps`), a grid is chosen that suits ε, δ and the time that it takes (`_interval`), and steps,
rounds and kinds of rounds are added up on it. Whatever is approximated makes ε larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.accounting.losses import TILTS, LossPair, coarsenings_of
from dpfedadamw.accounting.registry import ACCOUNTANTS, Accountant, Leading
from dpfedadamw.accounting.step_losses import fixed_size_losses, poisson_losses, poisson_range
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.composition import (
    SAMPLINGS,
    SMALLEST_DELTA,
    Composition,
    Compositions,
    check_delta,
    merge,
)

__all__ = ["delta_pld", "epsilon_pld", "mixture_epsilon_pld", "privacy_profile"]

# What discretisation may add to ε, as a share of it, where the grids can be as fine as that asks;
# up to five times as much where many kinds of steps are added up.
_RELATIVE_ERROR = 2e-4
# Most cells of one step's losses, and of all steps' together.
_CELLS_OF_A_STEP = 2.0**18
_CELLS = 2.0**20
# Below this width the rounding errors of a cell's two masses would show.
_SMALLEST_INTERVAL = 1e-9
# Mass that windows may move to an infinite loss, in all: negligible compared with the smallest δ.
_TAIL = SMALLEST_DELTA * 1e-4


def epsilon_pld(composition: Compositions, delta: float) -> float:
    """Return the smallest ε for a δ, by privacy loss distributions (tight and pessimistic).

    The discretisation adapts to the composition so that it adds about 10^-4 of ε, always upwards;
    more only where one step's losses are spread over many times what all steps add up to.

    Args:
        composition: one composition, or several on the same records after one another.
        delta: δ in [1e-10, 1).

    Returns:
        ε ≥ 0, infinite if no finite ε holds.

    Raises:
        PrivacyError: if δ is out of range.
    """
    check_delta(delta)
    return _epsilon_pld(merge(composition), delta)


def delta_pld(composition: Compositions, epsilon: float) -> float:
    """Return the smallest δ for an ε ≥ 0, by privacy loss distributions.

    Raises:
        PrivacyError: if ε is negative.
    """
    if not epsilon >= 0:
        raise PrivacyError(f"epsilon must be at least 0, not {epsilon}")
    return _composed(_once(merge(composition)), 1.0, 1e-5).delta(float(epsilon))


def privacy_profile(composition: Compositions, points: int = 40) -> list[tuple[float, float]]:
    """Return δ(ε) at equally spaced ε, from ε = 0 to where δ is about 10^-10.

    Args:
        composition: one composition, or several on the same records after one another.
        points: how many, at least 2.
    """
    distribution = _composed(_once(merge(composition)), 1.0, 1e-5)
    last = distribution.epsilon(SMALLEST_DELTA)
    if not math.isfinite(last):
        raise PrivacyError("the composition has no finite epsilon and so no profile")
    grid = np.linspace(0.0, max(last, 1e-3), points)
    return [(float(epsilon), distribution.delta(float(epsilon))) for epsilon in grid]


def mixture_epsilon_pld(
    kinds: Sequence[tuple[Composition, int]],
    participation: float,
    delta: float,
    always: Sequence[Composition] = (),
) -> float:
    """Return the ε with E[δ(ε)] ≤ δ over rounds that each happen with a probability.

    The hockey-stick divergence is jointly convex, so this bounds a run whose pattern of
    participation is hidden and independent of the data. It needs no sum over patterns: for T like
    rounds the binomial mixture of n-fold compositions is the T-fold composition of one round that
    happens with probability `participation`, and otherwise reveals nothing; unlike rounds are
    composed after one another.

    Args:
        kinds: what one participation costs, and in how many rounds it costs that.
        participation: l in (0, 1].
        delta: δ in [1e-10, 1).
        always: what happens once outside the rounds, for any participants in the rounds.

    Raises:
        PrivacyError: if an argument is out of range.
    """
    check_delta(delta)
    if not 0 < participation <= 1:
        raise PrivacyError(f"a participation probability must be in (0, 1], not {participation}")
    whole = merge([replace(part, steps=part.steps * rounds) for part, rounds in kinds])
    whole = merge((*whole, *always))
    if participation == 1.0:
        return epsilon_pld(whole, delta)
    return _composed(tuple(kinds), participation, delta, tuple(always)).epsilon(delta)


# What a round costs, and how many such rounds there are.
_Kinds = tuple[tuple[Composition, int], ...]


@lru_cache(maxsize=1024)
def _epsilon_pld(parts: tuple[Composition, ...], delta: float) -> float:
    return _composed(_once(parts), 1.0, delta).epsilon(delta)


def _once(parts: tuple[Composition, ...]) -> _Kinds:
    """Compositions that are known to happen, each as one round."""
    return tuple((part, 1) for part in parts)


def _composed(
    kinds: _Kinds, participation: float, delta: float, always: tuple[Composition, ...] = ()
) -> LossPair:
    """The losses of rounds that each happen with a probability, on a grid that suits a δ."""
    parts = [_steps_of(part, rounds) for part, rounds in kinds]
    if participation == 1.0:
        parts = _one_gaussian(parts)
    parts += [replace(_steps_of(part, 1), certain=True) for part in always]
    interval = _interval(parts, participation, delta)
    tail = _TAIL / (4.0 * len(parts))
    composed = []
    for part in parts:
        # A step's grid is finer; it doubles while steps are added up, and then while rounds are.
        halvings = _halvings(part, interval)
        of_rounds = min(halvings, coarsenings_of(part.rounds))
        one = part.losses(interval / 2.0**halvings)
        one = one.repeated(part.each, halvings - of_rounds, tail / part.rounds)
        if participation < 1.0 and not part.certain:
            one = one.happening(participation)
        composed.append(one.repeated(part.rounds, of_rounds, tail))
    while len(composed) > 1:
        # Pairs of about the same size, so that no long transform meets a short one.
        pairs = zip(composed[::2], composed[1::2], strict=False)
        left = composed[-1:] if len(composed) % 2 else []
        composed = [one.composed_with(other, tail) for one, other in pairs] + left
    return composed[0]


@dataclass(frozen=True)
class _Steps:
    """Like steps that are rounded to a grid and added up.

    Attributes:
        sigma: Noise over how far one neighbour moves the sum.
        rate: q.
        fixed_size: Whether the batch has a fixed size.
        each: Steps of one round.
        rounds: Rounds.
        certain: Whether they happen whatever the participation.
    """

    sigma: float
    rate: float
    fixed_size: bool
    each: int
    rounds: int
    certain: bool = False

    @property
    def count(self) -> int:
        """Steps of all rounds."""
        return self.each * self.rounds

    def losses(self, interval: float) -> LossPair:
        """The losses of one step."""
        return _step_losses(self.sigma, self.rate, self.fixed_size, interval, self.coarse)

    @property
    def coarse(self) -> LossPair:
        """The same on a coarse grid, of some thousand cells."""
        interval = 2.0 ** math.floor(math.log2(self.spread / 1024.0))
        return _step_losses(self.sigma, self.rate, self.fixed_size, interval, None)

    @property
    def spread(self) -> float:
        """From the least to the greatest loss of one step that counts as finite."""
        least, greatest = poisson_range(self.sigma, self.rate)
        return greatest - (-greatest if self.fixed_size else least)


def _steps_of(part: Composition, rounds: int) -> _Steps:
    sigma = part.noise_over_sensitivity
    if part.sampling_rate == 1.0:
        # Gaussians without subsampling add up to one Gaussian, exactly.
        return _Steps(sigma / math.sqrt(part.steps), 1.0, False, 1, rounds)
    return _Steps(sigma, part.sampling_rate, part.sampling == "fixed-size", part.steps, rounds)


def _one_gaussian(parts: Sequence[_Steps]) -> list[_Steps]:
    """The same steps with those that draw every record as one; their noise may differ."""
    plain = [part for part in parts if part.rate == 1.0]
    if len(plain) < 2:
        return list(parts)
    sigma = sum(part.count / part.sigma**2 for part in plain) ** -0.5
    return [*(part for part in parts if part.rate < 1.0), _Steps(sigma, 1.0, False, 1, 1)]


@lru_cache(maxsize=64)
def _step_losses(
    sigma: float, rate: float, fixed_size: bool, interval: float, coarse: LossPair | None
) -> LossPair:
    known = coarse if coarse is not None and coarse.remove.interval >= interval else None
    if fixed_size:
        return fixed_size_losses(sigma, rate, interval, known)
    return poisson_losses(sigma, rate, interval, known)


def _interval(parts: Sequence[_Steps], participation: float, delta: float) -> float:
    """Choose the grid of the composed loss; a single step's is 2^`_halvings` times as fine.

    Rounding one loss to a grid of width h adds about order·h²/8 to ε. A step's grid is 2^k times as
    fine as the last one where 4^k steps are added up, and on the way the grid doubles k times, so
    n steps add about order·(n/4^k)·(k+1)·h²/8 at the last width h. Where a grid that fine would
    have too many cells it is coarser; ε is then further above the truth, and never below it.

    ε and the order are estimated from the moments of each step on a coarse grid.
    """
    rising, falling = _moments(parts, participation)
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = (rising - math.log(delta)) / TILTS
        best = int(np.nanargmin(bounds))
        reach = float(np.nanmin((rising - math.log(_TAIL)) / TILTS))
        depth = float(np.nanmin((falling - math.log(_TAIL)) / TILTS))
    epsilon, order = max(float(bounds[best]), 1e-2), 1.0 + float(TILTS[best])
    if not math.isfinite(reach + depth):
        raise PrivacyError(
            "the composition has no finite epsilon: the noise multiplier is too small"
        )
    error = _RELATIVE_ERROR * min(len(parts), 5)
    rounded = sum(
        part.count / 4.0 ** coarsenings_of(part.count) * (1 + coarsenings_of(part.count))
        for part in parts
    )
    width = max(
        math.sqrt(8.0 * error * epsilon / (order * rounded)),
        (reach + depth) / _CELLS,
        *(_finest(part) for part in parts),
    )
    return 2.0 ** math.floor(math.log2(width))


def _halvings(part: _Steps, interval: float) -> int:
    """How often the grid of a step is halved from that of the composed loss."""
    affordable = math.floor(math.log2(interval / _finest(part)) + 1.0)
    return max(0, min(coarsenings_of(part.count), affordable))


def _finest(part: _Steps) -> float:
    """The finest grid that a step can have."""
    return max(_SMALLEST_INTERVAL, part.spread / _CELLS_OF_A_STEP)


def _moments(
    parts: Sequence[_Steps], participation: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bounds on log E[exp(t·loss)] and log E[exp(-t·loss)] of the composition, at each tilt t.

    Of the larger direction. A round happens with probability l, so that its moment is
    1 - l + l·m^n for n steps of moment m.
    """

    def of_rounds(part: _Steps, of_a_step: NDArray[np.float64]) -> NDArray[np.float64]:
        share = 1.0 if part.certain else participation
        absent = math.log1p(-share) if share < 1.0 else -math.inf
        return part.rounds * np.logaddexp(absent, math.log(share) + part.each * of_a_step)

    rising, falling = np.zeros(len(TILTS)), np.zeros(len(TILTS))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts:
            pair = part.coarse
            rising += of_rounds(part, np.maximum(pair.remove.rising, pair.add.rising))
            falling += of_rounds(part, np.maximum(pair.remove.falling, pair.add.falling))
    return rising, falling


ACCOUNTANTS.register(
    Accountant(
        name="pld",
        label="PLD",
        source="Koskela, Jälkö & Honkela 2020; Doroshenko et al. 2022",
        samplings=frozenset(SAMPLINGS),
        epsilon=epsilon_pld,
        leads=Leading(mixture=mixture_epsilon_pld, profile=privacy_profile),
    )
)
