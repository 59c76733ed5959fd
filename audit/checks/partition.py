"""Check "partition": does each training record belong to one client, once?

The claim is about one record of one client. A record that two clients hold is queried by both, and
what they spend on it adds up. At both levels clients must work on just what the ledger says they
hold, and on the contents that lie under these rows, from the first round to the last: rows alone
tell which records a client names. The ledger's header commits to a keyed digest of what lies under
each row before anything is trained; the evidence has such digests of what each client holds, and of
one record of each batch as it lay in memory when the batch was read for a gradient. Without the
data nobody can tell whether the digests are those of the data; who has them computes them again
(check "reexecution").
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.shared.drawn_partition import drawn, names_people, people_faults, training_rows
from audit.errors import AuditError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import Holdings, Records
from audit.reading.ledger import Header
from audit.reading.units import PERSON
from audit.untrusted.archives import Integers
from audit.untrusted.fields import FieldError

_CONTENTS_DOMAIN = b"dpfedadamw contents 1\x00"
_WHOSE_DOMAIN = b"dpfedadamw who is who 1\x00"


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
        raise UnverifiedError("the contents of clients' rows are committed to, but not recorded")
    digest = hashlib.sha256(_CONTENTS_DOMAIN + bundle.salt())
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
            reasons.append(
                f"round {index}: contents are recorded for a client that did not take part"
            )
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


_FILE = "evidence/partition.npz"
_ROWS_DOMAIN = b"dpfedadamw rows 1\x00"
# Uses of rows in one participation, each of which takes some 30 bytes while they are sorted.
_MOST_USES = 1 << 26


def _given(holdings: Holdings, header: Header, reasons: list[str]) -> None:
    """The partition gives every record to one client, and each client as many as declared."""
    owners = holdings.client_of_record
    if owners.size and int(owners.max()) >= header.clients:
        reasons.append(f"{_FILE}: a record belongs to a client that does not exist")
        return
    counts = np.bincount(owners, minlength=header.clients)
    for client in np.flatnonzero(counts != np.asarray(header.training_records)):
        reasons.append(f"{_FILE}: client {client} was not given the declared number of records")


def _held(holdings: Holdings, header: Header, reasons: list[str]) -> dict[str, object]:
    """Clients work on as many rows as declared, and no row is worked on twice."""
    counts = holdings.counts
    if len(counts) != header.clients:
        reasons.append(f"{_FILE}: it does not say what {header.clients} clients hold")
        return {}
    for client in np.flatnonzero(counts != np.asarray(header.training_records)):
        reasons.append(f"{_FILE}: client {client} does not work on the declared number of records")
    client_of_row = np.repeat(np.arange(header.clients), counts)
    order = np.argsort(holdings.held, kind="stable")
    rows, clients = holdings.held[order], client_of_row[order]
    again = rows[1:] == rows[:-1]
    between = again & (clients[1:] != clients[:-1])
    if between.any():
        reasons.append("a record is held by two clients: their losses on it add up")
    if (again & ~between).any():
        reasons.append("a client holds a record twice: it moves a sum by twice the clipping norm")
    return {"held_by_two": int(between.sum()), "held_twice": int((again & ~between).sum())}


def _works_on_its_own(
    holdings: Holdings, records: Records, header: Header, reasons: list[str]
) -> None:
    """Each client works on the rows that the partition gives it, and on no others."""
    owners = holdings.client_of_record
    if len(owners) != len(records.rows) or len(holdings.counts) != header.clients:
        reasons.append(f"{_FILE}: it does not cover the training records")
        return
    # Sorted once for all clients: to look through all records for each of them would take days for
    # a hundred thousand.
    clients = np.arange(header.clients)
    order = np.lexsort((records.rows, owners))
    given, starts = records.rows[order], np.searchsorted(owners[order], [*clients, header.clients])
    holder = np.repeat(clients, holdings.counts)
    held = holdings.held[np.lexsort((holdings.held, holder))]
    ends = np.concatenate([[0], np.cumsum(holdings.counts)])
    for client in clients:
        own = held[ends[client] : ends[client + 1]]
        if not np.array_equal(given[starts[client] : starts[client + 1]], own):
            reasons.append(f"client {client} works on other records than the partition gives it")


def _drawn_again(
    spec: Mapping[str, Any],
    holdings: Holdings,
    records: Records,
    reasons: list[str],
    people: Integers | None = None,
) -> str:
    """The spec's seed gives the same division; what a pass then says.

    Where the spec names people, `people` says whom each record that was read is about.
    """
    if people is not None and (
        len(people) != records.records or records.rows.max(initial=-1) >= len(people)
    ):
        reasons.append("evidence/people.npz: it does not cover the records that were read")
        return ""
    rows = training_rows(spec, records.records, people)
    if rows is not None and not np.array_equal(rows, records.rows):
        reasons.append("the records held out for testing are not those that the spec's seed draws")
    owners = drawn(spec, records.labels, None if people is None else people[records.rows])
    if owners is None:
        return "the data name each record's client"
    if not np.array_equal(owners, holdings.client_of_record):
        reasons.append("the partition is not the one that the spec's seed draws")
    return "the partition is the one that the spec's seed draws"


def _used(bundle: Bundle, holdings: Holdings, reasons: list[str]) -> int:
    """Rounds used the rows of the clients that they are charged to; how many participations."""
    salt, seen = bundle.salt(), 0
    for index, clients, digests, inclusions, queries in _participations(bundle):
        if digests is None:
            raise UnverifiedError(f"round {index}: the rows that it used are not recorded")
        start = 0
        suffix = "" if inclusions is None else ", or rows that were not drawn"
        for client, digest in zip(clients.tolist(), digests, strict=True):
            seen += 1
            other = f"round {index}: client {client} used other rows than its own{suffix}"
            # A client that does not exist has no rows of its own, whatever the digest covers.
            if client >= len(holdings.counts):
                reasons.append(other)
                continue
            own = holdings.of(client)
            if inclusions is not None:
                times = inclusions[start : start + len(own)]
                start += len(own)
                # Before any of it is repeated: the counts are what the file says.
                if times.max(initial=0) > queries:
                    reasons.append(other)
                    continue
                if times.sum() > _MOST_USES:
                    raise UnverifiedError(
                        f"round {index}: client {client} used more than {_MOST_USES:,} rows, which "
                        "are too many to list"
                    )
                own = np.repeat(own[: len(times)], times)
            if _rows_digest(salt, own) != bytes(digest.tolist()):
                reasons.append(other)
    return seen


def _participations(
    bundle: Bundle,
) -> Iterator[tuple[int, Integers, Integers | None, Integers | None, int]]:
    """Round, its clients, digests of their rows, in how many batches each record was, of how many.

    Of whole clients there are no batches.
    """
    if bundle.header.unit.whole_clients:
        for index, update in bundle.all_update_rounds():
            yield index, update.clients, update.rows_sha256, None, 0
        return
    for index, evidence in bundle.all_rounds():
        used = evidence.inclusions
        if bundle.header.unit is PERSON:
            if evidence.rows_used is None:
                raise UnverifiedError(f"round {index}: the records that it used are not recorded")
            used = evidence.rows_used
        yield index, evidence.clients, evidence.rows_sha256, used, evidence.batch_size.shape[1]


def _rows_digest(salt: bytes, rows: Integers) -> bytes:
    return hashlib.sha256(_ROWS_DOMAIN + salt + np.sort(rows).astype("<i8").tobytes()).digest()


def _equal_contents(holdings: Holdings, records: Records) -> dict[str, object]:
    """How often the same content stands among the training records: private numbers."""
    if records.contents is None or len(holdings.client_of_record) != len(records.contents):
        return {}
    _, content, times = np.unique(records.contents, axis=0, return_inverse=True, return_counts=True)
    owned = holdings.client_of_record * (len(times) + 1) + content.ravel()
    in_one = np.unique(owned, return_counts=True)[1]
    most = int(times.max(initial=1))
    found: dict[str, object] = {
        "records_with_an_equal": int(times[times > 1].sum()),
        "most_equal_records": most,
        "most_equal_records_of_one_client": int(in_one.max(initial=1)),
    }
    if most > 1:
        found["group_privacy"] = (
            f"a person with {most} equal records is protected less than one with a single record, "
            "and more than proportionally less"
        )
    return found


def _committed_people(bundle: Bundle, reasons: list[str]) -> Integers:
    """Whom each record that was read is about; notes where the header committed to another.

    A run of an earlier version has no such commitment.
    """
    people, committed = bundle.people(), bundle.header.people
    digest = hashlib.sha256(_WHOSE_DOMAIN + bundle.salt())
    digest.update(people.digests.astype(np.uint8).tobytes())
    if committed is not None and digest.hexdigest() != committed:
        reasons.append(
            "evidence/people.npz: whom the records are about is not what the ledger's header "
            "committed to before training"
        )
    return people.stored


def _shared_with_test(bundle: Bundle, records: Records) -> dict[str, object]:
    """How many test records are about people who are trained on: a private number.

    Of records that were held out there is none, since the drawing goes by people; a test part of
    its own may have some.
    """
    if not names_people(bundle.readable_spec):
        return {}
    people = bundle.people()
    if people.test is None:
        return {}
    shared = np.isin(people.test, people.stored[records.rows])
    return {"test_records_of_people_trained_on": int(np.count_nonzero(shared))}


def _judge(bundle: Bundle) -> Judgement:
    header, holdings = bundle.header, bundle.holdings()
    reasons: list[str] = []
    unreadable: list[str] = []
    _given(holdings, header, reasons)
    private = _held(holdings, header, reasons)
    division, participations, same, people = "", 0, "", ""
    try:
        records = bundle.records()
        private |= _equal_contents(holdings, records)
        if not reasons:
            _works_on_its_own(holdings, records, header, reasons)
            spec = bundle.readable_spec
            people_read = _committed_people(bundle, reasons) if names_people(spec) else None
            division = _drawn_again(spec, holdings, records, reasons, people_read)
            private |= _shared_with_test(bundle, records)
            if header.unit is PERSON:
                people = f"; {people_faults(bundle, holdings, records, reasons)}"
            participations = _used(bundle, holdings, reasons)
            same = contents_faults(bundle, holdings, records, reasons)
    except FieldError as error:
        reasons.append(f"spec.yaml: {error}")
    except AuditError as error:
        unreadable.append(str(error))
    count = sum(header.training_records)
    details = {"records": count, "clients": header.clients}
    return conclude(
        f"{count} training records: each was given to one of {header.clients} clients, and no "
        f"client works on a record that it or another client already has; {division}. In "
        f"{participations} participations the rows used are the client's own; {same}{people}",
        reasons,
        unreadable,
        details=details,
        private=private,
    )


PARTITION = Check(
    name="partition",
    title="Does each record belong to one client, once?",
    place=30,
    meaning="If it fails, a record is used by more than one client, more than once, or by a "
    "client that is not charged for it. Its losses add up, or are counted for the wrong client.",
    claim="The partition gives each training record to exactly one client, as the spec's seed "
    "draws it, and the clients work on these records, none of them twice, in every round. Where "
    "the header commits to contents, those under each client's rows are what they were before "
    "training.",
    tolerance="none: rows, counts and digests are compared exactly",
    power="any record in two clients, or twice in one; any client whose size is not the declared "
    "one. Records that two clients have exchanged, once or in a single round; a division that the "
    "seed does not produce. Different contents under a client's own rows, all of them in one "
    "round or one in the batches of many. A record that is said to be about another person than "
    "before training",
    limits="Records are distinguished by their place in the data set. Two with the same content, "
    "or two about the same person, count as two: a person with several is protected less, and "
    "more than proportionally less. How often the same content occurs is among the private "
    "findings; only the data's owner knows what records are about. Rows, labels and digests of "
    "contents are those that the trainer recorded. Only someone with the data can compare them "
    "with the digests in the ledger's header, as re-execution does. In each batch, the stored "
    "content of one record is checked.",
    rule=_judge,
)
register(PARTITION)
