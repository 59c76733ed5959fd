"""What a run protects: single records, whole clients, or nothing at all; and whose loop it is.

The ledger's header names a unit, and all that differs between units in how a run is read hangs on
the object that `named` returns. Which checks a unit has, the checks say themselves
(`audit.checks.base.register`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from audit.reading.client_evidence import UpdateRound, read_update_round
from audit.reading.evidence import Layout, RoundEvidence, read_round
from audit.reading.loop_evidence import LoopEvidence, read_loop_round
from audit.untrusted.archives import Arrays, Floats


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One unit of protection, as the auditor reads it.

    Attributes:
        name: the word of spec and ledger.
        claims_privacy: whether such a run claims privacy for anybody.
        declared: fields that the ledger's header must have for that claim.
        whole_clients: whether one update of a client is the query, and one client the neighbour.
        read_round: one round's evidence from its archive.
        private_numbers: arrays of such evidence that no other file may repeat.
    """

    name: str
    claims_privacy: bool
    declared: frozenset[str]
    whole_clients: bool
    read_round: Callable[[Arrays, Layout], Any]
    private_numbers: Callable[[Any], Mapping[str, Floats]]


def _of_records(evidence: RoundEvidence) -> Mapping[str, Floats]:
    clean = {} if evidence.second_moment is None else {"v_clean": evidence.second_moment.clean}
    return {
        "raw_norms": evidence.raw_norms,
        "noise_sum_squares": evidence.noise_sum_squares,
        "noise_sample": evidence.noise_sample,
        "clean_sum_squares": evidence.clean_sum_squares,
        **clean,
    }


def _of_updates(evidence: UpdateRound) -> Mapping[str, Floats]:
    return {
        "raw_norms": evidence.raw_norms,
        "noise_sum_squares": evidence.noise_sum_squares,
        "noise_sample": evidence.noise_sample,
        "clean_sample": evidence.clean_sample,
    }


def _of_loops(evidence: LoopEvidence) -> Mapping[str, Floats]:
    return {
        "raw_norms": evidence.raw_norms,
        "noise_sum_squares": evidence.noise_sum_squares,
        "noise_sample": evidence.noise_sample,
        "clean_sum_squares": evidence.clean_sum_squares,
        "clean_sample": evidence.clean,
    }


_MECHANISM = frozenset(
    {"adjacency", "client_sampling", "sampling", "delta", "clipping_norm", "noise_multiplier"}
)
RECORD = Unit(
    name="record",
    claims_privacy=True,
    declared=_MECHANISM | {"expected_batch_size"},
    whole_clients=False,
    read_round=read_round,
    private_numbers=_of_records,
)
# A person takes a record's place: what the ledger and the evidence count of records, they count of
# people, and of records by themselves what they say beside it.
PERSON = Unit(
    name="person",
    claims_privacy=True,
    declared=RECORD.declared | {"rows", "records_per_person", "clients_per_person"},
    whole_clients=False,
    read_round=read_round,
    private_numbers=_of_records,
)
# The batches of the local steps play no part in a claim on whole clients.
CLIENT = Unit(
    name="client",
    claims_privacy=True,
    declared=_MECHANISM | {"participation", "noise_added_by"},
    whole_clients=True,
    read_round=read_update_round,
    private_numbers=_of_updates,
)
NONE = Unit(
    name="none",
    claims_privacy=False,
    declared=frozenset(),
    whole_clients=False,
    read_round=read_round,
    private_numbers=_of_records,
)
# Single records too, in a training loop that is not the engine's: its header names a producer.
LOOP = Unit(
    name="loop",
    claims_privacy=True,
    declared=RECORD.declared,
    whole_clients=False,
    read_round=read_loop_round,
    private_numbers=_of_loops,
)
UNITS = {unit.name: unit for unit in (RECORD, PERSON, CLIENT, NONE)}
EVERY_UNIT = {**UNITS, LOOP.name: LOOP}
