"""Where people are protected: who holds whom, and which records stand for a person in a batch.

Part of the check "partition". The ledger counts people where it else counts records; the evidence
tells people apart by keyed digests, and says in how many batches each person and each record was.
"""

from __future__ import annotations

import numpy as np

from audit.checks.shared.drawn_partition import by_first_record
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import Holdings, Records
from audit.reading.ledger import Header
from audit.untrusted.archives import Integers


def people_faults(bundle: Bundle, holdings: Holdings, records: Records, reasons: list[str]) -> str:
    """Note what is wrong with who holds whom; what a pass then says.

    Args:
        bundle: a run that protects people.
        holdings: who works on which rows.
        records: which training records there are.
        reasons: gets what is wrong.

    Raises:
        AuditError: whom records are about is not recorded.
    """
    header, stored = bundle.header, bundle.people().stored
    if len(stored) != records.records:
        raise UnverifiedError("evidence/people.npz does not speak of the records that were read")
    person, client = np.unique(np.stack([stored[records.rows], holdings.client_of_record]), axis=1)
    counts = np.bincount(client, minlength=header.clients)
    for one in np.flatnonzero(counts[: header.clients] != np.asarray(header.records)):
        reasons.append(f"client {one} does not hold the declared number of people")
    at = np.unique(person, return_counts=True)[1]
    most = header.clients_per_person or 1
    over = int(np.count_nonzero(at > most))
    if over:
        reasons.append(
            f"people have records at more clients than the {most} that the claim counts together"
        )
    participations = sum(
        _participations(bundle, holdings, stored, index, reasons)
        for index in range(len(bundle.readable_ledger.rounds))
    )
    return (
        f"nobody has records at more than {most} of the clients; in {participations} "
        f"participations each person in a batch stood there with all of their records, or "
        f"{header.records_per_person} of them"
    )


def _participations(
    bundle: Bundle, holdings: Holdings, stored: Integers, index: int, reasons: list[str]
) -> int:
    """Judge one round's participations; returns how many there are."""
    header: Header = bundle.header
    evidence, most = bundle.round_evidence(index), header.records_per_person or 1
    if not len(evidence.clients):
        return 0
    if evidence.rows_used is None:
        raise UnverifiedError(f"round {index}: the records that it used are not recorded")
    of_people = of_rows = 0
    for client in evidence.clients.tolist():
        where = f"round {index}, client {client}"
        if client >= len(holdings.counts):
            continue
        own = holdings.of(client)
        numbers = by_first_record(stored[own])
        people = int(numbers.max(initial=-1)) + 1
        drawn = evidence.inclusions[of_people : of_people + people]
        used = evidence.rows_used[of_rows : of_rows + len(own)]
        of_people, of_rows = of_people + people, of_rows + len(own)
        if len(drawn) != people or len(used) != len(own):
            reasons.append(f"{where}: not the use of every person and record is counted")
            continue
        each = np.minimum(np.bincount(numbers, minlength=people), most)
        stood = np.bincount(numbers, weights=used, minlength=people)
        if np.any(stood > each * drawn):
            reasons.append(f"{where}: more records of a person are in a batch than {most}")
        elif np.any(stood < each * drawn):
            reasons.append(
                f"{where}: fewer records of a person are in a batch than there should be"
            )
        if np.any(used > drawn[numbers]):
            reasons.append(f"{where}: a record is in a batch twice, or without its person")
    if of_rows != len(evidence.rows_used) or of_people != len(evidence.inclusions):
        reasons.append(f"round {index}: the use of others than its clients' records is counted")
    return len(evidence.clients)
