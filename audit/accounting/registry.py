"""The auditor's accountants: each is a file of this folder that registers itself.

A claim states every ε by the names of the engine's accountants. The auditor verifies those of which
it has an accountant of its own under the same name; of the others it says that it cannot.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from audit.accounting.steps import Steps


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
