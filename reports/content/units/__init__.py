"""The units of protection, records, people and clients, and recorded loops: each says its own."""

from __future__ import annotations

from reports.content.units.base import ClientLoss, Reader, Unit, View
from reports.content.units.client import CLIENT
from reports.content.units.loop import EXCHANGED_ROUNDS, LOOP, ROUNDS
from reports.content.units.person import PERSON, PERSON_BY_SAMPLER
from reports.content.units.record import BY_SAMPLER, RECORD
from reports.source import RunSource

__all__ = ["CLIENT", "LOOP", "RECORD", "ClientLoss", "Reader", "Unit", "View", "unit_of"]


def unit_of(source: RunSource) -> Unit:
    """Return the unit that a run protects, and how its records are drawn."""
    if source.recorded and source.protects_clients:
        exchanged = source.header.get("adjacency") == "replace-one"
        return EXCHANGED_ROUNDS if exchanged else ROUNDS
    if source.recorded:
        return LOOP
    if source.protects_clients:
        return CLIENT
    if source.header.get("unit") == "person":
        return PERSON_BY_SAMPLER.get(str(source.header.get("sampling")), PERSON)
    return BY_SAMPLER.get(str(source.header.get("sampling")), RECORD)
