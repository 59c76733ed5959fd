"""What each client holds, as one digest: content, order and labels of its training records.

Of what is stored, before anything is scaled or enlarged, so that it is the same on every machine.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.datasets import Records
from dpfedadamw.storage.mapped import let_go, stretches


def client_digests(
    records: Records, client_of_record: NDArray[np.int64], clients: int
) -> list[bytes]:
    """The digest of each client's records, 32 bytes, by client.

    Args:
        records: The training records, n.
        client_of_record: The client of each, int64 [n].
        clients: How many clients there are.
    """
    order = np.argsort(client_of_record, kind="stable")
    ends = np.cumsum(np.bincount(client_of_record, minlength=clients))
    return [_digest(records.select(rows)) for rows in np.split(order, ends[:-1])]


def _digest(records: Records) -> bytes:
    """Digest of a client's records: how they are stored, how many, each record, each label."""
    stored, rows = records.inputs.values, records.inputs.rows
    chosen = np.arange(len(records)) if rows is None else rows
    kind = f"{stored.dtype.newbyteorder('<').str} {stored.shape[1:]} {len(chosen)}"
    found = hashlib.sha256(kind.encode() + b"\x00")
    each = stored.dtype.itemsize * int(np.prod(stored.shape[1:], dtype=np.int64))
    for near in stretches(chosen, each):
        part = stored[chosen[near]]
        found.update(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes())
        let_go(stored)
    labels = records.labels
    if labels.ndim == 1 and labels.dtype == np.int64:
        found.update(labels.astype("<i8").tobytes())
    else:
        plain = np.ascontiguousarray(labels, labels.dtype.newbyteorder("<"))
        found.update(f"{plain.dtype.str} {plain.shape[1:]}".encode() + b"\x00" + plain.tobytes())
    return found.digest()
