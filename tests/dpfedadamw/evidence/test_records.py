"""Which rows there are and which of them a round used, as keyed digests."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.records import digest_rows, rows_digest, write_records

VALUES = np.arange(24, dtype=np.uint8).reshape(6, 1, 2, 2)


def written(folder: Path, salt: bytes) -> dict[str, np.ndarray]:
    folder.mkdir()
    (folder / "salt").write_bytes(salt)
    values = VALUES.copy()
    values[4] = values[1]
    train = StoredRecords(values, np.array([5, 1, 4]))
    write_records(folder, train, np.array([7, 8, 9]), StoredRecords(values, np.array([0, 1])))
    with np.load(folder / "records.npz") as file:
        return dict(file)


def test_rows_and_labels_are_written_and_equal_records_have_equal_digests(tmp_path: Path) -> None:
    found = written(tmp_path / "evidence", bytes(32))
    assert found["rows"].tolist() == [5, 1, 4]
    assert found["labels"].tolist() == [7, 8, 9]
    assert int(found["records"]) == 6
    assert np.array_equal(found["contents"][1], found["contents"][2])
    assert not np.array_equal(found["contents"][0], found["contents"][1])
    # The second test record is a training record, the first is none.
    assert np.array_equal(found["test_contents"][1], found["contents"][1])
    assert not (found["contents"] == found["test_contents"][0]).all(axis=1).any()


def test_digests_of_another_run_are_others(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one", bytes(32)), written(tmp_path / "other", b"x" * 32)
    assert not (one["contents"] == other["contents"]).all(axis=1).any()


def test_a_digest_of_rows_heeds_how_often_each_was_used_and_not_their_order() -> None:
    salt, rows = bytes(32), np.array([3, 1, 1])
    assert rows_digest(salt, rows) == rows_digest(salt, rows[::-1])
    assert rows_digest(salt, rows) != rows_digest(salt, np.array([3, 1]))
    assert rows_digest(salt, rows) != rows_digest(b"x" * 32, rows)


def test_a_round_whose_rows_are_not_told_apart_tells_none() -> None:
    digest = rows_digest(bytes(32), np.array([1]))
    assert digest_rows([digest, None]) == {}
    assert digest_rows([digest, digest])["rows_sha256"].shape == (2, 32)
    assert digest_rows([])["rows_sha256"].shape == (0, 32)
