"""What a gate's ledger says, and whether it holds: for the operator and for an auditor.

Nothing here writes, and the chain is followed without `privacy.ledger`, which wrote it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw.extensions.gate import book, spending
from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.mechanism import SENSITIVITY
from dpfedadamw.extensions.gate.settings import Settings
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import ForeignFileError, parse

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

_GENESIS = "0" * 64
# How far the two accountants' ε may be apart, as a share and at least.
_TOLERANCE, _LEAST = 1e-3, 1e-4
# A rate is read from so many days.
_WINDOW = timedelta(days=30)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What was spent.

    Attributes:
        epsilon: ε of all releases together.
        jobs: By job: releases, ε of these alone, first and last time.
        left: How many more releases the budget allows at today's σ.
        ends: When it ends at the rate of the last 30 days; None where no rate is known.
    """

    epsilon: float
    releases: int
    jobs: Mapping[str, Mapping[str, Any]]
    left: int
    ends: str | None


def standing(settings: Settings, charges: list[dict[str, Any]]) -> Standing:
    """What charges amount to, in all and by job."""
    delta = settings.delta
    by_job: dict[str, list[dict[str, Any]]] = {}
    for charge in charges:
        by_job.setdefault(charge["job"], []).append(charge)
    spent = [float(charge["noise_multiplier"]) for charge in charges]
    left = spending.releases_left(spent, settings.noise_multiplier, settings.epsilon, delta)
    return Standing(
        epsilon=spending.epsilon_of(spent, delta),
        releases=len(charges),
        jobs={
            job: {
                "releases": len(own),
                "epsilon_alone": spending.epsilon_of(
                    [float(one["noise_multiplier"]) for one in own], delta
                ),
                "first": own[0]["time"],
                "last": own[-1]["time"],
            }
            for job, own in by_job.items()
        },
        left=left,
        ends=_end(charges, left),
    )


def _end(charges: list[dict[str, Any]], left: int) -> str | None:
    """When so many more releases are made at the rate of the last 30 days of the ledger."""
    times = [datetime.fromisoformat(charge["time"]) for charge in charges]
    recent = [time for time in times if time >= times[-1] - _WINDOW]
    if len(recent) < 2 or recent[-1] == recent[0]:
        return None
    pace = (recent[-1] - recent[0]) / (len(recent) - 1)
    try:
        return f"{(times[-1] + left * pace).astimezone(UTC):%Y-%m-%d %H:%M UTC}"
    except OverflowError:
        return None


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger whose chain holds.

    Raises:
        GateError: If it cannot be read, or a line was changed, removed or added.
    """
    try:
        content = DISK.read(path)
    except OSError as error:
        raise GateError(
            f"{path}: cannot be read ({error.strerror}); begin one with: dpfedadamw gate init"
        ) from error
    found: list[dict[str, Any]] = []
    previous = _GENESIS
    # What follows the last line's end was torn by a crash, and paid for nothing.
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        where = f"{path}, line {number}"
        try:
            entry = parse(line, where)
        except ForeignFileError as error:
            raise GateError(str(error)) from error
        if not isinstance(entry, dict) or entry.get("previous") != previous:
            raise GateError(f"{where}: the hash chain is broken: a line was changed or removed")
        unsigned = {name: value for name, value in entry.items() if name != "digest"}
        plain = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if entry.get("digest") != hashlib.sha256(plain.encode()).hexdigest():
            raise GateError(f"{where}: the hash chain is broken: the line was changed")
        previous = hashlib.sha256(line).hexdigest()
        found.append(entry)
    return found


def charges_of(entries: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """The charges of a ledger, in their form.

    Raises:
        GateError: If one is not numbered in order, or states another sensitivity than 2C.
    """
    charges = [entry for entry in entries if entry.get("kind") == book.CHARGE]
    for number, charge in enumerate(charges, start=1):
        where = f"{path}, release {number}"
        try:
            clip, sigma = float(charge["clip"]), float(charge["noise_multiplier"])
            datetime.fromisoformat(charge["time"])
            good = math.isfinite(sigma) and sigma > 0 and isinstance(charge["job"], str)
        except (KeyError, TypeError, ValueError) as error:
            raise GateError(f"{where}: is no charge of a gate ({type(error).__name__})") from error
        if not good or charge.get("release") != number:
            raise GateError(f"{where}: charges are not numbered in order")
        if charge.get("sensitivity") != SENSITIVITY * clip:
            raise GateError(f"{where}: states another sensitivity than 2C")
    return charges


def verify(settings: Settings, public: ec.EllipticCurvePublicKey) -> list[tuple[str, bool, str]]:
    """Check chain, signatures, rollback, budget and ε; each row is what, whether it holds, why."""
    path = settings.ledger / "ledger.jsonl"
    rows: list[tuple[str, bool, str]] = []
    try:
        entries = read_entries(path)
        charges = charges_of(entries, path)
    except GateError as error:
        return [("chain", False, str(error))]
    rows.append(("chain", True, f"{len(entries)} lines, {len(charges)} releases"))
    for what, where in (("head", settings.ledger / "head.json"), ("anchor", settings.anchor)):
        try:
            head = book.read_head(where, public)
            content = DISK.read(path)
            book.refuse_rollback(content, head, path, where)
            more = len(content) - head.size
            said = f"; {more} bytes follow that a crash left unsigned" if more else ""
            rows.append((what, True, f"signed, and the ledger goes as far{said}"))
        except GateError as error:
            rows.append((what, False, str(error)))
    rows.append(_header(settings, entries))
    rows.append(_epsilon(settings, [float(one["noise_multiplier"]) for one in charges]))
    return rows


def _header(settings: Settings, entries: list[dict[str, Any]]) -> tuple[str, bool, str]:
    first = entries[0] if entries and entries[0].get("kind") == book.HEADER else {}
    wanted = {"unit": settings.unit, "epsilon": settings.epsilon, "delta": settings.delta}
    for name, value in wanted.items():
        if first.get(name) != value:
            said = f"{name}: the ledger says {first.get(name)}, {settings.path} says {value}"
            return ("settings", False, said)
    return ("settings", True, "unit and budget are those that the ledger was begun with")


def _epsilon(settings: Settings, spent: list[float]) -> tuple[str, bool, str]:
    """ε by both accountants, against each other and the budget."""
    from dpfedadamw.accounting.dp_accounting_check import Composed, checked
    from dpfedadamw.accounting.registry import leading

    if not spent:
        return ("ε", True, "nothing was released")
    ours = spending.epsilon_of(spent, settings.delta)
    view = {"epsilon": {leading()[0].name: ours}, "accountant": leading()[0].name}
    composed = Composed("server", spending.compositions(spent))
    theirs = checked({"delta": settings.delta, "server": view}, composed)["epsilon"]
    if theirs is None:
        return ("ε", False, f"{ours:.4f}; dp-accounting has no number for it")
    said = f"{ours:.4f}, by dp-accounting {theirs:.4f}, of {settings.epsilon:g}"
    agrees = abs(ours - theirs) <= max(_TOLERANCE * theirs, _LEAST)
    return ("ε", agrees and ours <= settings.epsilon, said)
