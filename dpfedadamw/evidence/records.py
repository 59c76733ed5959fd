"""What the engine writes down of which records there are, and of which of them a round used.

The ledger's header commits to which content lies under which row before anything is trained. What
each client holds, and one record of each batch as it lies in memory when the batch is drawn, are
digested by themselves, so that other contents under a client's own rows show. Where the data name
people, it also commits to whom each record is about.

No record is written: rows of the data set, labels of the training records, and keyed digests of
what records hold, by which equal ones are told from others. The key is the run's salt, so that
nobody who lacks it can test guesses of a record. Private, like all evidence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.profiling import part
from dpfedadamw.rundir import write_arrays
from dpfedadamw.storage.foreign import read_salt
from dpfedadamw.storage.mapped import let_go, stretches

_DIGEST_BYTES, _BATCH_BYTES = 16, 8
# Hashing more would delay a run by seconds; contents are then not told apart.
_MOST_BYTES = 1 << 31
_DOMAIN = b"dpfedadamw rows 1\x00"
_CONTENTS_DOMAIN = b"dpfedadamw contents 1\x00"
_PEOPLE_DOMAIN = b"dpfedadamw people 1\x00"
_WHOSE_DOMAIN = b"dpfedadamw who is who 1\x00"


class Selectable(Protocol):
    """Records of which batches are selected."""

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Which of the stored records belong here; None for all."""
        ...

    def __getitem__(self, chosen: Tensor, /) -> Any:
        """The batch of some of them."""
        ...


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
    if are_told(train, test):
        salt = read_salt(directory / "salt")
        arrays |= {"contents": contents(train, salt), "test_contents": contents(test, salt)}
    write_arrays(directory / "records.npz", arrays)


@part("evidence")
def write_people(
    directory: Path, stored: NDArray[np.int64], test: NDArray[np.int64] | None
) -> None:
    """Write whom records are about, as keyed digests by which one person is told from another.

    Args:
        directory: The run's ``evidence/``, with the run's salt in it.
        stored: Person of each record that is stored with the training records, int64 [m].
        test: Person of each record of a test part of its own, int64 [t]; None without one.
    """
    write_arrays(directory / "people.npz", _whose(stored, test, read_salt(directory / "salt")))


def whose_digest(salt: bytes, stored: NDArray[np.int64], test: NDArray[np.int64] | None) -> str:
    """What commits to whom each record is about, hexadecimal; the arguments as `write_people`'s."""
    digest = hashlib.sha256(_WHOSE_DOMAIN + salt)
    for digests in _whose(stored, test, salt).values():
        digest.update(digests.tobytes())
    return digest.hexdigest()


def _whose(
    stored: NDArray[np.int64], test: NDArray[np.int64] | None, salt: bytes
) -> dict[str, NDArray[np.uint8]]:
    found = {"stored": people_digests(stored, salt)}
    return found if test is None else {**found, "test": people_digests(test, salt)}


def people_digests(people: NDArray[np.int64], salt: bytes) -> NDArray[np.uint8]:
    """A keyed digest of each person's number, [n, 16]."""
    different, inverse = np.unique(people, return_inverse=True)
    key = hashlib.sha256(_PEOPLE_DOMAIN + salt).digest()
    digests = [_digest(one, key) for one in different.astype("<i8")]
    table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)
    return table[inverse.ravel()]


def are_told(train: Stored, test: Stored) -> bool:
    """Whether contents are told apart: not where hashing them would delay a run by seconds."""
    return train.values.nbytes + test.values.nbytes <= _MOST_BYTES


def contents_digest(salt: bytes, train: Stored) -> str:
    """What commits to the content under each row of the training records, hexadecimal.

    Args:
        salt: The run's.
        train: Training records.
    """
    rows = _rows(train).astype("<i8").tobytes()
    return hashlib.sha256(
        _CONTENTS_DOMAIN + salt + rows + contents(train, salt).tobytes()
    ).hexdigest()


class Witness:
    """Notes each batch whose gradient is asked for, and one record of it as it lies in memory then.

    Which record is drawn by the batch itself and the run's salt, so that no engine need ask for
    random numbers and a run that can be repeated stays as it is.

    Args:
        salt: The run's.

    Attributes:
        saw: Whether it was given batches to look at.
        every_query: Whether it notes a batch exactly once for each gradient.
        batches: A keyed digest of each batch's rows, 8 bytes.
        rows: Row of the record that was drawn.
        contents: A keyed digest of what it held, 16 bytes.
    """

    def __init__(self, salt: bytes) -> None:
        self._key = salt[:64]
        self.saw, self.every_query = False, True
        self.batches: list[bytes] = []
        self.rows: list[int] = []
        self.contents: list[bytes] = []

    @part("evidence")
    def note(self, batch: Stored) -> None:
        """Take note of a batch as it is now; not of one without records."""
        if len(batch):
            rows = _rows(batch)
            drawn = hashlib.blake2b(
                rows.tobytes(), digest_size=_BATCH_BYTES, key=self._key
            ).digest()
            row = int(rows[int.from_bytes(drawn, "little") % len(rows)])
            self.batches.append(drawn)
            self.rows.append(row)
            self.contents.append(_digest(batch.values[row], self._key))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Digests of batches [k, 8] of every query, rows [k] and digests of contents [k, 16]."""
        batches = np.frombuffer(b"".join(self.batches), np.uint8).reshape(-1, _BATCH_BYTES)
        contents = np.frombuffer(b"".join(self.contents), np.uint8).reshape(-1, _DIGEST_BYTES)
        return {
            **({"seen_batches": batches} if self.every_query else {}),
            "seen_rows": np.asarray(self.rows, np.int64),
            "seen_contents": contents,
        }


class WitnessedBatch:
    """A batch of which a witness takes note each time that its records are read for a gradient.

    Args:
        batch: The batch.
        witness: What takes note.
        together: Most records that are read at once for a gradient.
    """

    def __init__(self, batch: Any, witness: Witness, together: int) -> None:
        self._batch, self._witness, self._together = batch, witness, together

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Rows of the data set."""
        found: NDArray[np.int64] | None = self._batch.rows
        return found

    def __getitem__(self, part: slice) -> Any:
        """Some of the records."""
        # All of them, or the first of their parts: single records are read for other ends.
        if (part.start or 0) == 0 and part.stop in (None, self._together):
            self._witness.note(self._batch)
        return self._batch[part]


class Witnessed:
    """A client's records, of whose batches a witness takes note.

    Args:
        inputs: The records.
        witness: What takes note.
        together: Most records that are read at once for a gradient.
    """

    def __init__(self, inputs: Selectable, witness: Witness, together: int) -> None:
        self._inputs, self._witness, self._together = inputs, witness, together
        # Read one by one for a gradient, records look as those that are read for other ends.
        witness.saw, witness.every_query = True, together > 1

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Which of the stored records belong here; None for all."""
        return self._inputs.rows

    def __getitem__(self, chosen: Tensor) -> Any:
        """The batch of these records."""
        return WitnessedBatch(self._inputs[chosen], self._witness, self._together)


def seen_in(
    clients: Sequence[int], seen: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """The arrays of what witnesses saw in a round; none where a client had none.

    Args:
        clients: Who took part.
        seen: What `Witness.arrays` gave of each.
    """
    if not all(seen):
        return {}
    times = [len(one["seen_rows"]) for one in seen]
    nothing = Witness(b"").arrays()
    told = [name for name in nothing if all(name in one for one in seen)]
    return {
        "seen_clients": np.repeat(np.asarray(clients, np.int64), times),
        **{name: np.concatenate([nothing[name], *(one[name] for one in seen)]) for name in told},
    }


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


def contents(held: Stored, salt: bytes) -> NDArray[np.uint8]:
    """A keyed digest of each record as it is stored, [n, 16].

    Args:
        held: The records.
        salt: The run's.
    """
    # A mapped file as a plain array: each row taken from np.memmap costs more than its digest.
    values, key, digests = np.asarray(held.values), salt[:64], list[bytes]()
    rows = _rows(held)
    for near in stretches(rows, values.nbytes // max(1, len(values))):
        digests += [_digest(values[row], key) for row in rows[near].tolist()]
        let_go(values)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)


def _digest(record: NDArray[Any], key: bytes) -> bytes:
    return hashlib.blake2b(record.tobytes(), digest_size=_DIGEST_BYTES, key=key).digest()
