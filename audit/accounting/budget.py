"""The auditor's own privacy accounting: what a history of queries costs, and to whom.

Facade over the accountants in `registry`. The checks "accounting" and "views" call only this
module. It shares no code with the engine or with dp-accounting, so agreement of the two is
evidence.

* `together` composes what the server sees of a person whose records are at several clients: clients
draw batches and noise by themselves, so that all their histories compose, and the claim must hold
whichever clients these are.
* `selection_cost` is what the best of a random number of trials costs: Papernot & Steinke 2022,
Theorem 2, for the truncated negative binomial law of Definition 1, by the auditor's own Rényi
divergences. The law is drawn again from its secret by its own sums.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from audit.accounting.pld import composer
from audit.accounting.rdp import composed_rdp, epsilon_improved, fine_orders, whole_orders
from audit.accounting.registry import Accountant, LossPair, Range, Steps, accountants, merge

__all__ = [
    "Budget",
    "Steps",
    "ThirdParty",
    "budget",
    "closed_forms",
    "covers",
    "dearest",
    "effective_noise_multiplier",
    "epsilon_curve",
    "merge",
    "methods",
    "most_of_each",
    "privacy_profile",
    "rdp_estimate",
    "server_delta",
]


@dataclass(frozen=True)
class Budget:
    """ε of one history at one δ by the auditor's accountants' names, the leading one first."""

    by_accountant: Mapping[str, Range]

    @property
    def epsilon(self) -> dict[str, float]:
        """What it costs by each accountant."""
        return {name: found.least for name, found in self.by_accountant.items()}

    @property
    def headline(self) -> float:
        """What it costs by the accountant whose number is promised."""
        return self.at(0)

    def at(self, fineness: int) -> float:
        """The same, on a grid whose cells are 4^fineness times as narrow."""
        return next(iter(self.by_accountant.values())).at(fineness)


def methods() -> str:
    """By what the auditor computes ε, in words."""
    return " and by ".join(dict.fromkeys(one.words for one in accountants()))


def effective_noise_multiplier(noise_multiplier: float, queries_per_step: int) -> float:
    """Noise multiplier of several queries on one batch, seen as one Gaussian query.

    Two noised queries of the same batch are jointly one Gaussian with multiplier σ/√2, subsampled
    once; counting them as two Poisson steps would assume two independent batches.
    """
    return noise_multiplier / float(np.sqrt(queries_per_step))


def budget(history: Sequence[Steps], delta: float) -> Budget:
    """ε(δ) of a composition of subsampled Gaussian steps.

    Args:
        history: queries; equal ones may be given once with their number of steps.
        delta: δ in (0, 1).

    Returns:
        All zero for an empty history.
    """
    events = merge(history)
    return Budget(
        {
            one.name: _cached(one, events, float(delta)) if events else Range(0.0, 0.0)
            for one in accountants()
        }
    )


@lru_cache(maxsize=16384)
def _cached(accountant: Accountant, history: tuple[Steps, ...], delta: float) -> Range:
    return accountant.epsilon(history, delta)


def dearest(budgets: Iterable[Budget], fineness: int) -> float:
    """The largest ε of several histories, on a grid of this fineness; 0 where there are none."""
    largest = 0.0
    for one in sorted(budgets, key=lambda one: -one.headline):
        # A finer grid can only show that less was spent.
        if one.headline <= largest:
            break
        largest = max(largest, one.at(fineness))
    return largest


def epsilon_curve(
    history: Sequence[Steps],
    counts: Sequence[Sequence[int]],
    delta: float,
    fineness: int = 0,
) -> list[float]:
    """ε (PLD) after each of several stages of one history.

    Args:
        history: the whole history, each kind of step once with its final number.
        counts: for each stage, how many steps of each kind had been made.
        delta: δ in (0, 1).
        fineness: cells of the grid are 4^fineness times as narrow.

    Returns:
        One ε a stage. All stages share one grid and one transform, so a curve costs little more
        than its last point.
    """
    kinds = tuple(history)
    known: dict[tuple[int, ...], float] = {}
    for stage in counts:
        key = tuple(stage)
        if key not in known:
            composed = composer(kinds, float(delta), fineness)
            known[key] = composed.distribution(key).epsilon(delta) if any(key) else 0.0
    return [known[tuple(stage)] for stage in counts]


def rdp_estimate(history: Sequence[Steps], delta: float) -> float:
    """ε by Rényi differential privacy over the coarse orders: quick, to rank histories by."""
    events = merge(history)
    if not events:
        return 0.0
    orders = whole_orders()
    return epsilon_improved(composed_rdp(events, orders), orders, delta)[0]


def privacy_profile(history: Sequence[Steps], delta: float, fineness: int = 0) -> LossPair:
    """The whole curve δ(ε) of a history, accurate around the given δ and above.

    Cells of its grid are 4^fineness times as narrow.
    """
    return composer(merge(history), float(delta), fineness).distribution()


class ThirdParty:
    """ε against someone who sees only broadcast models and not who took part.

    A run is a mixture over participation patterns that do not depend on the records, and
    hockey-stick divergences are jointly convex, hence δ(ε) ≤ E_n[δ_{nK}(ε)] with
    n ~ Binomial(rounds, participation), and likewise for rounds of several kinds. The expectation
    is linear in the loss distributions, so the binomial sum is evaluated exactly by one product of
    transforms: no count is left out.

    Args:
        kinds: what one participation costs, and the largest number of rounds that cost it which
            will be asked for; one entry a kind of round.
        participation: l = S/N in (0, 1].
        delta: δ in (0, 1).
        fineness: cells of the grid are 4^fineness times as narrow.
        always: what happens in addition to the rounds, once, for any participants in the rounds.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[Steps, int]],
        participation: float,
        delta: float,
        fineness: int = 0,
        always: Sequence[Steps] = (),
    ) -> None:
        """Prepare the grid for participation in every round, the worst case."""
        known = {item.kind for item, _ in kinds}
        # A kind that rounds have too is kept apart from it, by noise that is hardly less.
        always = [
            replace(item, noise_multiplier=item.noise_multiplier * (1.0 - 1e-12))
            if item.kind in known
            else item
            for item in merge(always)
        ]
        self._steps = [item.steps for item in (*(item for item, _ in kinds), *always)]
        self._rounds, self._beside = len(kinds), len(always)
        self._shares = [participation] * self._rounds + [1.0] * self._beside
        self._delta = delta
        history = tuple(replace(item, steps=item.steps * rounds) for item, rounds in kinds)
        self._composer = composer((*history, *always), delta, fineness)

    def epsilon(self, rounds: Sequence[int]) -> float:
        """ε after these numbers of rounds of each kind; kinds left out at the end have none."""
        return self.losses(rounds).epsilon(self._delta) if any(rounds) else 0.0

    def losses(self, rounds: Sequence[int]) -> LossPair:
        """The whole mixture's privacy losses, after as many rounds; at least one in all."""
        counts = [*rounds, *[0] * (self._rounds - len(rounds)), *[1] * self._beside]
        return self._composer.distribution(self._steps, (counts, self._shares))


def server_delta(delta: float, participation: float) -> float:
    """δ of the closed server bound: (δ/2)(1/l + 1) (Noble et al. 2022; DP-FedAdamW eq. 14)."""
    return 0.5 * delta * (1.0 / participation + 1.0)


def closed_forms(
    sampling_rate: float,
    noise_multiplier: float,
    local_steps: float,
    rounds: int,
    clients: int,
    participation: float,
    delta: float,
) -> Mapping[str, float]:
    """The papers' closed forms with the constant of their O(·) set to 1.

    Noble et al. 2022: third party s·sqrt(l·T·K·log(2/δ)·log(2T/δ)/N)/σ, server sqrt(N/l) times
    that. DP-FedAdamW equation 13 has the server's form already; equation 14 multiplies it by
    sqrt(N/l) once more.

    Returns:
        third_party_noble, server_noble, equation_13, equation_14, delta_server, sampling_rate.
    """
    logs = np.log(2.0 / delta) * np.log(2.0 * rounds / delta)
    server = float(sampling_rate * np.sqrt(rounds * local_steps * logs) / noise_multiplier)
    ratio = float(np.sqrt(clients / participation))
    return {
        "third_party_noble": server / ratio,
        "server_noble": server,
        "equation_13": server,
        "equation_14": server * ratio,
        "delta_server": server_delta(delta, participation),
        "sampling_rate": sampling_rate,
    }


# Sets that are composed one by one; of more, one that covers each of them is.
_MOST_SETS = 300


def together(
    histories: Sequence[tuple[Steps, ...]], clients: int, delta: float
) -> tuple[Steps, ...]:
    """The history of the clients that cost most together.

    Args:
        histories: each client's.
        clients: s, at how many of them one person's records may be.
        delta: δ.
    """
    left = [
        history
        for place, history in enumerate(histories)
        if sum(
            _before(other, history, before < place)
            for before, other in enumerate(histories)
            if before != place
        )
        < clients
    ]
    count = min(clients, len(left))
    if math.comb(len(left), count) > _MOST_SETS:
        left = [most_of_each(left)] * count
    sets = {
        merge([item for history in some for item in history]) for some in combinations(left, count)
    }
    return max(sets, key=lambda history: budget(history, delta).headline)


def _before(one: tuple[Steps, ...], other: tuple[Steps, ...], first: bool) -> bool:
    """Whether one history costs as much as another whatever it is composed with, or ties first."""
    return covers(one, other) and (first or not covers(other, one))


def covers(one: Sequence[Steps], other: Sequence[Steps]) -> bool:
    """Up to any noise, at least as many steps with at most that noise, at no smaller rate."""
    if not one or not other:
        return not other
    if len({item.fixed_size for item in (*one, *other)}) > 1:
        return False
    if max(item.sampling_rate for item in other) > min(item.sampling_rate for item in one):
        return False
    return all(
        sum(item.steps for item in one if item.noise_multiplier <= noise)
        >= sum(item.steps for item in other if item.noise_multiplier <= noise)
        for noise in {item.noise_multiplier for item in other}
    )


def most_of_each(histories: Sequence[tuple[Steps, ...]]) -> tuple[Steps, ...]:
    """As many steps of each noise as any history has, at the largest rate of all."""
    rate = max(item.sampling_rate for history in histories for item in history)
    most: dict[tuple[float, bool], int] = {}
    for history in histories:
        own: dict[tuple[float, bool], int] = {}
        for item in history:
            kind = (item.noise_multiplier, item.fixed_size)
            own[kind] = own.get(kind, 0) + item.steps
        for kind, steps in own.items():
            most[kind] = max(most.get(kind, 0), steps)
    return merge([Steps(rate, noise, steps, fixed) for (noise, fixed), steps in most.items()])


# The accountant by which a selection's ε is claimed.
SELECTION_ACCOUNTANT = "rdp"
_MOST_TRIALS = 10_000_000
# Sums of as many terms as there are trials, in two orders, differ by less.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Law:
    """The law of the number of trials.

    Attributes:
        mean: E[K] > 1.
        shape: η ≥ 0.
    """

    mean: float
    shape: float

    @property
    def stopping(self) -> float:
        """γ in (0, 1)."""
        return _stopping(self.mean, self.shape)

    def draws(self, secret: bytes, trials: int) -> bool:
        """Whether a secret draws this number of trials."""
        if not 1 <= trials <= _MOST_TRIALS:
            return False
        digest = hashlib.sha256(b"number of trials" + secret).digest()
        share = (int.from_bytes(digest[:8], "big") >> 11) / 2.0**53
        last = float(np.exp(self._log_masses(trials)[-1]))
        below = float(np.exp(self._log_masses(trials)).sum()) - last
        return below - _ROUNDING <= share <= below + last + _ROUNDING

    def _log_masses(self, trials: int) -> NDArray[np.float64]:
        """The logarithms of P(K = 1), …, P(K = trials)."""
        number, gamma = np.arange(1, trials + 1, dtype=np.float64), self.stopping
        going_on = number * np.log1p(-gamma)
        if self.shape == 0.0:
            logarithmic: NDArray[np.float64] = going_on - np.log(number) - np.log(-np.log(gamma))
            return logarithmic
        ways = gammaln(number + self.shape) - gammaln(number + 1.0) - gammaln(self.shape)
        masses: NDArray[np.float64] = going_on + ways - np.log(gamma**-self.shape - 1.0)
        return masses


@lru_cache(maxsize=64)
def _stopping(mean: float, shape: float) -> float:
    """Halve the range of γ until it has one number."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if _expected(middle, shape) > mean else (low, middle)
    return 0.5 * (low + high)


def _expected(gamma: float, shape: float) -> float:
    if shape == 0.0:
        return float((1.0 / gamma - 1.0) / np.log(1.0 / gamma))
    return float(shape * (1.0 - gamma) / (gamma * -np.expm1(shape * np.log(gamma))))


def selection_cost(
    kinds: Sequence[tuple[Steps, int]], participation: float, delta: float, law: Law
) -> Range:
    """ε of a selection against a reader who sees only the published trial.

    Args:
        kinds: what one participation costs, and in how many rounds.
        participation: l = S/N in (0, 1]; patterns do not depend on the records, and the moments
            e^((α-1)·D_α) are jointly convex, so that their mean over patterns bounds the trial's.
        delta: δ in (0, 1).
        law: of the number of trials.
    """
    ends = []
    for orders in (fine_orders(), whole_orders()):
        alpha = np.asarray(orders)
        trial = np.zeros(len(orders))
        for steps, rounds in kinds:
            exponent = (alpha - 1.0) * composed_rdp([steps], orders)
            if participation < 1.0:
                taken = np.log(participation) + exponent
                exponent = np.logaddexp(np.log1p(-participation), taken)
            trial = trial + rounds * exponent / (alpha - 1.0)
        repeated = ((1.0 - 1.0 / alpha) * trial - np.log(law.stopping) / alpha).min()
        mean = _expected(law.stopping, law.shape)
        whole = trial + (1.0 + law.shape) * repeated + np.log(mean) / (alpha - 1.0)
        # A divergence rises with its order, so that of a higher one bounds it.
        whole = np.minimum.accumulate(whole[::-1])[::-1]
        ends.append(epsilon_improved(whole, orders, delta)[0])
    return Range(ends[0], ends[1])
