"""The checks of the audit, each in a file of its own that registers it.

A new check is a new file in this folder, or in `record` or `client` where the other unit of
protection has another law: it is found by being there.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from audit.checks.base import Check, Judgement, conclude, listed, register, registered
from audit.reading.ledger import Header
from audit.reading.units import RECORD, Unit


@cache
def checks_of(unit: Unit) -> tuple[Check, ...]:
    """The checks of a unit of protection, in the order in which they are run and reported."""
    for module in walk_packages(__path__, f"{__name__}."):
        import_module(module.name)
    return registered(unit)


def checks_for(header: Header | None) -> tuple[Check, ...]:
    """The checks that concern a run with this ledger header.

    Where the header cannot be read, those of single records; they say so.
    """
    unit = header.unit if header is not None else RECORD
    return tuple(check for check in checks_of(unit) if check.concerns(header))


__all__ = ["Check", "Judgement", "checks_for", "checks_of", "conclude", "listed", "register"]
