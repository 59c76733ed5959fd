"""The units of protection, each with all that belongs to it: the one place that joins them."""

from __future__ import annotations

from dataclasses import dataclass

from dpfedadamw.canaries.client import ClientCanaries
from dpfedadamw.canaries.record import RecordCanaries
from dpfedadamw.canaries.setup import CanarySetup
from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.units.client import WholeClients
from dpfedadamw.privacy.units.none import Nothing
from dpfedadamw.privacy.units.record import SingleRecords


@dataclass(frozen=True)
class Unit:
    """One unit of protection beyond its plan and claim, which the privacy plan knows.

    Attributes:
        rounds: Its rounds, evidence and probe.
        canaries: Its canaries; None where nothing is claimed that they could contradict.
    """

    rounds: type[Unprotected]
    canaries: type[CanarySetup] | None


def unit_of(plan: PrivacyPlan) -> Unit:
    """All of the unit that a plan protects."""
    units = {
        SingleRecords: Unit(RecordLevel, RecordCanaries),
        WholeClients: Unit(ClientLevel, ClientCanaries),
        Nothing: Unit(Unprotected, None),
    }
    return units[type(plan.unit)]
