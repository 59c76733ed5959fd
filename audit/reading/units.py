"""What a run protects: single records, whole clients, or nothing at all; and whose loop it is.

The ledger's header names a unit, and all that differs between units in how a run is read hangs on
the object that `named` returns. Which checks a unit has, the checks say themselves
(`audit.checks.base.register`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from audit.reading.evidence import Layout
from audit.untrusted.archives import Arrays, Floats


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One unit of protection, as the auditor reads it.

    Attributes:
        name: the word of spec and ledger.
        claims_privacy: whether such a run claims privacy for anybody.
        declared: fields that the ledger's header must have for that claim.
        whole_clients: whether one update of a client is the query, and one client the neighbour.
        evidence: the module of `audit.reading` that reads a round's evidence, loaded for runs of
            this unit alone.
    """

    name: str
    claims_privacy: bool
    declared: frozenset[str]
    whole_clients: bool
    evidence: str

    def read_round(self, arrays: Arrays, layout: Layout) -> Any:
        """One round's evidence from its archive.

        Raises:
            FieldError: an array is missing, or has another type, shape or range.
        """
        return self._module().read_round(arrays, layout)

    def private_numbers(self, evidence: Any) -> Mapping[str, Floats]:
        """Arrays of such evidence that no other file may repeat."""
        found: Mapping[str, Floats] = self._module().private_numbers(evidence)
        return found

    def _module(self) -> ModuleType:
        return import_module(f"audit.reading.{self.evidence}")


_MECHANISM = frozenset(
    {"adjacency", "client_sampling", "sampling", "delta", "clipping_norm", "noise_multiplier"}
)
RECORD = Unit(
    name="record",
    claims_privacy=True,
    declared=_MECHANISM | {"expected_batch_size"},
    whole_clients=False,
    evidence="evidence",
)
# A person takes a record's place: the ledger and the evidence count people instead of records, and
# what they state in addition is about single records.
PERSON = Unit(
    name="person",
    claims_privacy=True,
    declared=RECORD.declared | {"rows", "records_per_person", "clients_per_person"},
    whole_clients=False,
    evidence="evidence",
)
# The batches of the local steps play no part in a claim on whole clients.
CLIENT = Unit(
    name="client",
    claims_privacy=True,
    declared=_MECHANISM | {"participation", "noise_added_by"},
    whole_clients=True,
    evidence="client_evidence",
)
NONE = Unit(
    name="none",
    claims_privacy=False,
    declared=frozenset(),
    whole_clients=False,
    evidence="evidence",
)
# Single records too, in a training loop that is not the engine's: its header names a producer.
LOOP = Unit(
    name="loop",
    claims_privacy=True,
    declared=RECORD.declared,
    whole_clients=False,
    evidence="loop_evidence",
)
UNITS = {unit.name: unit for unit in (RECORD, PERSON, CLIENT, NONE)}
EVERY_UNIT = {**UNITS, LOOP.name: LOOP}
