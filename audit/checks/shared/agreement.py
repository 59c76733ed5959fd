"""What spec and ledger must agree on, whatever the run protects.

The part of the check "promise" that both units share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.reading.ledger import Header, Ledger
from audit.statistics.intervals import relative_difference
from audit.untrusted import fields

EXACT = 1e-9


def differs(left: float | None, right: float) -> bool:
    """Whether two numbers that were written in decimal and read again are not the same."""
    return left is None or relative_difference(left, right) > EXACT


def count_faults(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    """Rounds, local steps, clients a round and clients of spec and ledger are the same.

    Raises:
        FieldError: the spec lacks one of them.
    """
    federation, data = fields.mapping(spec, "federation"), fields.mapping(spec, "data")
    counts = {
        "rounds": (fields.integer(federation, "rounds"), header.rounds),
        "local_steps": (fields.integer(federation, "local_steps"), header.local_steps),
        "clients_per_round": (
            fields.integer(federation, "clients_per_round"),
            header.clients_per_round,
        ),
        "clients": (fields.integer(data, "clients"), header.clients),
    }
    for name, (promised, recorded) in counts.items():
        if promised != recorded:
            reasons.append(f"{name}: the spec says {promised}, the ledger {recorded}")


def claimed_delta(ledger: Ledger, delta: float, reasons: list[str]) -> None:
    """There is a claim, and it is made at the header's δ."""
    if ledger.claim is None:
        reasons.append("there is no claim")
    elif differs(fields.number(ledger.claim, "delta"), delta):
        reasons.append("the claim's delta is not the header's")
