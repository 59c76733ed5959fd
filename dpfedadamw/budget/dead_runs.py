"""What became of a run whose reservation is open: whether it is alive, and what its ledger says.

A run is alive while some process holds its directory. Whatever cannot be seen from here, because it
is on another machine, gone or damaged, keeps all that was reserved for it.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from dpfedadamw.budget.charges import Cost, charged
from dpfedadamw.budget.database import SETTLED, STARTING, Reservation
from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.ledger import GENESIS, canonical
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import MOST_TEXT_BYTES, parse

Held = Callable[[Path], bool]


class Condition(StrEnum):
    """What is known of a reservation's run."""

    settled = "settled"
    starting = "starting"
    running = "running"
    stopped = "stopped"
    never_began = "never began"
    elsewhere = "on another machine"
    gone = "directory gone"
    unreadable = "ledger unreadable"


def examine(one: Reservation, is_held: Held) -> tuple[Condition, Cost]:
    """What is known of a reservation's run, and what it must be counted at.

    Args:
        one: The reservation.
        is_held: Whether some process holds a run directory, as `storage.lock.is_held` says.
    """
    if one.state == SETTLED:
        return Condition.settled, one.cost
    if one.machine != this_machine():
        return Condition.elsewhere, one.cost
    directory = Path(one.directory)
    # While a run starts, its folder is hidden under this name; it is there under one of the two.
    if one.state == STARTING and is_held(hidden(directory)):
        return Condition.starting, one.cost
    if is_held(directory):
        return Condition.running, one.cost
    try:
        directory.stat()
    except FileNotFoundError:
        # A run that starts asks for its reservation once more before it spends anything.
        if one.state == STARTING:
            return Condition.never_began, ()
        return Condition.gone, one.cost
    except OSError:
        return Condition.unreadable, one.cost
    entries = read_ledger(directory / "ledger.jsonl")
    if not entries or not _belongs(entries[0], one):
        return Condition.unreadable, one.cost
    try:
        return Condition.stopped, charged(entries)
    except (PrivacyError, ValueError, KeyError, TypeError, AttributeError):
        return Condition.unreadable, one.cost


def hidden(directory: Path) -> Path:
    """Where a run's folder lies while it is made."""
    return directory.with_name(f".{directory.name}.starting")


def this_machine() -> str:
    """The name of the machine, without which nobody can tell whether a process is alive."""
    return platform.node()


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """The entries of a ledger whose chain holds, without touching it; none if it does not.

    A last line without its end paid for nothing and is passed over.
    """
    try:
        content = DISK.read(path, MOST_TEXT_BYTES)
    except OSError:
        return []
    entries: list[dict[str, Any]] = []
    previous = GENESIS
    for line in content.split(b"\n")[:-1]:
        try:
            entry = parse(line, path.name)
            unsigned = {key: value for key, value in entry.items() if key != "digest"}
            good = (
                entry["previous"] == previous
                and entry["digest"] == hashlib.sha256(canonical(unsigned)).hexdigest()
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            good = False
        if not good:
            return []
        entries.append(entry)
        previous = hashlib.sha256(line).hexdigest()
    return entries


def _belongs(header: Mapping[str, Any], one: Reservation) -> bool:
    """Whether a ledger is that of the run for which was reserved."""
    noted = header.get("budget")
    return (
        header.get("kind") == "header"
        and header.get("data_sha256") == one.data_sha256
        and isinstance(noted, dict)
        and noted.get("reservation") == one.identifier
    )
