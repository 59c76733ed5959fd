"""What the engine writes down of which records there are, and of which of them a round used.

No record is written: rows of the data set, labels of the training records, and keyed digests of
what records hold, by which equal ones are told from others. The key is the run's salt, so that
nobody who lacks it can test guesses of a record. Private, like all evidence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.profiling import part
from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.storage.mapped import AT_ONCE, let_go

_DIGEST_BYTES = 16
# Hashing more would delay a run by seconds; contents are then not told apart.
_MOST_BYTES = 1 << 31
_DOMAIN = b"dpfedadamw rows 1\x00"


class Stored(Protocol):
    """Records as they are stored."""

    @property
    def values(self) -> NDArray[Any]:
        """All stored records, [m, …]."""
        ...

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Which of them belong here, in order; None for all."""
        ...

    def __len__(self) -> int:
        """How many they are."""
        ...


@part("evidence")
def write_records(directory: Path, train: Stored, labels: NDArray[np.int64], test: Stored) -> None:
    """Write which rows are trained on, and digests of what training and test records hold.

    Args:
        directory: The run's ``evidence/``, with the run's salt in it.
        train: Training records.
        labels: Their classes, int64 [n]; 0 of all where targets are no classes.
        test: The records that accuracy is measured on.
    """
    arrays: dict[str, NDArray[Any]] = {
        "records": np.asarray(len(train.values), np.int64),
        "rows": _rows(train),
        "labels": labels,
    }
    if train.values.nbytes + test.values.nbytes <= _MOST_BYTES:
        salt = read_salt(directory / "salt")
        arrays |= {"contents": _contents(train, salt), "test_contents": _contents(test, salt)}
    write_arrays(directory / "records.npz", arrays)


def rows_digest(salt: bytes, rows: NDArray[np.int64]) -> bytes:
    """A keyed digest of rows of the data set, whatever their order, 32 bytes.

    Args:
        salt: The run's.
        rows: [k], each as often as it was used.
    """
    return hashlib.sha256(_DOMAIN + salt + np.sort(rows).astype("<i8").tobytes()).digest()


def digest_rows(digests: Sequence[bytes | None]) -> dict[str, NDArray[np.uint8]]:
    """The array of a round's digests, one row a client; none where a client has no rows to tell."""
    known = [one for one in digests if one is not None]
    if len(known) < len(digests):
        return {}
    return {"rows_sha256": np.frombuffer(b"".join(known), np.uint8).reshape(-1, 32)}


def _rows(held: Stored) -> NDArray[np.int64]:
    return np.arange(len(held), dtype=np.int64) if held.rows is None else held.rows


def _contents(held: Stored, salt: bytes) -> NDArray[np.uint8]:
    """A digest of each record, [n, 16]."""
    values, key, digests = held.values, salt[:64], list[bytes]()
    together = max(1, AT_ONCE * len(values) // max(1, values.nbytes))
    for place, row in enumerate(_rows(held).tolist(), start=1):
        content = values[row].tobytes()
        digests.append(hashlib.blake2b(content, digest_size=_DIGEST_BYTES, key=key).digest())
        if place % together == 0:
            let_go(values)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)
