"""Divides the training records among clients: each record in exactly one client, once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DataError
from dpfedadamw.spec import DataSpec

_TRIES = 1000
# Records that may be dealt out in redraws: keeps a million of them within a second.
_DEALT = 4_000_000


def partition(
    spec: DataSpec,
    labels: NDArray[np.int64],
    given: NDArray[np.int64] | None = None,
    people: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """The client of each training record.

    ``dirichlet`` (Hsu et al. 2019): the records of each class are divided among the clients by
    proportions drawn from Dirichlet(α); the smaller α, the more the clients differ. ``iid``: a
    random, even division. ``shards`` (McMahan et al. 2017): records sorted by label are cut into
    equal shards, and each client gets as many at random. ``column``: as the data say.

    Draws in which a client falls below ``minimum_records`` are drawn again, up to a thousand times
    (fewer where there are many records); the last of them is mended by moving records at random
    from the largest clients to those that lack some.

    Where the data name people, these are dealt out in the place of records, each with all of theirs
    and in the class that most of them have; only data that say whose each record is can put one
    person into two clients.

    Args:
        spec: The spec's section ``data``.
        labels: Labels of the training records, int64 [n].
        given: The client of each as the data say, int64 [n]; only for ``column``.
        people: The person whom each is about, int64 [n]; None where the data name none.

    Returns:
        The client of each record, int64 [n], in 0…clients-1.

    Raises:
        DataError: If the minimum cannot be met.
    """
    minimum = spec.partition.minimum_records
    if spec.partition.kind == "column":
        return _as_given(spec, given)
    things = "records"
    if people is not None:
        numbers, things = in_order(people), "people"
        labels = most_common(numbers, labels)
    if spec.clients > len(labels):
        raise DataError(
            f"data.clients: {spec.clients} clients cannot each hold one of {len(labels)} training "
            f"{things}; use at most {len(labels)}"
        )
    if spec.clients * minimum > len(labels):
        raise DataError(
            f"data.partition.minimum_records: {spec.clients} clients of at least {minimum} "
            f"{things} need {spec.clients * minimum}, the training set has {len(labels)}; use at "
            f"most {len(labels) // spec.clients}"
        )
    owner = _dealt_out(spec, labels)
    return owner if people is None else owner[numbers]


def in_order(people: NDArray[np.int64]) -> NDArray[np.int64]:
    """People [n] by the numbers 0, 1, 2, …, in the order of their first records."""
    _, first, inverse = np.unique(people, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse.ravel()]


def most_common(numbers: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The label that most of a person's records have, of several the least; by person.

    Args:
        numbers: Whom each record is about, 0, 1, 2, …, [n].
        labels: Its label, [n].
    """
    pairs, times = np.unique(np.stack([numbers, labels]), axis=1, return_counts=True)
    # Last of each person comes the label with most records, and of these the least.
    order = np.lexsort((-pairs[1], times, pairs[0]))
    found = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    found[pairs[0][order]] = pairs[1][order]
    return found


def _dealt_out(spec: DataSpec, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The client of each record, or of each person, by their labels."""
    minimum = spec.partition.minimum_records
    seed = spec.seed if spec.partition.seed is None else spec.partition.seed
    generator = np.random.default_rng([seed, 1])
    tries = max(1, min(_TRIES, _DEALT // len(labels)))
    members = _by_label(labels)
    for _ in range(tries):
        owner = _draw(spec, generator, members, len(labels))
        if np.bincount(owner, minlength=spec.clients).min() >= minimum:
            return owner
    return _mended(generator, owner, spec.clients, minimum)


def _draw(
    spec: DataSpec, generator: np.random.Generator, members: list[NDArray[np.int64]], records: int
) -> NDArray[np.int64]:
    kind = spec.partition
    match kind.kind:
        case "iid":
            return generator.permutation(np.arange(records) % spec.clients)
        case "shards":
            assert kind.shards_per_client is not None
            return _shards(generator, members, spec.clients, kind.shards_per_client)
        case _:
            assert kind.alpha is not None
            return _dirichlet(generator, members, spec.clients, kind.alpha)


def _by_label(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The records of each class, classes and records in order."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def _dirichlet(
    generator: np.random.Generator, members: list[NDArray[np.int64]], clients: int, alpha: float
) -> NDArray[np.int64]:
    owner = np.empty(sum(map(len, members)), dtype=np.int64)
    for group in members:
        shuffled = generator.permutation(group)
        shares = generator.dirichlet(np.full(clients, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(group)).astype(int)
        sizes = np.diff(cuts, prepend=0, append=len(group))
        owner[shuffled] = np.repeat(np.arange(clients), sizes)
    return owner


def _shards(
    generator: np.random.Generator, members: list[NDArray[np.int64]], clients: int, each: int
) -> NDArray[np.int64]:
    records = sum(map(len, members))
    if clients * each > records:
        raise DataError(
            f"data.partition.shards_per_client: {clients} clients with {each} shards each need "
            f"{clients * each} records, the training set has {records}"
        )
    # Which records of a class share a shard is by chance, not by the order of a file.
    ordered = np.concatenate([generator.permutation(group) for group in members])
    holders = generator.permutation(np.arange(clients * each) % clients)
    base, longer = divmod(records, clients * each)
    sizes = np.full(clients * each, base)
    sizes[:longer] += 1
    owner = np.empty(records, dtype=np.int64)
    owner[ordered] = np.repeat(holders, sizes)
    return owner


def _mended(
    generator: np.random.Generator, owner: NDArray[np.int64], clients: int, minimum: int
) -> NDArray[np.int64]:
    """Move records so that every client has the minimum: the largest clients are levelled."""
    sizes = np.bincount(owner, minlength=clients)
    lacking = np.maximum(minimum - sizes, 0)
    need = int(lacking.sum())
    # The lowest level at which what stands above it still covers the need.
    low, high = minimum, int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= need:
            low = level
        else:
            high = level - 1
    above = np.maximum(sizes - low, 0)
    shuffled = generator.permutation(len(owner))
    # The how-manieth record of its client each is, in random order.
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(owner)) - np.repeat(starts, sizes)
    movable = order[rank < above[owner[order]]]
    mended = owner.copy()
    mended[movable[:need]] = np.repeat(np.arange(clients), lacking)
    return mended


def _as_given(spec: DataSpec, given: NDArray[np.int64] | None) -> NDArray[np.int64]:
    assert given is not None
    owner = np.unique(given, return_inverse=True)[1].astype(np.int64)
    sizes = np.bincount(owner)
    if len(sizes) != spec.clients:
        raise DataError(
            f"data.clients: is {spec.clients}, but the data name {len(sizes)} clients; set "
            f"data.clients to {len(sizes)}"
        )
    if sizes.min() < spec.partition.minimum_records:
        raise DataError(
            f"data.partition.minimum_records: is {spec.partition.minimum_records}, but a client "
            f"has {sizes.min()} training records; lower it, or leave that client out"
        )
    return owner


def kept_of_people(people: NDArray[np.int64], most: int, seed: int) -> NDArray[np.int64]:
    """Places of the records that stay where nobody keeps more than so many, in order.

    Which of a person's n records stay follows from n and the seed alone, so that nobody's records
    decide which of another person's are used.

    Args:
        people: Whom each record is about, [n].
        most: Records that a person may keep, at least 1.
        seed: The spec's data.seed.
    """
    order = np.argsort(people, kind="stable")
    starts = np.flatnonzero(np.diff(people[order], prepend=-1))
    sizes = np.diff(starts, append=len(people))
    kept = np.ones(len(people), bool)
    for size in np.unique(sizes[sizes > most]).tolist():
        dropped = np.random.default_rng([seed, 3, size]).permutation(size)[most:]
        kept[order[(starts[sizes == size][:, None] + dropped).ravel()]] = False
    return np.flatnonzero(kept)
