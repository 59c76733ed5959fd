"""Claims as they were written when each accountant had a field of its own."""

from __future__ import annotations

from typing import Any

_FIELDS = {"pld": "epsilon_pld", "rdp": "epsilon_rdp", "rdp-classic": "epsilon_rdp_classic"}


def to_old_form(claim: dict[str, Any]) -> None:
    """Rewrite a claim line in place."""
    for name in ("server", "server_worst_case", "third_party"):
        if (view := claim.get(name)) is None or view["epsilon"] is None:
            continue
        _to_old_fields(view)
        view["epsilon"] = view.pop("epsilon_pld")
        if name == "server_worst_case" or (name == "third_party" and "rounds" not in view):
            del view["accountant"]
    for client in claim["server"]["clients"]:
        _to_old_fields(client)


def _to_old_fields(part: dict[str, Any]) -> None:
    for name, value in part.pop("epsilon").items():
        part[_FIELDS[name]] = value
