"""The checks of the audit, each in a file that registers it.

A new check is a new file in this folder, or in `record` or `client` where the other unit of
protection has another law: it is found by being there. A run is asked the questions of its own unit
alone, so the other units' folders are not loaded for it, and `canaries` only where some were
planted. `shared` has what several checks need.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    conclude,
    listed,
    register,
    registered,
)
from audit.reading.ledger import Header
from audit.reading.units import LOOP, RECORD, Unit

_FOLDERS = {
    **dict.fromkeys((unit.name for unit in AT_RECORD_LEVEL), "record"),
    **dict.fromkeys((unit.name for unit in AT_CLIENT_LEVEL), "client"),
    LOOP.name: "loop",
}
_OF_AUDIT_RUNS = f"{__name__}.canaries"


@cache
def checks_of(unit: Unit) -> tuple[Check, ...]:
    """The checks of a unit of protection, in the order in which they are run and reported."""
    import_module(_OF_AUDIT_RUNS)
    return _of_every_run(unit)


def checks_for(header: Header | None) -> tuple[Check, ...]:
    """The checks that concern a run with this ledger header.

    Where the header cannot be read, those of single records; they say so.
    """
    unit = header.unit if header is not None else RECORD
    planted = header is not None and header.canaries is not None
    asked = checks_of(unit) if planted else _of_every_run(unit)
    return tuple(check for check in asked if check.concerns(header))


def _of_every_run(unit: Unit) -> tuple[Check, ...]:
    """The unit's checks; that of planted records is among them if somebody asked for it."""
    _load(unit.name)
    return registered(unit)


@cache
def _load(unit: str) -> None:
    own = import_module(f"{__name__}.{_FOLDERS[unit]}")
    for package, path in ((__name__, __path__), (own.__name__, own.__path__)):
        for module in iter_modules(path, f"{package}."):
            if not module.ispkg and module.name != _OF_AUDIT_RUNS:
                import_module(module.name)


__all__ = ["Check", "Judgement", "checks_for", "checks_of", "conclude", "listed", "register"]
