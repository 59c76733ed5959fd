"""How many coins can be guessed right, of the canaries that were in: what privacy allows.

**The game.** m canaries are included or left out by fair coins, independently. An adversary sees
what the mechanism releases and guesses r of the coins; c of the guesses are right.

**Guesses** (`guess`). The highest scores are guessed "in", perhaps the lowest "out", others are
not. How many coins are guessed, and whether any are guessed "out", is fixed before a score is seen,
because the bounds below hold for a fixed number. Which plan is best depends on the mechanism: where
a record is seldom drawn, a release can tell that it was there and hardly ever that it was not. So a
few plans are tried and the level is shared out among them (Bonferroni). Not even the largest
guesses all coins: about half of them are "in", and a fifth is left open for the case that not
exactly half are.

**How well two neighbours may be told apart** (`TradeOff`). For every event, P(event) ≤ g(Q(event))
where P and Q are the mechanism's laws on neighbouring data sets. With the trade-off function f of
f-DP (Dong, Roth & Su 2022), g = 1 − f(·) on the false positive rate; (ε, δ)-DP gives two straight
lines of it, and a whole profile δ(ε) the lower envelope of a line a point. Everything here is such
an envelope, so that leaving points out only makes the bounds weaker, never wrong.

**Under (ε, δ)-DP** (`one_run_p_value`). Steinke, Nasr & Jagielski, "Privacy auditing with one (1)
training run" (2023), Theorem 5.2: for every v

P[correct ≥ v] ≤ P[W ≥ v] + 2 m δ · max_{1≤i≤v} P[v > W ≥ v − i]/i,    W ~ Bin(r, e^ε/(1+e^ε)).

Why: given all guesses so far, pure ε-DP lets no coin be guessed better than by randomised response,
so that the number of right guesses is stochastically below W. An (ε, δ)-DP mechanism equals such a
one except on events of probability δ a coin; F of these coins, E[F] ≤ 2mδ counting both values, add
at most F right guesses, so P[correct ≥ v] ≤ E[P[W ≥ v − F]], and P[W ≥ v − i] − P[W ≥ v] is at most
i times its largest slope, the maximum above. That maximum is over i alone, so one pass over the
binomial's masses evaluates it: the efficient form of the paper's Appendix D.

**Under a trade-off** (`is_excluded`). Mahloujifar, Melis & Chaudhuri ("Auditing f-differential
privacy in one run", 2024) bound P[C ≥ c] under f-DP (their Theorem 3.2 and Algorithm 3). Derived
once more, for two-sided guesses with abstention:

Flip coin i alone. The releases before and after are those of neighbours, so for the event "guess i
is made, says s, and C − [guess i is right] = j − 1" the trade-off g applies: right guesses with C =
j before the flip against wrong guesses with C = j − 1 after it. Averaging over the coins' values
(flipping is a bijection), over i, and summing over j ≥ k, Jensen's inequality for the concave g
gives, with p_j = P[C = j],

Σ_{j≥k} (j/m) p_j  ≤  g( Σ_{j≥k} ((r − j + 1)/m) p_{j−1} ),        k = 1 … r.            (*)

How large can P[C ≥ c] be under (*)? The set of feasible p is convex and holds "always all wrong",
so every smaller tail is feasible too, and it is enough to ask whether P[C ≥ c] = τ is. Moving mass
from C > c to c, and then what is not needed at c − 1 to c − 2, and so on, keeps (*): the left sides
fall, and the right sides that fall keep what they need. What is left is the smallest p below c:

with R_k = Σ_{j≥k} (j/m) p_j and W_k = Σ_{j≥k} ((r − j)/m) p_j: R_c = cτ/m, W_c = (r − c)τ/m;
W_{k−1} = max(W_k, g⁻¹(R_k)), p_{k−1} = (W_{k−1} − W_k) m/(r − k + 1),  R_{k−1} = R_k + ((k − 1)/m)
p_{k−1}

and τ is feasible exactly if the p so found sum to at most 1.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from audit.accounting.registry import LossPair

# Shares of the canaries that are guessed "in", and "out".
PLANS = ((0.4, 0.4), (0.15, 0.15), (0.05, 0.05), (0.4, 0.0), (0.15, 0.0), (0.05, 0.0))


@dataclass(frozen=True)
class Guesses:
    """The outcome of guessing some of the coins.

    Attributes:
        canaries: m, all of them.
        made: r, those that were guessed.
        correct: how many of the guesses were right.
    """

    canaries: int
    made: int
    correct: int


def plans(canaries: int) -> tuple[tuple[int, int], ...]:
    """How many of m canaries each plan guesses "in" and "out"; at least one in all."""
    numbers = (
        (max(1, int(canaries * inside)), int(canaries * outside)) for inside, outside in PLANS
    )
    return tuple(dict.fromkeys(numbers))


def guess(scores: NDArray[np.float64], included: NDArray[np.bool_]) -> tuple[Guesses, ...]:
    """Guess coins by the order of their scores, once for each plan.

    By order and not by value: where the mechanism is not what it claims to be, the values are not
    what they should be either. Equal scores are told apart by their place, which knows nothing of
    the coins.

    Args:
        scores: [m], at least one; the larger, the more it speaks for "in"; what is not a number
            counts as 0.
        included: [m], the coins.
    """
    order = np.argsort(-np.nan_to_num(scores, nan=0.0), kind="stable")
    found = []
    for inside, outside in plans(len(scores)):
        right = int(np.sum(included[order[:inside]]))
        right += int(np.sum(~included[order[len(order) - outside :]]))
        found.append(Guesses(len(scores), inside + outside, right))
    return tuple(found)


def perfect(canaries: int) -> tuple[Guesses, ...]:
    """Guesses that are all right: what the ceiling of a bound is computed from."""
    made = (inside + outside for inside, outside in plans(canaries))
    return tuple(Guesses(canaries, one, one) for one in made)


_POINTS = 160
_SMALLEST_DELTA = 1e-12
# Beyond it e^ε does not fit a float64, and no number of canaries reaches that far.
_LARGEST_PROFILE_EPSILON = 600.0


@dataclass(frozen=True)
class TradeOff:
    """P(event) ≤ min_k (slope_k · Q(event) + intercept_k), for any event and any two neighbours.

    Attributes:
        slopes: [K], above 0.
        intercepts: [K], at least 0.
    """

    slopes: NDArray[np.float64]
    intercepts: NDArray[np.float64]

    def most(self, false_positives: float) -> float:
        """The largest P(event) where Q(event) is `false_positives`, in [0, 1]."""
        return float(min(1.0, np.min(self.slopes * false_positives + self.intercepts)))

    def least(self, true_positives: float) -> float:
        """The smallest Q(event) that P(event) = `true_positives` asks for; infinite above 1."""
        if true_positives > 1.0:
            return float("inf")
        breaks, rises, starts = self._inverse
        line = bisect_right(breaks, true_positives)
        return max(0.0, rises[line] * true_positives + starts[line])

    @cached_property
    def _inverse(self) -> tuple[list[float], list[float], list[float]]:
        """The lines (p − intercept)/slope that are largest somewhere, and where the next one is.

        `least` is asked thousands of times for each bound; with these it takes one bisection.
        """
        rises, starts = 1.0 / self.slopes, -self.intercepts / self.slopes
        breaks: list[float] = []
        kept: list[int] = []
        for line in np.lexsort((starts, rises)).tolist():
            while kept:
                rise = rises[line] - rises[kept[-1]]
                # The line that came last is nowhere largest if this one is as steep and not lower,
                # or overtakes it before it overtook the one below.
                meets = (starts[kept[-1]] - starts[line]) / rise if rise > 0.0 else -np.inf
                if len(kept) > 1 and meets <= breaks[-1]:
                    breaks.pop()
                    kept.pop()
                elif len(kept) == 1 and rise <= 0.0:
                    kept.pop()
                else:
                    breaks.append(float(meets))
                    break
            kept.append(line)
        return breaks, rises[kept].tolist(), starts[kept].tolist()


def from_profile(epsilons: Sequence[float], deltas: Sequence[float]) -> TradeOff:
    """The envelope of points of a profile: the mechanism is (ε_k, δ_k)-DP for every k.

    P ≤ e^ε Q + δ, and the same of the complements with P and Q exchanged, 1 − Q ≤ e^ε (1 − P) + δ,
    which is P ≤ e^-ε Q + 1 − e^-ε (1 − δ).

    Args:
        epsilons: each at least 0.
        deltas: each in [0, 1]; larger than the true ones is safe.
    """
    epsilon = np.asarray(epsilons, dtype=np.float64)
    delta = np.clip(np.asarray(deltas, dtype=np.float64), 0.0, 1.0)
    steep, flat = np.exp(epsilon), np.exp(-epsilon)
    return TradeOff(
        np.concatenate([steep, flat]),
        np.concatenate([delta, -np.expm1(-epsilon) + flat * delta]),
    )


def approximate_dp(epsilon: float, delta: float) -> TradeOff:
    """The envelope of (ε, δ)-DP alone."""
    return from_profile([epsilon], [delta])


def of_losses(shares: Sequence[tuple[float, LossPair]]) -> TradeOff:
    """The envelope of the average over canaries that meet different mechanisms.

    Each canary's own P_i ≤ e^ε Q_i + δ_i(ε) for the same ε; the average over the canaries is
    P ≤ e^ε Q + Σ w_k δ_k(ε), which is all that `is_excluded` needs. Points are spread evenly
    over the ε at which the largest δ_k(ε) is above 1e-12.

    Args:
        shares: w_k, the share of the canaries that meet a mechanism, with its composed privacy
            losses, discretised upwards; at least one. Where the shares do not add up to 1, the
            other canaries are in nothing that is released.
    """
    last = max(pair.epsilon(_SMALLEST_DELTA) for _, pair in shares)
    if not np.isfinite(last):
        # Some mass is charged to an infinite loss: no ε comes below it.
        last = max(pair.epsilon(2.0 * _charged(pair) + _SMALLEST_DELTA) for _, pair in shares)
    epsilons = np.linspace(0.0, min(max(last, 1e-6), _LARGEST_PROFILE_EPSILON), _POINTS)
    deltas = [sum(share * pair.delta(float(one)) for share, pair in shares) for one in epsilons]
    return from_profile(epsilons.tolist(), deltas)


def _charged(pair: LossPair) -> float:
    return max(pair.remove.infinite, pair.add.infinite)


_LARGEST_EPSILON = 100.0
_PRECISION = 1e-4


def one_run_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """The most probable that so many correct guesses can be under (ε, δ)-DP, in [0, 1].

    Args:
        canaries: m.
        guesses: r ≤ m; fixed beforehand.
        correct: v ≤ r.
        epsilon: ε ≥ 0.
        delta: δ in [0, 1).
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses on {canaries} canaries")
    # Counted from the wrong guesses: at large ε the accuracy rounds to 1, its complement does not.
    error = float(special.expit(-epsilon))
    wrong = guesses - correct
    least = float(stats.binom.cdf(wrong, guesses, error))
    if delta == 0.0 or correct == 0:
        return min(1.0, least)
    lower = np.arange(wrong + 1, guesses + 1)
    masses = stats.binom.pmf(lower, guesses, error)
    slopes = np.cumsum(masses) / np.arange(1, len(masses) + 1)
    return min(1.0, least + 2.0 * canaries * delta * float(slopes.max()))


def largest_excluded(excluded: Callable[[float], bool], largest: float = _LARGEST_EPSILON) -> float:
    """The largest value that a test excludes, where it excludes everything below that; else 0.

    Args:
        excluded: from a value ≥ 0 to whether it is excluded.
        largest: the largest value worth asking for.
    """
    if not excluded(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < largest and excluded(high):
        low, high = high, 2.0 * high
    while high - low > _PRECISION:
        middle = (low + high) / 2.0
        low, high = (middle, high) if excluded(middle) else (low, middle)
    return low


def is_excluded(canaries: int, guesses: int, correct: int, level: float, allowed: TradeOff) -> bool:
    """Whether so many correct guesses have less than `level` of probability under a trade-off.

    Args:
        canaries: m, each included by a fair coin.
        guesses: r of them that are guessed; fixed beforehand.
        correct: c, right guesses.
        level: τ in (0, 1).
        allowed: what the mechanism's neighbours may differ by.

    Returns:
        True if P[C ≥ c] < τ under every mechanism with this trade-off.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} correct of {guesses} guesses on {canaries} canaries")
    right = correct * level / canaries
    wrong = (guesses - correct) * level / canaries
    mass = level
    for count in range(correct, 0, -1):
        needed = allowed.least(right)
        if not math.isfinite(needed):
            return True
        if needed > wrong:
            added = (needed - wrong) * canaries / (guesses - count + 1)
            wrong = needed
            right += (count - 1) * added / canaries
            mass += added
            if mass > 1.0:
                return True
    return False
