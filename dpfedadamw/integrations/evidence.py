"""Another name of `dpfedadamw.extensions.recorders.evidence`."""

from __future__ import annotations

from dpfedadamw.extensions.recorders.evidence import (
    FORMAT,
    MODULUS,
    SETTINGS,
    Charge,
    EvidenceError,
    EvidenceWriter,
    Loop,
    Stated,
    Step,
    close_paused,
    fingerprint,
)

__all__ = [
    "FORMAT",
    "MODULUS",
    "SETTINGS",
    "Charge",
    "EvidenceError",
    "EvidenceWriter",
    "Loop",
    "Stated",
    "Step",
    "close_paused",
    "fingerprint",
]
