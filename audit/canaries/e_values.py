"""The whole sample of scores against the ledger's own law: an e-value, and bounds from its inverse.

**Law.** A canary's score in one noised answer is the released sum in a direction of its own,
without what other records put in, in units of σC. Canaries have directions that are orthogonal to
each other, so under the ledger's mechanism each score is, given all that was released before,

    x ~ (1 − q) N(0, 1) + q N(a, 1)      of a canary that is in, drawn at rate q,
    x ~ N(0, 1)                          of one that is out,

with a = 1/σ for a gradient far above C, and all scores of an answer are independent. Q answers on
one batch share one draw: their sum over √Q is one score with a = √Q/σ, and the Q − 1 contrasts
orthogonal to it are N(0, 1). So the density of the whole sample under the ledger is known, with
nothing to estimate. Where draws are not independent (batches of fixed size, shuffled epochs), or
where directions are orthogonal only after those before were taken out, the mean is only known to
lie in [low, high], whatever was drawn; the density at the nearest point of it, φ(distance of x
from [low, high]), is at least the true one.

**Test.** Let p be the ledger's density of the sample (or more than it), p_k that of an
alternative: noise times f, contribution times s, rate times r. Then

    E = (1/K) Σ_k p_k(sample) / p(sample)

has expectation at most 1 under the ledger, by integration, however dependent answers are on what
was released before; so P[E ≥ 1/α] ≤ α for every number of scores (Markov's inequality; Ville
1939; Robbins 1970; an e-value in the sense of Vovk & Wang, "E-values: Calibration, combination
and applications", Annals of Statistics 2021, whose Proposition 3.1 has the arithmetic mean). The
alternatives are on both sides of 1 and fixed here, before any score is seen. A wrong alternative
costs power and no validity.

**Bounds.** The same holds for every (f, s) in place of the ledger's (1, 1), and for alternatives
that were estimated from other scores. The scores are cut in two in the order of time; (f̂, ŝ) is
what makes one half most likely. With

    E(f, s) = p_(f̂,ŝ)(second half) / p_(f,s)(second half),

averaged with the same of the halves exchanged where no law depends on what was released before,
the set of all (f, s) with E(f, s) < 1/α holds the true one with probability 1 − α: "universal
inference" (Wasserman, Ramdas & Balakrishnan, PNAS 2020, Theorem 1 and its cross-fit form). What
matters for privacy is f/s, the noise over what a canary moves: the largest f/s in the set, put
into the ledger's steps and composed, is a lower bound on ε at confidence 1 − α, if the steps are
subsampled Gaussians at the ledger's rates. So Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski,
Carlini & Terzis ("Tight auditing of differentially private machine learning", USENIX Security
2023) audit the steps and compose the answer; their thresholds with Clopper-Pearson
intervals are here replaced by the density.

Where directions are not orthogonal but draws are independent, the sum T of all scores of canaries
that are in has a law of its own: canary j moves it by c_j if it is drawn, so that E exp(λT) =
Π_j (1 − q + q exp(λ s c_j)) · exp(λ² f² n/2), and exp(λT) over that, averaged over λ, is one more
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

# Alternatives: noise times f. Finer about 1, where many scores tell small faults; 1/64 is none.
_NOISE = (1 / 64, 1 / 16, 1 / 4, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97, 0.985, 0.99)
# Contribution times s: 0 is a canary that is not there, 10 one that is not clipped.
_CONTRIBUTIONS = (0.0, 0.5, 0.8, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
# Of the rate, where draws are independent.
_RATES = (0.5, 2.0, 4.0)
# Of the exponent of a sum, on either side: small ones for many scores, large ones for a few.
_SLOPES = tuple(sign * 2.0**-power for power in range(11) for sign in (1.0, -1.0))
# Of scores that a canary which is in can have moved, as many are used for bounds: time.
_MOST_SCORES = 200_000
_MOST_RATIO = 2.0**7
_PRECISION = 0.005
# Below it the rounding of what is released would count beside the noise.
LEAST_NOISE = 0.05
TOO_LITTLE_NOISE = f"noise below {LEAST_NOISE} times the clipping norm is hidden by rounding"
_CONTRIBUTION_GRID = tuple(2.0**power for power in range(-4, 7))


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
        """Log E against one noise and contribution; 0 without scores."""
        if not self.count:
            return 0.0
        found = []
        for slope in _SLOPES:
            raised = np.expm1(np.minimum(slope * contribution * self.totals, 500.0))
            moment = float(np.sum(np.log1p(self.rates * raised)))
            found.append(slope * self.value - moment - 0.5 * self.count * (slope * noise) ** 2)
        return float(special.logsumexp(found)) - float(np.log(len(found)))


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
    def still(self) -> NDArray[np.bool_]:
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


def judge_scores(scores: Scores, level: float, bound_level: float) -> Evaluation:
    """Test the ledger's law on a sample of scores, and bound the noise over the contribution.

    Args:
        scores: the sample.
        level: of the contradiction.
        bound_level: one minus the confidence of the bound.
    """
    sample, log_e = _Sample(scores), log_e_value(scores)
    sure = int(np.count_nonzero(scores.independent | scores.still))
    noise, contribution = sample.fit()
    halves = _Halves(scores)
    # The means of the others are not known, and those of these are 0.
    known = halves if scores.independent.all() else _Halves(scores.where(scores.still))
    ratio = halves.largest_ratio(bound_level)
    if scores.sums:
        ratio = _ratio_of_sums(known, joined(scores.sums), contribution, bound_level)
    return Evaluation(
        scores=len(scores),
        log10_e_value=float(log_e / np.log(10.0)),
        contradicted=bool(log_e >= -np.log(level)),
        noise=noise,
        contribution=contribution,
        noise_interval=known.noise_interval(bound_level),
        largest_ratio=ratio,
        seen=noise_seen(sure, level),
    )


def log_e_value(scores: Scores) -> float:
    """Log E of a sample against the ledger; 0 without scores."""
    if not len(scores):
        return 0.0
    sample = _Sample(scores)
    found = sample.mixture() - sample.ledger(1.0, 1.0)
    if scores.independent.all():
        return found
    # Scores whose law is known but for their draws may hide what the others tell.
    still = _Sample(scores.where(scores.still))
    alone = still.mixture() - still.ledger(1.0, 1.0) if still.count else 0.0
    summed = joined(scores.sums)
    together = summed.log_e_value(1.0, 1.0) if summed.count else alone
    return float(special.logsumexp([found, alone, together])) - float(np.log(3.0))


def joined(sums: Sequence[Sums]) -> Sums:
    """Several sums as one."""
    none = [np.zeros(0)]
    return Sums(
        sum(one.value for one in sums),
        sum(one.count for one in sums),
        np.concatenate([*none, *(one.totals for one in sums)]),
        np.concatenate([*none, *(one.rates for one in sums)]),
    )


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

    def excess(squares: float) -> float:
        logs = [-count * np.log(f) - 0.5 * squares / f**2 for f, _, _ in _alternatives()]
        mean = float(special.logsumexp(logs)) - np.log(len(logs))
        return float(mean + 0.5 * squares + np.log(level))

    least = count * 1e-9
    if excess(least) < 0.0:
        return 0.0
    return float(optimize.brentq(excess, least, count)) if excess(count) < 0.0 else float(count)


def _alternatives() -> list[tuple[float, float, float]]:
    """Noise, contribution and rate over the ledger's, of every alternative."""
    both_sides = [*_NOISE, *(1.0 / one for one in _NOISE)]
    found = [(noise, 1.0, 1.0) for noise in both_sides]
    found += [(1.0, contribution, 1.0) for contribution in _CONTRIBUTIONS]
    found += [(1.0, 1.0, rate) for rate in _RATES]
    return [*found, (1 / 64, 10.0, 1.0), (0.5, 10.0, 1.0), (0.5, 2.0, 1.0), (0.5, 0.5, 1.0)]


class _Sample:
    """Log-likelihoods of a sample. Scores that no canary moves count by their squares alone."""

    def __init__(self, scores: Scores) -> None:
        still = scores.still
        self.count = len(scores)
        self._still = int(np.count_nonzero(still))
        self._squares = float(np.sum(scores.values[still] ** 2))
        moved = scores.where(~still)
        self._values, self._rates, self._shifts = moved.values, moved.rates, moved.shifts
        self._low, self._high, self._independent = moved.low, moved.high, moved.independent

    def alternative(self, noise: float, contribution: float, rate: float = 1.0) -> float:
        """Log-density of the sample where draws are independent, less n·log √(2π)."""
        found = self._of_still(noise)
        rates = np.minimum(self._rates * rate, 1.0)
        return found + float(np.sum(self._mixed(noise, contribution, rates, slice(None))))

    def ledger(self, noise: float, contribution: float) -> float:
        """Log-density under the ledger's draws, or more than it where these are not independent."""
        own = self._independent
        mixed = self._mixed(noise, contribution, self._rates[own], own)
        low, high = contribution * self._low[~own], contribution * self._high[~own]
        values = self._values[~own]
        beyond = np.maximum(0.0, np.maximum(low - values, values - high)) / noise
        nearest = -0.5 * beyond**2 - np.log(noise)
        return self._of_still(noise) + float(np.sum(mixed)) + float(np.sum(nearest))

    def mixture(self) -> float:
        """Log of the mean density of all alternatives."""
        logs = [self.alternative(*one) for one in _alternatives()]
        return float(special.logsumexp(logs)) - float(np.log(len(logs)))

    def fit(self) -> tuple[float, float]:
        """Noise and contribution of the largest density, over the ledger's; (1, 1) of no score."""
        if not self.count:
            return 1.0, 1.0
        shown = self._squares / self._still if self._still else np.median(self._values**2) / 0.455
        noise = float(np.sqrt(max(shown, 1e-6)))
        if not len(self._values):
            return noise, 1.0
        found = [self.alternative(noise, one) for one in _CONTRIBUTION_GRID]
        start = np.log([noise, _CONTRIBUTION_GRID[int(np.argmax(found))]])
        near = optimize.minimize(
            lambda logs: -self.alternative(*np.exp(np.clip(logs, -8.0, 8.0))),
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
        best = np.exp(np.clip(near.x, -8.0, 8.0))
        return float(best[0]), float(best[1])

    def _of_still(self, noise: float) -> float:
        return float(-self._still * np.log(noise) - 0.5 * self._squares / noise**2)

    def _mixed(
        self,
        noise: float,
        contribution: float,
        rates: Floats,
        chosen: NDArray[np.bool_] | slice,
    ) -> Floats:
        """Log of (1 − q) φ_f(x) + q φ_f(x − s·a), less log 1/√(2π)."""
        values, shifts = self._values[chosen], contribution * self._shifts[chosen]
        with np.errstate(divide="ignore"):
            absent = np.log1p(-rates) - 0.5 * (values / noise) ** 2
            present = np.log(rates) - 0.5 * ((values - shifts) / noise) ** 2
        mixed: Floats = np.logaddexp(absent, present) - np.log(noise)
        return mixed


class _Halves:
    """The set of noises and contributions that the scores do not exclude."""

    def __init__(self, scores: Scores) -> None:
        # Chosen by their number alone.
        thinned = scores.where(slice(None, None, max(1, -(-len(scores) // _MOST_SCORES))))
        middle = len(thinned) // 2
        first, second = (
            _Sample(thinned.where(part)) for part in (slice(middle), slice(middle, None))
        )
        self._tests = [(second, second.alternative(*first.fit()))]
        # Where directions depend on what was released before, estimates are of the past alone.
        if thinned.independent.all():
            self._tests.append((first, first.alternative(*second.fit())))
        self._start = _Sample(thinned).fit()
        self._empty = len(thinned) < 2

    def noise_interval(self, level: float) -> tuple[float, float] | None:
        """The noises that are not excluded if canaries add what the ledger says."""
        if self._empty:
            return 0.0, float("inf")

        def excluded(noise: float) -> bool:
            return bool(self._log_e(noise, 1.0) >= -np.log(level))

        start = min((self._start[0], 1.0), key=lambda one: self._log_e(one, 1.0))
        if excluded(start):
            return None
        return _last(excluded, start, 1.0 / _MOST_RATIO), _last(excluded, start, _MOST_RATIO)

    def largest_ratio(self, level: float) -> float:
        """The largest noise over contribution that is not excluded, rounded up."""
        if self._empty:
            return float("inf")

        def excluded(ratio: float) -> bool:
            return bool(self._least(ratio) >= -np.log(level))

        start = self._start[0] / self._start[1]
        if excluded(start):
            return float("inf")
        found = _last(excluded, start, max(_MOST_RATIO, 2.0 * start))
        return found if found < _MOST_RATIO else float("inf")

    def _least(self, ratio: float) -> float:
        """The smallest log E(f, s) among all (f, s) of one ratio."""

        def loss(power: float) -> float:
            contribution = float(np.exp(power))
            return self._log_e(ratio * contribution, contribution)

        grid = sorted(float(np.log(one)) for one in (*_CONTRIBUTION_GRID, self._start[1]))
        found = [loss(one) for one in grid]
        best = int(np.argmin(found))
        span = (grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)])
        near = optimize.minimize_scalar(
            loss, bounds=span, method="bounded", options={"xatol": 2e-3}
        )
        return min(found[best], float(near.fun))

    def _log_e(self, noise: float, contribution: float) -> float:
        found = [best - sample.ledger(noise, contribution) for sample, best in self._tests]
        return float(special.logsumexp(found)) - float(np.log(len(found)))


def _ratio_of_sums(known: _Halves, sums: Sums, contribution: float, level: float) -> float:
    """The largest noise over contribution, each at half of the level."""
    interval = known.noise_interval(level / 2.0)
    if interval is None or not np.isfinite(interval[1]):
        return float("inf")

    def excluded(one: float) -> bool:
        return bool(sums.log_e_value(interval[1], one) >= -np.log(level / 2.0))

    start = min(
        (contribution, *_CONTRIBUTION_GRID), key=lambda one: sums.log_e_value(interval[1], one)
    )
    least = 0.0 if excluded(start) else _last(excluded, start, 1.0 / _MOST_RATIO)
    return interval[1] / least if least > 1.0 / _MOST_RATIO else float("inf")


def _last(excluded: Callable[[float], bool], inside: float, limit: float) -> float:
    """The last value from `inside` towards `limit` that is not excluded, rounded outwards."""
    step = 2.0 if limit > inside else 0.5
    outside = inside
    while not excluded(outside):
        if outside == limit:
            return limit
        inside = outside
        outside = min(outside * step, limit) if step > 1.0 else max(outside * step, limit)
    while max(inside, outside) / min(inside, outside) > 1.0 + _PRECISION:
        middle = float(np.sqrt(inside * outside))
        inside, outside = (inside, middle) if excluded(middle) else (middle, outside)
    return outside
