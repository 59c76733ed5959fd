"""Composed privacy losses, and how ε and δ are read from them.

The last step of `pld`: masses on a grid become δ(ε) and its inverse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Losses:
    """One direction: masses of losses (first + index)·interval, and of an infinite loss."""

    first: int
    interval: float
    masses: NDArray[np.float64]
    infinite: float

    def delta(self, epsilon: float) -> float:
        """δ(ε) = E[(1 − e^(ε−loss))+] for ε ≥ 0."""
        start = max(0, int(np.floor(epsilon / self.interval)) + 1 - self.first)
        masses = self.masses[start:]
        losses = (self.first + start + np.arange(len(masses))) * self.interval
        gain = -np.expm1(epsilon - losses)
        return min(1.0, self.infinite + float(np.dot(masses, np.maximum(gain, 0.0))))

    def epsilon(self, delta: float) -> float:
        """Least ε ≥ 0 with δ(ε) ≤ delta; infinite where there is none."""
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

    remove: Losses
    add: Losses

    def epsilon(self, delta: float) -> float:
        """Least ε (≥ 0, possibly infinite) with δ(ε) ≤ delta in both directions."""
        return max(self.remove.epsilon(delta), self.add.epsilon(delta))

    def delta(self, epsilon: float) -> float:
        """Greatest δ(ε) of the two directions, for ε ≥ 0."""
        return max(self.remove.delta(epsilon), self.add.delta(epsilon))


def log_sum_exp(logs: NDArray[np.float64]) -> float:
    """Log of the sum of exponentials of finite values, without overflow."""
    largest = float(np.max(logs))
    return largest + float(np.log(np.exp(logs - largest).sum()))
