"""What a gate's ledger says, and whether it holds: for the operator and for an auditor.

Nothing here writes. The auditor's reader takes the ledger apart; it shares no code with what wrote
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from audit.extensions.gate import judge_gate
from audit.extensions.gate.reading import Charge, Header, read_ledger
from audit.verdict import Verdict
from dpfedadamw.extensions.gate import spending
from dpfedadamw.extensions.gate.errors import GateError
from dpfedadamw.extensions.gate.settings import Settings
from dpfedadamw.storage.disk import DISK

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
        ends: When it ends at the rate of the 30 days before, or when the last release was, if none
            is left; None where no rate is known.
    """

    epsilon: float
    releases: int
    jobs: Mapping[str, Mapping[str, Any]]
    left: int
    ends: str | None


def standing(settings: Settings, charges: Sequence[Charge], at: datetime) -> Standing:
    """What charges amount to, in all and by job.

    Args:
        settings: The gate's.
        charges: In order, none later than the moment.
        at: The moment that it is about, in UTC.
    """
    delta = settings.delta
    by_job: dict[str, list[Charge]] = {}
    for charge in charges:
        by_job.setdefault(charge.job, []).append(charge)
    spent = [charge.noise_multiplier for charge in charges]
    left = spending.releases_left(spent, settings.noise_multiplier, settings.epsilon, delta)
    return Standing(
        epsilon=spending.epsilon_of(spent, delta),
        releases=len(charges),
        jobs={
            job: {
                "releases": len(own),
                "epsilon_alone": spending.epsilon_of([one.noise_multiplier for one in own], delta),
                "first": own[0].time,
                "last": own[-1].time,
            }
            for job, own in by_job.items()
        },
        left=left,
        ends=_end(charges, left, at),
    )


def _end(charges: Sequence[Charge], left: int, at: datetime) -> str | None:
    """When so many more releases are made at the rate of the 30 days before a moment."""
    times = [datetime.fromisoformat(charge.time) for charge in charges]
    recent = [time for time in times if time >= at - _WINDOW]
    try:
        if times and not left:
            end = times[-1]
        elif recent:
            end = at + left * (_WINDOW / len(recent))
        else:
            return None
    except OverflowError:
        return None
    return f"{end.astimezone(UTC):%Y-%m-%d %H:%M UTC}"


def charges_of(settings: Settings) -> tuple[Charge, ...]:
    """The charges of a ledger, in order.

    Raises:
        GateError: If it cannot be read, or a line was changed, removed or added.
    """
    path = settings.ledger / "ledger.jsonl"
    try:
        found = read_ledger(DISK.read(path))
    except OSError as error:
        raise GateError(
            f"{path}: cannot be read ({error.strerror}); begin one with: dpfedadamw gate init"
        ) from error
    if found.faults:
        raise GateError(f"{path}, line {found.faults[0].line}: {found.faults[0].what}")
    return found.charges


def verify(settings: Settings, public: bytes) -> list[tuple[str, bool, str]]:
    """The auditor's checks, then the settings and ε by dp-accounting.

    Args:
        settings: Where ledger and anchor are.
        public: The gate's public key, PEM.

    Returns:
        Rows of what was checked, whether it holds, and what was found.
    """
    rows, anchor = [], None
    try:
        DISK.read(settings.anchor)
        anchor = settings.anchor
    except OSError as error:
        rows.append(("anchor", False, f"{settings.anchor}: cannot be read ({error.strerror})"))
    good = (Verdict.PASS, Verdict.NOT_APPLICABLE)
    rows += [
        (found.name, found.verdict in good, found.measurement)
        for found in judge_gate(settings.ledger, public, anchor).findings
    ]
    try:
        ledger = read_ledger(DISK.read(settings.ledger / "ledger.jsonl"))
    except OSError:
        return rows
    rows.append(_header(settings, ledger.header))
    rows.append(_epsilon(settings, [one.noise_multiplier for one in ledger.charges]))
    return rows


def _header(settings: Settings, first: Header | None) -> tuple[str, bool, str]:
    for name in ("unit", "epsilon", "delta"):
        stated, wanted = getattr(first, name, None), getattr(settings, name)
        if stated != wanted:
            said = f"{name}: the ledger says {stated}, {settings.path} says {wanted}"
            return ("settings", False, said)
    return ("settings", True, "unit and budget are those that the ledger was begun with")


def _epsilon(settings: Settings, spent: list[float]) -> tuple[str, bool, str]:
    """ε by the gate's accountant against dp-accounting's."""
    from dpfedadamw.accounting.dp_accounting_check import Composed, checked
    from dpfedadamw.accounting.registry import leading

    if not spent:
        return ("dp-accounting", True, "nothing was released")
    ours = spending.epsilon_of(spent, settings.delta)
    view = {"epsilon": {leading()[0].name: ours}, "accountant": leading()[0].name}
    composed = Composed("server", spending.compositions(spent))
    theirs = checked({"delta": settings.delta, "server": view}, composed)["epsilon"]
    if theirs is None:
        return ("dp-accounting", False, f"{ours:.4f}; dp-accounting has no number for it")
    agrees = abs(ours - theirs) <= max(_TOLERANCE * theirs, _LEAST)
    return ("dp-accounting", agrees, f"ε = {theirs:.4f}; the gate's accountant says {ours:.4f}")
