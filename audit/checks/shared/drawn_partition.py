"""The partition that a spec asks for, drawn again from its seed and the labels of the records.

Part of the check "partition". Which client gets which record is public randomness: whoever has
the spec and the data, whose digest the ledger's header names, draws the same. NumPy's generators
give the same numbers in all its versions since 1.17.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
            raise FieldError("data.person: not every training record is about somebody")
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
