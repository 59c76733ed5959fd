"""Check "partition": does each training record belong to one client, once?

The claim is about one record of one client. A record that two clients hold is queried by both, and
what they spend on it adds up. At both levels clients must work on just what the ledger says they
hold.
"""

from __future__ import annotations

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header
from audit.reading.record_evidence import Holdings

_FILE = "evidence/partition.npz"


def _given(holdings: Holdings, header: Header, reasons: list[str]) -> None:
    """The partition gives every record to one client, and each client as many as declared."""
    owners = holdings.client_of_record
    if owners.size and int(owners.max()) >= header.clients:
        reasons.append(f"{_FILE}: a record belongs to a client that does not exist")
        return
    counts = np.bincount(owners, minlength=header.clients)
    for client in np.flatnonzero(counts != np.asarray(header.records)):
        reasons.append(f"{_FILE}: client {client} was not given the declared number of records")


def _held(holdings: Holdings, header: Header, reasons: list[str]) -> dict[str, object]:
    """Clients work on as many rows as declared, and no row is worked on twice."""
    counts = holdings.counts
    if len(counts) != header.clients:
        reasons.append(f"{_FILE}: it does not say of {header.clients} clients what they hold")
        return {}
    for client in np.flatnonzero(counts != np.asarray(header.records)):
        reasons.append(f"{_FILE}: client {client} does not work on the declared number of records")
    client_of_row = np.repeat(np.arange(header.clients), counts)
    order = np.argsort(holdings.held, kind="stable")
    rows, clients = holdings.held[order], client_of_row[order]
    again = rows[1:] == rows[:-1]
    between = again & (clients[1:] != clients[:-1])
    if between.any():
        reasons.append("a record is held by two clients: what both spend on it adds up")
    if (again & ~between).any():
        reasons.append("a client holds a record twice: it moves a sum by twice the clipping norm")
    return {"held_by_two": int(between.sum()), "held_twice": int((again & ~between).sum())}


def _judge(bundle: Bundle) -> Judgement:
    header, holdings = bundle.header, bundle.holdings()
    reasons: list[str] = []
    _given(holdings, header, reasons)
    private = _held(holdings, header, reasons)
    details = {"records": sum(header.records), "clients": header.clients}
    return conclude(
        f"{sum(header.records)} training records: each was given to one of {header.clients} "
        "clients, and no client works on a record that it or another one has already",
        reasons,
        details=details,
        private=private,
    )


PARTITION = Check(
    name="partition",
    title="Does each record belong to one client, once?",
    place=30,
    claim="The partition gives each training record to exactly one client, and the clients work on "
    "as many records as the ledger declares, none of them twice.",
    tolerance="none: rows and counts are compared exactly",
    power="any record in two clients, or twice in one; any client of another size than declared",
    limits="Records are told apart by their place in the data set. Two with the same content, or "
    "two about the same person, count as two; that is for the data's owner to know.",
    rule=_judge,
)
register(PARTITION)
