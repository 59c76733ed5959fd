"""The gallery: every fault that the audit must catch, in rooms."""

from __future__ import annotations

from tests.faults import (
    accounting_faults,
    adaptive_faults,
    client_level_faults,
    clipping_faults,
    ledger_faults,
    noise_faults,
    optimiser_faults,
    record_faults,
    sampling_faults,
    sparse_faults,
    upload_faults,
)
from tests.faults.declaring import Fault, Room

ROOMS: tuple[Room, ...] = (
    noise_faults.ROOM,
    clipping_faults.ROOM,
    sampling_faults.ROOM,
    accounting_faults.ROOM,
    ledger_faults.ROOM,
    optimiser_faults.ROOM,
    upload_faults.ROOM,
    record_faults.ROOM,
    client_level_faults.ROOM,
    sparse_faults.ROOM,
    adaptive_faults.ROOM,
)
GALLERY: tuple[Fault, ...] = tuple(fault for room in ROOMS for fault in room.faults)
