"""What spec and ledger must agree on, whatever the run protects.

The part of the check "promise" that both units share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import claimed_headline
from audit.statistics.intervals import relative_difference
from audit.untrusted import fields

EXACT = 1e-9


def differs(left: float | None, right: float) -> bool:
    """Whether two numbers that were written in decimal and read again are not the same."""
    return left is None or relative_difference(left, right) > EXACT


def _count_faults(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
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


def agree_on_unit(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> bool:
    """Whether spec and ledger name one unit of protection; counts that differ become reasons.

    Raises:
        FieldError: the spec lacks a field.
    """
    _count_faults(spec, header, reasons)
    unit = fields.text(fields.mapping(spec, "privacy"), "unit")
    if unit != header.unit.name:
        reasons.append(f"unit: the spec says {unit}, the ledger {header.unit.name}")
    return unit == header.unit.name


def number_faults(numbers: Iterable[tuple[str, float, float | None]], reasons: list[str]) -> None:
    """Names, numbers of the spec and the ledger's numbers are the same."""
    for name, promised, noted in numbers:
        if differs(noted, promised):
            reasons.append(f"{name}: the spec says {promised:g}, the ledger {noted}")


def word_faults(words: Iterable[tuple[str, str, str | None]], reasons: list[str]) -> None:
    """Names, words of the spec and the ledger's words are the same."""
    for name, promised, noted in words:
        if promised != noted:
            reasons.append(f"{name}: the spec says {promised}, the ledger {noted}")


def target_fault(
    spec: Mapping[str, Any], ledger: Ledger, towards: str, reasons: list[str], why: str = ""
) -> None:
    """The epsilon claimed towards somebody does not exceed the spec's target, if it has one.

    Raises:
        FieldError: the claim lacks that epsilon.
    """
    privacy = fields.mapping(spec, "privacy")
    if privacy.get("target_epsilon") is None or ledger.claim is None:
        return
    target = fields.positive(privacy, "target_epsilon")
    if claimed_headline(fields.mapping(ledger.claim, towards)) > target * 1.005 + 1e-3:
        reasons.append(f"the claimed epsilon exceeds the promised target of {target:g}{why}")


def divisor_fault(
    rounds: Iterable[tuple[int, Any]], promised: float, what: str, reasons: list[str]
) -> None:
    """Noisy sums are divided by the public number, or else the sensitivity is another one.

    Args:
        rounds: number and evidence of every round, of any unit.
        promised: the public number.
        what: what is said of the first round in which something else was used.
        reasons: gets that.
    """
    for index, evidence in rounds:
        if np.any(np.abs(evidence.divisor / promised - 1.0) > EXACT):
            reasons.append(f"round {index}: {what}")
            break


def claimed_delta(ledger: Ledger, delta: float, reasons: list[str]) -> None:
    """There is a claim, and it is made at the header's δ."""
    if ledger.claim is None:
        reasons.append("there is no claim")
    elif differs(fields.number(ledger.claim, "delta"), delta):
        reasons.append("the claim's delta is not the header's")
