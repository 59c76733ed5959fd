"""The units of protection, each with all that belongs to it: the one place that joins them."""

from __future__ import annotations

from dataclasses import dataclass

from dpfedadamw.canaries.client import ClientCanaries
from dpfedadamw.canaries.record import RecordCanaries
from dpfedadamw.canaries.setup import CanarySetup
from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.federation.probes import StepProbe, UpdateProbe
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.units.client import WholeClients
from dpfedadamw.units.none import Nothing
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.record import SingleRecords, WholePeople


@dataclass(frozen=True)
class Unit:
    """One unit of protection beyond its plan and claim, which the privacy plan knows.

    Attributes:
        rounds: Its rounds and evidence.
        canaries: Its canaries; None where nothing is claimed that they could contradict.
        probe: What the auditor may poke at; None where nothing is claimed.
    """

    rounds: type[Unprotected]
    canaries: type[CanarySetup] | None
    probe: type[StepProbe] | type[UpdateProbe] | None


def unit_of(plan: RunPlan) -> Unit:
    """All of the unit that a plan protects."""
    units = {
        SingleRecords: Unit(RecordLevel, RecordCanaries, StepProbe),
        WholePeople: Unit(RecordLevel, None, StepProbe),
        WholeClients: Unit(ClientLevel, ClientCanaries, UpdateProbe),
        Nothing: Unit(Unprotected, None, None),
    }
    return units[type(plan.unit)]
