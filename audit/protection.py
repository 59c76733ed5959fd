"""How an ε is told: rounded so that the text stays true, and from which one on nobody is protected.

The limit is one number for auditor, reports, engine and verifiers. A true claim may be worthless:
a check can confirm ε = 10⁹ to the last digit. So the limit belongs to no check, and changes no
verdict and no exit code. It decides what a reader is told first.

An attacker's odds can grow by a factor of e^ε. At 20 that is 485 million: someone who thought it a
chance of one in a million that a record was used may end up 99.8 % sure. No published reading of ε
calls such a limit protection. The second verifier has the same number, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final, Literal, get_args

NO_PROTECTION_ABOVE: Final = 20.0

Against = Literal["anyone", "the server"]
WORDS: Final[Mapping[Against, str]] = {
    "anyone": "No meaningful protection",
    "the server": "No meaningful protection against the server",
}
WHY: Final = (
    f"An ε above {NO_PROTECTION_ABOVE:g} lets an attacker’s odds grow more than "
    f"{math.exp(NO_PROTECTION_ABOVE) // 1e6:.0f} million times."
)
_CENTS: Final = Decimal("0.01")
_HUGE: Final = 1e9
_VIEWS: Final = ("third_party", "server_worst_case", "server")


def claimed_text(epsilon: float) -> str:
    """ε of a claim in two decimals, rounded up: a claim is never shown smaller than it is."""
    return _in_cents(epsilon, ROUND_CEILING)


def lower_bound_text(epsilon: float) -> str:
    """A lower bound on ε in two decimals, rounded down: what is printed was shown."""
    return _in_cents(epsilon, ROUND_FLOOR)


def _in_cents(epsilon: float, rounding: str) -> str:
    if not epsilon < _HUGE:
        return f"{epsilon:g}"
    return f"{Decimal(repr(float(epsilon))).quantize(_CENTS, rounding):f}"


def protects_nothing(epsilon: float | None) -> bool:
    """Whether an ε is above the limit; None stands for no claim, of which nothing is said."""
    return epsilon is not None and epsilon > NO_PROTECTION_ABOVE


def unprotected(epsilons: Mapping[str, float | None]) -> Against | None:
    """Against whom a claim gives no meaningful protection; None where each ε is low enough.

    Args:
        epsilons: ε by view, as a claim names them. Against the server it is the worst case that
            counts where there is one: what the clients' luck made of it is not public.
    """
    if protects_nothing(epsilons.get("third_party")):
        return "anyone"
    server = epsilons.get("server_worst_case", epsilons.get("server"))
    return "the server" if protects_nothing(server) else None


def unprotected_by(claim: Mapping[str, Any] | None) -> Against | None:
    """The same of a ledger's claim; a view that cannot be read says nothing."""
    views = {view: claim[view] for view in _VIEWS if view in claim} if claim else {}
    return unprotected({view: _promised(stated) for view, stated in views.items()})


def _promised(view: Any) -> float | None:
    stated = view.get("epsilon") if isinstance(view, Mapping) else None
    accountant = view.get("accountant") if isinstance(view, Mapping) else None
    if not isinstance(stated, Mapping) or not isinstance(accountant, str):
        return None
    found = stated.get(accountant)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def against(found: Any) -> Against | None:
    """What a file says of it; None for anything that is none of the words."""
    return next((one for one in get_args(Against) if one == found), None)


def in_front(verdict: str, found: Against | None) -> str:
    """A verdict in one line, behind the warning where there is one."""
    return verdict if found is None else f"{WORDS[found].upper()} · {verdict}"
