"""Divides the training records among clients: each record in exactly one client, once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.datasets import DataError
from dpfedadamw.spec import DataSpec

_TRIES = 1000


def partition(spec: DataSpec, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The client of each training record.

    ``dirichlet`` (Hsu et al. 2019): the records of each class are divided among the clients by
    proportions drawn from Dirichlet(α); the smaller α, the more the clients differ. Draws in which
    a client falls below ``minimum_records`` are drawn again. ``iid``: a random, even division.

    Args:
        spec: The spec's section ``data``.
        labels: Labels of the training records, int64 [n].

    Returns:
        The client of each record, int64 [n], in 0…clients-1.

    Raises:
        DataError: If the minimum cannot be met.
    """
    minimum = spec.partition.minimum_records
    if spec.clients * minimum > len(labels):
        raise DataError(
            f"data.partition.minimum_records: {spec.clients} clients of at least {minimum} records "
            f"need {spec.clients * minimum}, the training set has {len(labels)}; use at most "
            f"{len(labels) // spec.clients}"
        )
    generator = np.random.default_rng([spec.seed, 1])
    for _ in range(_TRIES):
        if spec.partition.kind == "iid":
            owner = _even(generator, len(labels), spec.clients)
        else:
            assert spec.partition.alpha is not None
            owner = _dirichlet(generator, labels, spec.clients, spec.partition.alpha)
        if np.bincount(owner, minlength=spec.clients).min() >= minimum:
            return owner
    raise DataError(
        f"data.partition: in {_TRIES} draws of Dirichlet({spec.partition.alpha}) some client "
        f"always had fewer than minimum_records = {minimum}; lower the minimum, raise alpha, or "
        f"use fewer than {spec.clients} clients"
    )


def _even(generator: np.random.Generator, records: int, clients: int) -> NDArray[np.int64]:
    return generator.permutation(np.arange(records) % clients).astype(np.int64)


def _dirichlet(
    generator: np.random.Generator, labels: NDArray[np.int64], clients: int, alpha: float
) -> NDArray[np.int64]:
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(int)
        for client, part in enumerate(np.split(members, cuts)):
            owner[part] = client
    return owner
