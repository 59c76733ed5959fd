"""What the best of a random number of trials costs, written anew for the audit.

Papernot & Steinke 2022, Theorem 2, for the truncated negative binomial law of Definition 1, by the
auditor's own Rényi divergences. The law is drawn again from its secret by its own sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from audit.accounting.rdp import composed_rdp, epsilon_improved, fine_orders, whole_orders
from audit.accounting.registry import Range, Steps

# The accountant by which a selection's ε is claimed.
ACCOUNTANT = "rdp"
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
    """ε of a selection towards somebody who sees of the trials the published one alone.

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
