"""The whole sample of scores against the ledger's own law: an e-value, and bounds from its inverse.

`judge_scores` tests the ledger's law on a sample (`Scores`) and bounds the noise over what a canary
adds; below it stand what it is made of: the sample, the density (`Likelihood`), the test
(`log_e_value`) and the bounds (`ConfidenceSet`), in the order of the mathematics:

**Law** (`Likelihood`). A canary's score in one noised answer is the released sum in a direction of
its own, without what other records put in, in units of σC. Canaries have directions that are
orthogonal to each other, so under the ledger's mechanism each score is, given all that was released
before,

x ~ (1 − q) N(0, 1) + q N(a, 1)      of a canary that is in, drawn at rate q, x ~ N(0, 1)
of one that is out,

with a = 1/σ for a gradient far above C, and all scores of an answer are independent. Q answers on
one batch share one draw: their sum over √Q is one score with a = √Q/σ, and the Q − 1 contrasts
orthogonal to it are N(0, 1). So the density of the whole sample under the ledger is known, with
nothing to estimate. Where draws are not independent (batches of fixed size, shuffled epochs), or
where directions are orthogonal only after those before were taken out, the mean is only known to
lie in [low, high], whatever was drawn; the density at the nearest point of it, φ(distance of x from
[low, high]), is at least the true one.

**Test** (`log_e_value`). Let p be the ledger's density of the sample (or more than it), p_k that of
an alternative: noise times f, contribution times s, rate times r. Then

E = (1/K) Σ_k p_k(sample) / p(sample)

has expectation at most 1 under the ledger, by integration, however dependent answers are on what
was released before; so P[E ≥ 1/α] ≤ α for every number of scores (Markov's inequality; Ville 1939;
Robbins 1970; an e-value in the sense of Vovk & Wang, "E-values: Calibration, combination and
applications", Annals of Statistics 2021, whose Proposition 3.1 has the arithmetic mean). The
alternatives are on both sides of 1 and fixed here, before any score is seen. A wrong alternative
costs power and no validity.

**Bounds** (`ConfidenceSet`). The same holds for every (f, s) in place of the ledger's (1, 1), and
for alternatives that were estimated from other scores. The scores are cut in two in the order of
time; (f̂, ŝ) is what makes one half most likely. With

E(f, s) = p_(f̂,ŝ)(second half) / p_(f,s)(second half),

averaged with the same of the halves exchanged where no law depends on what was released before, the
set of all (f, s) with E(f, s) < 1/α holds the true one with probability 1 − α: "universal
inference" (Wasserman, Ramdas & Balakrishnan, PNAS 2020, Theorem 1 and its cross-fit form). What
matters for privacy is f/s, the noise over what a canary moves: the largest f/s in the set, put into
the ledger's steps and composed, is a lower bound on ε at confidence 1 − α, if the steps are
subsampled Gaussians at the ledger's rates. So Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski,
Carlini & Terzis ("Tight auditing of differentially private machine learning", USENIX Security 2023)
audit the steps and compose the answer; their thresholds with Clopper-Pearson intervals are here
replaced by the density.

Where directions are not orthogonal but draws are independent, the sum T of all scores of canaries
that are in has a law of its own: canary j moves it by c_j if it is drawn, so that E exp(λT) = Π_j
(1 − q + q exp(λ s c_j)) · exp(λ² f² n/2), and exp(λT) over that, averaged over λ, is one more
e-value. It tells what canaries add; the mean of all three is tested.

No coin is guessed, so that canaries are not spent on guessing: N canaries in T answers are N·T
scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from audit.untrusted.archives import Floats

# Below it the rounding of released values would matter compared with the noise.
LEAST_NOISE = 0.05
TOO_LITTLE_NOISE = f"noise below {LEAST_NOISE} times the clipping norm is hidden by rounding"


@dataclass(frozen=True)
class Evaluation:
    """What the sample of scores says of the ledger's steps.

    Attributes:
        scores: n, how many were looked at.
        log10_e_value: log₁₀ E against the ledger; 0 without scores.
        contradicted: whether E ≥ 1/level.
        noise: the noise over the ledger's that explains the scores best.
        contribution: what a canary that is drawn adds, over C, that explains them best.
        noise_interval: the noise over the ledger's that the scores do not exclude at the confidence
            of bounds, if canaries add what the ledger says; None where nothing explains them so.
        largest_ratio: the largest noise over contribution, over the ledger's, that they do not
            exclude at that confidence; infinite where none is excluded, or all are: no bound.
        seen: the largest share of the noise below 1 that would be found in 999 of 1,000 runs.
    """

    scores: int
    log10_e_value: float
    contradicted: bool
    noise: float
    contribution: float
    noise_interval: tuple[float, float] | None
    largest_ratio: float
    seen: float


def judge_scores(scores: Scores, level: float, bound_level: float) -> Evaluation:
    """Test the ledger's law on a sample of scores, and bound the noise over the contribution.

    Args:
        scores: the sample.
        level: of the contradiction.
        bound_level: one minus the confidence of the bound.
    """
    log_e = log_e_value(scores)
    likeliest = Likelihood(scores).likeliest()
    every = ConfidenceSet(scores)
    # Of the other scores the means are not known; of those that are noise alone they are 0.
    known = every
    if not scores.independent.all():
        known = ConfidenceSet(scores.where(scores.noise_alone))
    if scores.sums:
        sums = joined(scores.sums)
        ratio = _largest_ratio_by_sums(known, sums, likeliest.contribution, bound_level)
    else:
        ratio = every.largest_ratio(bound_level)
    # Those whose law is known whatever is drawn.
    sure = int(np.count_nonzero(scores.independent | scores.noise_alone))
    return Evaluation(
        scores=len(scores),
        log10_e_value=float(log_e / np.log(10.0)),
        contradicted=bool(log_e >= -np.log(level)),
        noise=likeliest.noise,
        contribution=likeliest.contribution,
        noise_interval=known.noise_interval(bound_level),
        largest_ratio=ratio,
        seen=noise_seen(sure, level),
    )


# The sample.


@dataclass(frozen=True)
class Scores:
    """Standardised scores, one a direction and answer.

    Attributes:
        values: [n] scores in units of the ledger's σC.
        rates: [n] q of a canary that is in; 0 of one that is out.
        shifts: [n] a: by how much the ledger's canary moves the score when it is drawn.
        low: [n] least mean that any draws give; used where draws are not independent.
        high: [n] largest.
        independent: [n] whether the draws of this score are independent of all others.
        sums: sums of the scores whose own law is known but for all draws.
    """

    values: Floats
    rates: Floats
    shifts: Floats
    low: Floats
    high: Floats
    independent: NDArray[np.bool_]
    sums: tuple[Sums, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def noise_alone(self) -> NDArray[np.bool_]:
        """[n] whether no canary moves the score, whatever is drawn."""
        unmoved = (self.low == 0.0) & (self.high == 0.0)
        found: NDArray[np.bool_] = np.where(self.independent, self.rates == 0.0, unmoved)
        return found

    def where(self, chosen: NDArray[np.bool_] | slice) -> Scores:
        """Some of the scores, in their order, without sums."""
        return Scores(
            self.values[chosen],
            self.rates[chosen],
            self.shifts[chosen],
            self.low[chosen],
            self.high[chosen],
            self.independent[chosen],
        )


def collected(parts: list[Scores]) -> Scores:
    """Several samples as one."""
    if not parts:
        none = np.zeros(0)
        return Scores(none, none, none, none, none, np.zeros(0, dtype=np.bool_))
    return Scores(
        np.concatenate([one.values for one in parts]),
        np.concatenate([one.rates for one in parts]),
        np.concatenate([one.shifts for one in parts]),
        np.concatenate([one.low for one in parts]),
        np.concatenate([one.high for one in parts]),
        np.concatenate([one.independent for one in parts]),
        tuple(sums for one in parts for sums in one.sums),
    )


def of_one_draw(
    answers: Floats, rates: Floats, shifts: Floats, independent: bool = True
) -> list[Scores]:
    """The scores of some canaries in the answers on one batch, or in one release.

    One score a canary, Σ_i x_i/√Q, which holds all that a draw does; and Q - 1 that are orthogonal
    to it and to each other, which are noise whatever is drawn.

    Args:
        answers: [Q, m] each canary's score in each answer, in units of σC.
        rates: [m] q; 0 of a canary that adds nothing.
        shifts: [m] what one that is drawn adds to each answer, in units of σC.
        independent: whether every canary is drawn by itself.
    """
    queries, planted = answers.shape
    together = answers.sum(0) / np.sqrt(queries)
    moved = np.where(rates > 0.0, shifts, 0.0) * np.sqrt(queries)
    every = np.full(planted, independent)
    found = [Scores(together, rates, moved, np.minimum(moved, 0.0), np.maximum(moved, 0.0), every)]
    for row in range(1, queries):
        # Helmert's contrasts: each answer against the mean of those before it.
        contrast = (answers[:row].mean(0) - answers[row]) * np.sqrt(row / (row + 1.0))
        none = np.zeros(planted)
        found.append(Scores(contrast, none, none, none, none, np.full(planted, True)))
    return found


# The test of the ledger's law.


def log_e_value(scores: Scores) -> float:
    """Log E of a sample against the ledger; 0 without scores."""
    if not len(scores):
        return 0.0
    found = Likelihood(scores).log_e_value()
    if scores.independent.all():
        return found
    # Scores whose law is known but for their draws may hide what the others tell.
    known = Likelihood(scores.where(scores.noise_alone))
    alone = known.log_e_value() if known.count else 0.0
    summed = joined(scores.sums)
    together = summed.log_e_value(1.0, 1.0) if summed.count else alone
    return _log_mean([found, alone, together])


def noise_seen(count: int, level: float, missed: float = 1e-3) -> float:
    """The largest share of the noise below 1 that so many scores show, but for a small chance.

    Counted with scores of canaries that are out, whose squares add up to a χ²; 0 where not even
    missing noise is sure to be found.

    Args:
        count: n.
        level: of the contradiction.
        missed: the chance that a fault of that size is not found.
    """
    if not count:
        return 0.0
    highest = _largest_square_sum(count, level)
    if highest <= 0.0:
        return 0.0
    # Noise times f multiplies the sum of squares by f².
    return float(min(1.0, np.sqrt(highest / stats.chi2.isf(missed, count))))


def _largest_square_sum(count: int, level: float) -> float:
    """The largest Σx² below n that contradicts the ledger; 0 where none does."""
    noises = [one.noise for one in ALTERNATIVES]

    def excess(squares: float) -> float:
        logs = [-count * np.log(f) - 0.5 * squares / f**2 for f in noises]
        return float(_log_mean(logs) + 0.5 * squares + np.log(level))

    least = count * 1e-9
    if excess(least) < 0.0:
        return 0.0
    return float(optimize.brentq(excess, least, count)) if excess(count) < 0.0 else float(count)


# The density of a sample, under what steps may do instead of what the ledger says.


@dataclass(frozen=True)
class Law:
    """Steps that add other noise, clip to another norm or draw at another rate than the ledger's.

    Attributes:
        noise: f, the noise over the ledger's.
        contribution: s, what a canary that is drawn adds, over what the ledger says.
        rate: r, the sampling rate over the ledger's.
    """

    noise: float = 1.0
    contribution: float = 1.0
    rate: float = 1.0


_LEDGER = Law()
# Noise times f. Finer about 1, where many scores tell small faults; 1/64 is none.
_NOISE = (1 / 64, 1 / 16, 1 / 4, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97, 0.985, 0.99)
# Contribution times s: 0 is a canary that is not there, 10 one that is not clipped.
_CONTRIBUTIONS = (0.0, 0.5, 0.8, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
# Of the rate, where draws are independent.
_RATES = (0.5, 2.0, 4.0)
# What the ledger is tested against, fixed before any score is seen.
ALTERNATIVES = (
    *(Law(noise=one) for one in (*_NOISE, *(1.0 / less for less in _NOISE))),
    *(Law(contribution=one) for one in _CONTRIBUTIONS),
    *(Law(rate=one) for one in _RATES),
    Law(1 / 64, 10.0),
    Law(0.5, 10.0),
    Law(0.5, 2.0),
    Law(0.5, 0.5),
)
# Contributions at which the search for the likeliest one begins.
_CONTRIBUTION_GRID = tuple(2.0**power for power in range(-4, 7))


class Likelihood:
    """Logarithms of a sample's density under laws, less n·log 1/√(2π).

    Scores that are noise alone count by the sum of their squares; only the others are kept.
    """

    def __init__(self, scores: Scores) -> None:
        alone = scores.noise_alone
        self.count = len(scores)
        self._count_alone = int(np.count_nonzero(alone))
        self._squares_alone = float(np.sum(scores.values[alone] ** 2))
        self._moved = scores.where(~alone)

    def log_density(self, law: Law) -> float:
        """Log-density under a law whose draws are independent of each other."""
        moved = self._moved
        found = self._of_noise_alone(law.noise)
        rates = np.minimum(moved.rates * law.rate, 1.0)
        return found + float(np.sum(_log_mixed(moved.values, moved.shifts, rates, law)))

    def log_density_bound(self, law: Law) -> float:
        """Log-density under a law at the ledger's rates, however it draws; more than it, or equal.

        Where draws are independent it is equal. Where they are not, it is the density at the mean
        that is nearest to the score, of all that some draws give.
        """
        moved = self._moved
        own = moved.independent
        mixed = _log_mixed(moved.values[own], moved.shifts[own], moved.rates[own], law)
        low, high = law.contribution * moved.low[~own], law.contribution * moved.high[~own]
        values = moved.values[~own]
        beyond = np.maximum(0.0, np.maximum(low - values, values - high)) / law.noise
        nearest = -0.5 * beyond**2 - np.log(law.noise)
        alone = self._of_noise_alone(law.noise)
        return alone + float(np.sum(mixed)) + float(np.sum(nearest))

    def log_e_value(self) -> float:
        """Log of the alternatives' mean density over the ledger's."""
        logs = [self.log_density(one) for one in ALTERNATIVES]
        return _log_mean(logs) - self.log_density_bound(_LEDGER)

    def likeliest(self) -> Law:
        """Noise and contribution of the largest density; the ledger's where there is no score."""
        if not self.count:
            return _LEDGER
        if self._count_alone:
            variance = self._squares_alone / self._count_alone
        else:
            # Of x², the median over the mean; few canaries are drawn, so the median is of noise.
            variance = np.median(self._moved.values**2) / 0.455
        noise = float(np.sqrt(max(variance, 1e-6)))
        if not len(self._moved):
            return Law(noise)
        found = [self.log_density(Law(noise, one)) for one in _CONTRIBUTION_GRID]
        start = np.log([noise, _CONTRIBUTION_GRID[int(np.argmax(found))]])
        near = optimize.minimize(
            lambda logs: -self.log_density(_law_of(logs)),
            start,
            method="Nelder-Mead",
            # Its own first steps are parts of the start, which is 0 where all is as it should be.
            options={
                "initial_simplex": start + np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.4]]),
                "maxfev": 80,
                "xatol": 1e-3,
                "fatol": 0.05,
            },
        )
        return _law_of(near.x)

    def _of_noise_alone(self, noise: float) -> float:
        return float(-self._count_alone * np.log(noise) - 0.5 * self._squares_alone / noise**2)


def _law_of(logs: Floats) -> Law:
    noise, contribution = np.exp(np.clip(logs, -8.0, 8.0))
    return Law(float(noise), float(contribution))


def _log_mixed(values: Floats, shifts: Floats, rates: Floats, law: Law) -> Floats:
    """Log of (1 − q) φ_f(x) + q φ_f(x − s·a), less log 1/√(2π)."""
    moved = law.contribution * shifts
    with np.errstate(divide="ignore"):
        absent = np.log1p(-rates) - 0.5 * (values / law.noise) ** 2
        present = np.log(rates) - 0.5 * ((values - moved) / law.noise) ** 2
    mixed: Floats = np.logaddexp(absent, present) - np.log(law.noise)
    return mixed


def _log_mean(logs: Sequence[float]) -> float:
    """Log of the mean of numbers whose logarithms are given."""
    return float(special.logsumexp(logs)) - float(np.log(len(logs)))


# The sum of scores, where directions are not orthogonal.

# Of the exponent λ, on either side: small ones for many scores, large ones for a few.
_SLOPES = tuple(sign * 2.0**-power for power in range(11) for sign in (1.0, -1.0))


@dataclass(frozen=True)
class Sums:
    """The sum of all scores of canaries that are in, where their directions are not orthogonal.

    Attributes:
        value: the sum, over all answers.
        count: how many scores it is of.
        totals: [n] by what each canary, in each answer, moves the sum when it is drawn.
        rates: [n] at which it is, independently of all others.
    """

    value: float
    count: int
    totals: Floats
    rates: Floats

    def log_e_value(self, noise: float, contribution: float) -> float:
        """Log E against one noise and contribution, over the ledger's; 0 without scores."""
        if not self.count:
            return 0.0
        found = []
        for slope in _SLOPES:
            raised = np.expm1(np.minimum(slope * contribution * self.totals, 500.0))
            moment = float(np.sum(np.log1p(self.rates * raised)))
            found.append(slope * self.value - moment - 0.5 * self.count * (slope * noise) ** 2)
        return _log_mean(found)


def joined(sums: Sequence[Sums]) -> Sums:
    """Several sums as one."""
    none = [np.zeros(0)]
    return Sums(
        sum(one.value for one in sums),
        sum(one.count for one in sums),
        np.concatenate([*none, *(one.totals for one in sums)]),
        np.concatenate([*none, *(one.rates for one in sums)]),
    )


# What the sample does not exclude.

# Of scores that a canary which is in can have moved, as many are used for bounds: time.
_MOST_SCORES = 200_000
_MOST_RATIO = 2.0**7
_PRECISION = 0.005


class ConfidenceSet:
    """The noises f and contributions s that the scores do not exclude: E(f, s) < 1/level."""

    def __init__(self, scores: Scores) -> None:
        # Chosen by their number alone.
        thinned = scores.where(slice(None, None, max(1, -(-len(scores) // _MOST_SCORES))))
        middle = len(thinned) // 2
        first, second = (
            Likelihood(thinned.where(part)) for part in (slice(middle), slice(middle, None))
        )
        # Each half, with its log-density under what makes the other half most likely.
        self._halves = [(second, second.log_density(first.likeliest()))]
        # Where directions depend on what was released before, estimates are of the past alone.
        if thinned.independent.all():
            self._halves.append((first, first.log_density(second.likeliest())))
        self._likeliest = Likelihood(thinned).likeliest()
        self._empty = len(thinned) < 2

    def noise_interval(self, level: float) -> tuple[float, float] | None:
        """The noises that are not excluded if canaries add what the ledger says."""
        if self._empty:
            return 0.0, float("inf")

        def excluded(noise: float) -> bool:
            return bool(self._log_e_value(noise, 1.0) >= -np.log(level))

        start = min((self._likeliest.noise, 1.0), key=lambda one: self._log_e_value(one, 1.0))
        if excluded(start):
            # Nothing explains the scores so.
            return None
        return _edge(excluded, start, 1.0 / _MOST_RATIO), _edge(excluded, start, _MOST_RATIO)

    def largest_ratio(self, level: float) -> float:
        """The largest noise over contribution that is not excluded, rounded up."""
        if self._empty:
            return float("inf")

        def excluded(ratio: float) -> bool:
            return bool(self._smallest_log_e_value(ratio) >= -np.log(level))

        start = self._likeliest.noise / self._likeliest.contribution
        if excluded(start):
            return float("inf")
        found = _edge(excluded, start, max(_MOST_RATIO, 2.0 * start))
        return found if found < _MOST_RATIO else float("inf")

    def _smallest_log_e_value(self, ratio: float) -> float:
        """The smallest log E(f, s) among all (f, s) of one ratio."""

        def log_e_value(log_contribution: float) -> float:
            contribution = float(np.exp(log_contribution))
            return self._log_e_value(ratio * contribution, contribution)

        likely = (*_CONTRIBUTION_GRID, self._likeliest.contribution)
        grid = sorted(float(np.log(one)) for one in likely)
        found = [log_e_value(one) for one in grid]
        best = int(np.argmin(found))
        span = (grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)])
        near = optimize.minimize_scalar(
            log_e_value, bounds=span, method="bounded", options={"xatol": 2e-3}
        )
        return min(found[best], float(near.fun))

    def _log_e_value(self, noise: float, contribution: float) -> float:
        law = Law(noise, contribution)
        return _log_mean([best - half.log_density_bound(law) for half, best in self._halves])


def _largest_ratio_by_sums(
    known: ConfidenceSet, sums: Sums, contribution: float, level: float
) -> float:
    """The largest noise over contribution: each is bounded by itself, at half of the level.

    Args:
        known: of the scores that are noise alone, which bound the noise.
        sums: bound the contribution, given the noise.
        contribution: the likeliest one, where the search begins.
        level: of both together.
    """
    interval = known.noise_interval(level / 2.0)
    if interval is None or not np.isfinite(interval[1]):
        return float("inf")
    noise = interval[1]

    def excluded(one: float) -> bool:
        return bool(sums.log_e_value(noise, one) >= -np.log(level / 2.0))

    start = min((contribution, *_CONTRIBUTION_GRID), key=lambda one: sums.log_e_value(noise, one))
    least = 0.0 if excluded(start) else _edge(excluded, start, 1.0 / _MOST_RATIO)
    return noise / least if least > 1.0 / _MOST_RATIO else float("inf")


def _edge(excluded: Callable[[float], bool], inside: float, limit: float) -> float:
    """The last value from `inside` to `limit` that is not excluded, rounded outwards.

    Doubled, or halved, until it is excluded; then the last step is halved, in logarithms.
    """
    step = 2.0 if limit > inside else 0.5
    nearer = min if step > 1.0 else max
    outside = inside
    while not excluded(outside):
        if outside == limit:
            return limit
        inside, outside = outside, nearer(outside * step, limit)
    while max(inside, outside) / min(inside, outside) > 1.0 + _PRECISION:
        middle = float(np.sqrt(inside * outside))
        inside, outside = (inside, middle) if excluded(middle) else (middle, outside)
    return outside
