"""The partition that a spec asks for, drawn again, and whom its records are about.

Parts of the check "partition". Which client gets which record is public randomness: anyone with the
spec and the data, whose digest the ledger's header names, draws the same from seed and labels.
NumPy's generators give the same numbers in all its versions since 1.17.

Where people are protected, the ledger counts people where it else counts records. The evidence
tells people apart by keyed digests, and says in how many batches each person and each record was:
`people_faults` judges who holds whom, and which records stand for a person in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import Holdings, Records
from audit.reading.ledger import Header
from audit.untrusted import fields
from audit.untrusted.archives import Integers
from audit.untrusted.fields import FieldError

Generator = np.random.Generator
# Draws in which a client has too few records are made again, so many times at most.
_TRIES, _DEALT = 1000, 4_000_000


def names_people(spec: Mapping[str, Any]) -> bool:
    """Whether the spec says whom each record is about."""
    data = spec.get("data")
    return isinstance(data, Mapping) and data.get("person") is not None


def training_rows(
    spec: Mapping[str, Any], records: int, people: Integers | None = None
) -> Integers | None:
    """Rows of the data set that are training records, in order; None where the spec does not say.

    Args:
        spec: the spec.
        records: how many records were read, those held out included.
        people: whom each of them is about, [records]; None where the spec names no people.

    Raises:
        FieldError: the spec lacks a field, or has it wrong.
    """
    data = fields.mapping(spec, "data")
    rows = _not_held_out(data, records, people)
    if people is None or data.get("most_records_per_person") is None:
        return rows
    rows = np.arange(records) if rows is None else rows
    most = fields.integer(data, "most_records_per_person", least=1)
    return _most_of_each(rows, people, most, fields.integer(data, "seed"))


def _most_of_each(rows: Integers, people: Integers, most: int, seed: int) -> Integers:
    """The rows that stay where nobody keeps more than so many.

    Which of a person's rows stay depends on how many there are, and on the seed: not on others.
    """
    of: dict[int, list[int]] = {}
    for row in rows.tolist():
        of.setdefault(int(people[row]), []).append(row)
    kept: list[int] = []
    for own in of.values():
        if len(own) > most:
            places = np.random.default_rng([seed, 3, len(own)]).permutation(len(own))[:most]
            own = [own[place] for place in places.tolist()]
        kept += own
    return np.array(sorted(kept), np.int64)


def _not_held_out(
    data: Mapping[str, Any], records: int, people: Integers | None
) -> Integers | None:
    """Rows that are not held out for testing, in order; None where the spec does not say."""
    if data.get("test_fraction") is None:
        return None
    held_out = round(records * fields.positive(data, "test_fraction", most=1.0))
    generator = np.random.default_rng(fields.integer(data, "seed"))
    if people is None:
        return generator.permutation(records)[held_out:]
    # People are drawn, each with all records, until these are as many as are held out.
    numbers = by_first_record(people)
    order = generator.permutation(int(numbers.max(initial=-1)) + 1)
    sizes = np.bincount(numbers, minlength=len(order))
    before = np.concatenate([[0], np.cumsum(sizes[order])])[:-1]
    rows: Integers = np.flatnonzero(~np.isin(numbers, order[before < held_out]))
    return rows


def by_first_record(people: Integers) -> Integers:
    """People [n] numbered 0, 1, 2, … as they are met."""
    first = np.unique(people, return_index=True)[1]
    number_of = {int(people[row]): number for number, row in enumerate(sorted(first.tolist()))}
    return np.array([number_of[person] for person in people.tolist()], np.int64)


def _class_of_people(numbers: Integers, labels: Integers) -> Integers:
    """The class that most of each person's records have, of several the least."""
    size = int(labels.max(initial=0)) + 1
    counts = np.bincount(numbers * size + labels, minlength=(int(numbers.max()) + 1) * size)
    found: Integers = counts.reshape(-1, size).argmax(axis=1)
    return found


def drawn(
    spec: Mapping[str, Any], labels: Integers, people: Integers | None = None
) -> Integers | None:
    """The client of each training record, [n]; None where the data themselves name it.

    Args:
        spec: the spec.
        labels: labels of the training records in their order, [n].
        people: whom each is about, [n], who are then dealt out in the place of records; None where
            the spec names no people.

    Raises:
        FieldError: the spec lacks a field, or has it wrong.
    """
    data = fields.mapping(spec, "data")
    section = fields.mapping(data, "partition")
    kind = fields.text(section, "kind")
    if kind not in ("iid", "dirichlet", "shards"):
        return None
    if people is not None:
        numbers = by_first_record(people)
        if len(numbers) != len(labels) or not len(numbers):
            raise FieldError("data.person: some training record has no person")
        owner_of_person = drawn(spec, _class_of_people(numbers, labels))
        assert owner_of_person is not None
        return owner_of_person[numbers]
    clients = fields.integer(data, "clients", least=1, most=1_000_000)
    least = fields.integer(section, "minimum_records")
    if clients * least > len(labels):
        raise FieldError("data.partition: minimum_records asks for more records than there are")
    seed = fields.integer(section if section.get("seed") is not None else data, "seed")
    generator = np.random.default_rng([seed, 1])
    order = np.argsort(labels, kind="stable")
    classes = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    owner: Integers = np.zeros(len(labels), np.int64)
    for _ in range(max(1, min(_TRIES, _DEALT // max(1, len(labels))))):
        if kind == "iid":
            owner = generator.permutation(np.arange(len(labels)) % clients)
        elif kind == "dirichlet":
            owner = _dirichlet(generator, classes, clients, fields.positive(section, "alpha"))
        else:
            each = fields.integer(section, "shards_per_client", least=1)
            owner = _shards(generator, classes, clients, each)
        if np.bincount(owner, minlength=clients).min() >= least:
            return owner
    return _levelled(generator, owner, clients, least)


def _dirichlet(
    generator: Generator, classes: list[NDArray[np.int64]], clients: int, alpha: float
) -> Integers:
    """Each class is dealt out by proportions of its own (Hsu, Qi & Brown 2019)."""
    owner = np.zeros(sum(map(len, classes)), np.int64)
    for members in classes:
        shuffled = generator.permutation(members)
        ends = np.round(np.cumsum(generator.dirichlet(np.full(clients, alpha)))[:-1] * len(members))
        counts = np.diff(ends.astype(int), prepend=0, append=len(members))
        owner[shuffled] = np.repeat(np.arange(clients), counts)
    return owner


def _shards(
    generator: Generator, classes: list[NDArray[np.int64]], clients: int, each: int
) -> Integers:
    """Records sorted by label are cut into equal shards (McMahan et al. 2017)."""
    in_order = np.concatenate([generator.permutation(members) for members in classes])
    holders = generator.permutation(np.arange(clients * each) % clients)
    if clients * each > len(in_order):
        raise FieldError("data.partition: there are more shards than records")
    size, longer = divmod(len(in_order), clients * each)
    owner = np.zeros(len(in_order), np.int64)
    owner[in_order] = np.repeat(holders, size + (np.arange(clients * each) < longer))
    return owner


def _levelled(generator: Generator, owner: Integers, clients: int, least: int) -> Integers:
    """Move records from the largest clients to those that lack some."""
    sizes = np.bincount(owner, minlength=clients)
    lacking = np.maximum(least - sizes, 0)
    # The highest level above which there are still enough records for those that lack some. Above
    # the least there always are: all clients together have enough.
    levels = range(least, int(sizes.max()) + 1)
    level = max(one for one in levels if np.maximum(sizes - one, 0).sum() >= lacking.sum())
    shuffled = generator.permutation(len(owner))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    movable = order[rank < np.maximum(sizes - level, 0)[owner[order]]]
    changed = owner.copy()
    changed[movable[: int(lacking.sum())]] = np.repeat(np.arange(clients), lacking)
    return changed


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
        raise UnverifiedError("evidence/people.npz does not cover the records that were read")
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
        for index in range(bundle.readable_ledger.rounds_to_finish)
    )
    return (
        f"nobody has records at more than {most} of the clients; in {participations} "
        "participations each person in a batch was there with all of their records, or "
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
            reasons.append(f"{where}: the use of some person or record is not counted")
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
        reasons.append(f"round {index}: counts the use of records that are not its clients'")
    return len(evidence.clients)
