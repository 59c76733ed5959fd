"""Writes ledger and evidence of a training loop that is not this package's own: NumPy alone.

`docs/evidence-format.md` is the format. Any program that trains by noised sums of clipped gradients
can use the writer: it calls `charge` before each noised sum is drawn, `step` after the parameters
have moved, and `close` once it is over. Nothing here imports torch.

Everything that `step` is given is private. It goes into ``evidence/`` (mode 0700, files 0600) and
nowhere else.
"""

from __future__ import annotations

from dpfedadamw.extensions.recorders.evidence.arrays import MODULUS, fingerprint
from dpfedadamw.extensions.recorders.evidence.declared import (
    SETTINGS,
    Charge,
    EvidenceError,
    Loop,
    Stated,
    Step,
)
from dpfedadamw.extensions.recorders.evidence.documents import FORMAT
from dpfedadamw.extensions.recorders.evidence.writer import EvidenceWriter, close_paused

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
