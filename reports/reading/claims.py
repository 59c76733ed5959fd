"""The ledger's claim: each ε by accountant, whichever form the ledger has.

Claims once had a field for each of three accountants (`epsilon_pld`, `epsilon_rdp`,
`epsilon_rdp_classic`; in a view `epsilon` was the first of them). `read_claim` lifts that form, so
that nothing behind it knows of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.reading.files import clean, mapping, number

_OLD_FIELDS = {"epsilon_pld": "pld", "epsilon_rdp": "rdp", "epsilon_rdp_classic": "rdp-classic"}
_VIEWS = ("server", "server_worst_case", "third_party")
_NAME_LIMIT = 40


def read_claim(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claim line with every ε by accountant; what has neither form stays as it is."""
    lifted = dict(entry)
    for name in _VIEWS:
        if not isinstance(view := entry.get(name), dict):
            continue
        view = _lifted(view)
        if isinstance(clients := view.get("clients"), list):
            view["clients"] = [_lifted(one) if isinstance(one, dict) else one for one in clients]
        lifted[name] = view
    return lifted


def _lifted(part: Mapping[str, Any]) -> dict[str, Any]:
    stated = part.get("epsilon")
    found = {name: part[old] for old, name in _OLD_FIELDS.items() if old in part}
    if isinstance(stated, dict) or (stated is None and not found):
        return dict(part)
    kept = {key: value for key, value in part.items() if key not in _OLD_FIELDS}
    if stated is not None:
        found["pld"] = stated
        kept.setdefault("accountant", "pld")
    return {**kept, "epsilon": found}


def epsilons(part: Any) -> dict[str, float | None]:
    """Return the ε of a view or client by the accountants' names; None for what is no number."""
    stated = mapping(mapping(part).get("epsilon"))
    return {clean(name, _NAME_LIMIT): number(value) for name, value in stated.items()}


def accountant(view: Any) -> str:
    """Return the name of the accountant whose number a view promises; empty if it names none."""
    return clean(mapping(view).get("accountant"), _NAME_LIMIT)


def headline(view: Any) -> float | None:
    """Return the ε that a view promises, None where it promises none."""
    return epsilons(view).get(accountant(view))
