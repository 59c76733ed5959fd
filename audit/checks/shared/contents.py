"""Do clients work on the contents that lie under their rows, from the first round to the last?

Part of the check "partition". Rows alone tell which records a client names. The ledger's header
commits to a keyed digest of what lies under each row before anything is trained; the evidence has
such digests of what each client holds, and of one record of each batch as it lay in memory when the
batch was read for a gradient. Without the data nobody can tell whether the digests are those of the
data; who has them computes them again (check "reexecution").
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import Holdings, Records
from audit.untrusted.archives import Integers

_DOMAIN = b"dpfedadamw contents 1\x00"


@dataclass(frozen=True)
class _Table:
    """Which content lies under which row, and whose row it is."""

    rows: Integers
    contents: Integers
    owners: Integers

    def differs(self, rows: Integers, contents: Integers) -> Integers:
        """Places of those rows that held something else, or are not in the table."""
        places = np.minimum(np.searchsorted(self.rows, rows), len(self.rows) - 1)
        other = np.any(self.contents[places] != contents, axis=1)
        return np.flatnonzero(other | (self.rows[places] != rows))

    def whose(self, client: int, content: Integers) -> str:
        """Whose record this content is, in words."""
        owners = set(self.owners[(self.contents == content).all(axis=1)].tolist())
        if owners - {client}:
            return f": those of a record of client {min(owners - {client})}"
        return ": those of another record of its own" if owners else ""


def contents_faults(
    bundle: Bundle, holdings: Holdings, records: Records, reasons: list[str]
) -> str:
    """Note who works on other contents than lie under its rows; what a pass then says.

    Args:
        bundle: the run.
        holdings: who works on which rows.
        records: which training records there are.
        reasons: gets what is wrong.

    Raises:
        AuditError: evidence that the header promises is missing, or cannot be read.
    """
    committed = bundle.header.contents
    if committed is None:
        return "nothing commits to the contents of these rows"
    if records.contents is None or holdings.contents is None:
        raise UnverifiedError("the contents of clients' rows are committed to, and not recorded")
    digest = hashlib.sha256(_DOMAIN + bundle.salt())
    digest.update(records.rows.astype("<i8").tobytes())
    digest.update(records.contents.astype(np.uint8).tobytes())
    if digest.hexdigest() != committed:
        reasons.append(
            "evidence/records.npz: the contents under its rows are not those that the ledger's "
            "header committed to before training"
        )
        return ""
    order = np.argsort(records.rows, kind="stable")
    table = _Table(records.rows[order], records.contents[order], holdings.client_of_record[order])
    holder = np.repeat(np.arange(len(holdings.counts)), holdings.counts)
    _told(table, holder, holdings.held, holdings.contents, "from the beginning", reasons)
    return (
        f"the contents of {_each_round(bundle, table, reasons)} records, one of each batch, are "
        "those that the header committed to under their rows"
    )


def _each_round(bundle: Bundle, table: _Table, reasons: list[str]) -> int:
    """Compare what was seen of each round's batches; how many records that is."""
    whole = bundle.header.unit.whole_clients
    rounds = bundle.all_update_rounds() if whole else bundle.all_rounds()
    number = 0
    for index, evidence in rounds:
        seen = evidence.seen
        if seen is None:
            raise UnverifiedError(f"round {index}: no contents of its batches are recorded")
        used = getattr(evidence, "inclusions", None)
        if not len(seen.rows) and used is not None and used.any():
            raise UnverifiedError(f"round {index}: no contents of its batches are recorded")
        if not np.isin(seen.clients, evidence.clients).all():
            reasons.append(f"round {index}: contents are recorded of a client that took no part")
            continue
        number += len(seen.rows)
        _told(table, seen.clients, seen.rows, seen.contents, f"in round {index}", reasons)
    return number


def _told(
    table: _Table,
    clients: Integers,
    rows: Integers,
    contents: Integers,
    when: str,
    reasons: list[str],
) -> None:
    """A sentence for each client that had other contents under its rows."""
    wrong = table.differs(rows, contents) if len(table.rows) else np.arange(len(rows))
    for client in np.unique(clients[wrong]).tolist():
        own = [place for place in wrong if clients[place] == client]
        whose = table.whose(client, contents[own[0]])
        reasons.append(
            f"client {client} has other contents than the header committed to under {len(own)} of "
            f"its rows {when}{whose}"
        )
