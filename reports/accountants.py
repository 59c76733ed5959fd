"""What reports say of each accountant: its label, what its number is for, and its source.

Numbers come keyed by the accountants' names. One that is not described here is shown by its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Accountant:
    """How an accountant is presented.

    Attributes:
        label: Its name in columns and on axes.
        title: Its name as a way to convert into ε and δ.
        use: What its number is for.
        source: Where it is published.
    """

    label: str
    title: str
    use: str
    source: str


ACCOUNTANTS = {
    "pld": Accountant(
        label="PLD",
        title="PLD",
        use="Headline: numerical composition of privacy loss distributions, tight.",
        source="Koskela, Jälkö & Honkela 2020; Doroshenko et al. 2022",
    ),
    "rdp": Accountant(
        label="RDP",
        title="RDP, improved",
        use="Beside it: Rényi composition with the improved conversion; never below the truth.",
        source="Mironov 2017; Canonne, Kamath & Steinke 2020",
    ),
    "rdp-classic": Accountant(
        label="RDP, classic",
        title="RDP, classic",
        use="Only to reproduce a paper's number: the original, looser conversion.",
        source="Mironov 2017, Proposition 3",
    ),
}


def described(name: str) -> Accountant:
    """Return how an accountant is presented; one that is not known by its name alone."""
    unknown = Accountant(
        label=name, title=name, use="Stated in the ledger beside the others.", source="unstated"
    )
    return ACCOUNTANTS.get(name, unknown)


def ordered(names: Iterable[str]) -> list[str]:
    """Return names each once: those that are described in their order, then the others."""
    found = set(names)
    return [*(name for name in ACCOUNTANTS if name in found), *sorted(found - ACCOUNTANTS.keys())]
