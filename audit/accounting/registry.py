"""What the auditor's accountants compose, how they state it, and which accountants there are.

`Steps` follow from the ledger's charges; `Losses` are what is left of them on a grid, of which ε
and δ are read. A claim states every ε by the names of the engine's accountants. The auditor
verifies those of which it has an accountant of its own under the same name, each a file of this
folder that registers itself; of the others it says that it cannot.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

Kind = tuple[float, float, bool, int]


@dataclass(frozen=True)
class Steps:
    """A number of identical queries on samples of the records.

    Attributes:
        sampling_rate: q in (0, 1].
        noise_multiplier: noise over how far one neighbour moves the sum: σ under add/remove, σ/2
            under replace-one.
        steps: how often.
        fixed_size: whether the sample has a fixed size; else it is a Poisson sample.
        records: of whom the loss is: of one record, or of somebody with so many in Poisson samples.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int
    fixed_size: bool = False
    records: int = 1

    @property
    def kind(self) -> Kind:
        """What one of the queries is."""
        return self.sampling_rate, self.noise_multiplier, self.fixed_size, self.records


def merge(history: Sequence[Steps]) -> tuple[Steps, ...]:
    """A history with each kind of step once, in a fixed order; empty entries are dropped."""
    counts: dict[Kind, int] = {}
    for item in history:
        if item.steps > 0:
            counts[item.kind] = counts.get(item.kind, 0) + item.steps
    return tuple(
        Steps(rate, sigma, steps, fixed_size, records)
        for (rate, sigma, fixed_size, records), steps in sorted(counts.items())
    )


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


@dataclass(frozen=True)
class Range:
    """An ε as the auditor computes it.

    Attributes:
        least: what it costs; an honest claim does not lie below.
        most: what an honest accountant that computes less finely would say at most.
        finer: the first on a grid whose cells are 4^n times as narrow, for any whole number n;
            None where no grid is rounded to.
    """

    least: float
    most: float
    finer: Callable[[int], float] | None = None

    def at(self, fineness: int) -> float:
        """What it costs, on a grid whose cells are 4^fineness times as narrow."""
        return self.finer(fineness) if self.finer is not None and fineness else self.least


@dataclass(frozen=True, kw_only=True)
class Accountant:
    """One way from a history and δ to ε, under the name that claims give it.

    Attributes:
        name: Its key in a claim.
        words: By what it computes ε, for the auditor's sentences.
        epsilon: ε of a merged history that is not empty, at a δ in (0, 1).
        leads: Whether its number is the one that is promised.
        expected: Whether every claim must state it; no claim can state one that came later.
    """

    name: str
    words: str
    epsilon: Callable[[tuple[Steps, ...], float], Range]
    leads: bool = False
    expected: bool = False


_REGISTERED: dict[str, Accountant] = {}


def register(accountant: Accountant) -> Accountant:
    """Make an accountant known under its name, which must be free."""
    if accountant.name in _REGISTERED:
        raise ValueError(f"there are two accountants of the name {accountant.name!r}")
    _REGISTERED[accountant.name] = accountant
    return accountant


def accountants() -> tuple[Accountant, ...]:
    """Every accountant: the leading one, then the others by name."""
    _discover()
    return tuple(sorted(_REGISTERED.values(), key=lambda one: (not one.leads, one.name)))


@cache
def _discover() -> None:
    folder = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(import_module(folder).__path__, f"{folder}."):
        import_module(module.name)
