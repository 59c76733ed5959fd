"""The ledger's claim as the auditor reads it: each ε by accountant, whoever wrote the claim.

Claims once had a field for each of three accountants (`epsilon_pld`, `epsilon_rdp`,
`epsilon_rdp_classic`; in a view `epsilon` was the first of them). `read_claim` lifts that form, so
that nothing behind it knows of two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from audit.untrusted import fields
from audit.untrusted.fields import FieldError

OLD_FIELDS = {"epsilon_pld": "pld", "epsilon_rdp": "rdp", "epsilon_rdp_classic": "rdp-classic"}
_VIEWS = ("server", "server_worst_case", "third_party")
_MOST_ACCOUNTANTS = 100
_NAME = r"[a-z0-9][a-z0-9.-]{0,39}"


def read_claim(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The claim line with every ε by accountant; what has neither form stays as it is."""
    lifted = dict(entry)
    for name in _VIEWS:
        if not isinstance(view := entry.get(name), dict):
            continue
        view = _lifted(view)
        if isinstance(clients := view.get("clients"), list):
            view["clients"] = [
                _lifted(client) if isinstance(client, dict) else client for client in clients
            ]
        lifted[name] = view
    return lifted


def _lifted(part: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in part.items() if key not in OLD_FIELDS}
    found = {name: part[old] for old, name in OLD_FIELDS.items() if old in part}
    stated = kept.get("epsilon")
    if isinstance(stated, dict) or (stated is not None and "pld" in found):
        return dict(part)
    if stated is not None:
        found["pld"] = stated
        kept.setdefault("accountant", "pld")
    return {**kept, "epsilon": found} if found else dict(part)


def epsilons(part: Mapping[str, Any]) -> dict[str, float]:
    """Each ε of a view or client by the accountant's name.

    Raises:
        FieldError: it is no mapping from names to numbers, or numbers stand beside it as well.
    """
    beside = next((old for old in OLD_FIELDS if old in part), None)
    if beside is not None:
        raise FieldError(f"{beside} stands beside epsilon, which holds every accountant's number")
    stated = fields.mapping(part, "epsilon")
    if not 1 <= len(stated) <= _MOST_ACCOUNTANTS:
        raise FieldError("epsilon holds no accountant's number, or too many")
    if not all(re.fullmatch(_NAME, str(name)) for name in stated):
        raise FieldError("epsilon names an accountant in another form than a name's")
    return {name: fields.number(stated, name) for name in stated}


def headline(view: Mapping[str, Any]) -> float:
    """The ε that a view promises: that of the accountant which it names.

    Raises:
        FieldError: as for `epsilons`, or it names none whose number it states.
    """
    return fields.number(epsilons(view), fields.text(view, "accountant"))
