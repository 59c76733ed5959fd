"""Which rows there are and which of them a round used, as keyed digests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.records import (
    Witness,
    Witnessed,
    contents,
    contents_digest,
    digest_rows,
    rows_digest,
    seen_in,
    whose_digest,
    write_records,
)

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


def test_what_the_header_commits_to_changes_with_any_content_row_or_salt() -> None:
    rows = np.array([5, 1, 4])
    digest = contents_digest(bytes(32), StoredRecords(VALUES, rows))
    assert digest == contents_digest(bytes(32), StoredRecords(VALUES.copy(), rows))
    other = VALUES.copy()
    other[4, 0, 1, 1] ^= 1
    exchanged = VALUES[[0, 5, 2, 3, 4, 1]]
    for salt, values, where in (
        (bytes(32), other, rows),
        (bytes(32), exchanged, rows),
        (bytes(32), VALUES, rows[::-1]),
        (b"x" * 32, VALUES, rows),
    ):
        assert contents_digest(salt, StoredRecords(values, where)) != digest


def test_what_the_header_commits_to_changes_with_whom_any_record_is_about() -> None:
    stored, test = np.array([3, 3, 7, 8]), np.array([9, 3])
    digest = whose_digest(bytes(32), stored, test)
    assert digest == whose_digest(bytes(32), stored.copy(), test.copy())
    for salt, people, held_out in (
        (b"x" * 32, stored, test),
        (bytes(32), np.array([3, 7, 7, 8]), test),
        (bytes(32), np.array([3, 3, 7, 3]), test),
        (bytes(32), stored, np.array([9, 8])),
        (bytes(32), stored, None),
    ):
        assert whose_digest(salt, people, held_out) != digest


def test_a_witness_notes_one_record_of_each_batch_as_it_is_when_the_batch_is_read() -> None:
    salt, rows = b"s" * 32, np.array([5, 1, 4, 2])
    held = StoredRecords(VALUES.copy(), rows)
    before = dict(zip(rows.tolist(), contents(held, salt), strict=True))
    witness = Witness(salt)
    seen = Witnessed(held, witness, 16)
    assert np.array_equal(seen.rows, rows)
    batches = [[0, 1, 2], [], [3], [1, 2, 3], [0, 3]]
    for batch in batches:
        drawn = seen[torch.tensor(batch, dtype=torch.int64)]
        assert np.array_equal(drawn.rows, rows[batch])
        assert np.array_equal(drawn[:], held[torch.tensor(batch, dtype=torch.int64)][:])
    late = seen[torch.tensor([0, 1])]
    held.values[:] = 9
    late[:]
    noted = witness.arrays()
    for batch, row, content in zip(
        [one for one in batches if one],
        noted["seen_rows"].tolist()[:-1],
        noted["seen_contents"][:-1],
        strict=True,
    ):
        assert row in rows[batch]
        assert np.array_equal(content, before[row])
    assert not np.array_equal(noted["seen_contents"][-1], before[noted["seen_rows"][-1]])
    # The same batches show the same records, whoever computes them.
    again = Witness(salt)
    for batch in batches:
        Witnessed(held, again, 16)[torch.tensor(batch, dtype=torch.int64)][:]
    assert again.rows == witness.rows[:-1]


def test_every_place_of_a_batch_is_looked_at_about_as_often() -> None:
    values = np.zeros((4096, 1), np.uint8)
    witness = Witness(bytes(32))
    for start in range(0, 4096, 4):
        witness.note(StoredRecords(values, np.arange(start, start + 4)))
    # Of 1,024 draws 256 fall on each of four places; further off than 100 once in 10^11 times.
    counts = np.bincount(np.asarray(witness.rows) % 4, minlength=4)
    assert np.abs(counts - 256).max() < 100


def test_what_was_seen_in_a_round_is_told_by_client() -> None:
    one, other = Witness(bytes(32)), Witness(bytes(32))
    for batch in ([0, 1], [2]):
        one.note(StoredRecords(VALUES, np.array(batch)))
    found = seen_in([3, 8], [one.arrays(), other.arrays()])
    assert found["seen_clients"].tolist() == [3, 3]
    assert found["seen_contents"].shape == (2, 16)
    # A client whose records have no rows says nothing, and then the round does not either.
    assert seen_in([3, 8], [one.arrays(), {}]) == {}
    assert seen_in([], [])["seen_contents"].shape == (0, 16)


def test_a_batch_is_noted_once_for_each_gradient_that_is_taken_of_it() -> None:
    held = StoredRecords(VALUES, np.arange(6))
    for together, whole in ((6, [slice(None)]), (2, [slice(0, 2), slice(2, 4), slice(4, 6)])):
        witness = Witness(bytes(32))
        batch = Witnessed(held, witness, together)[torch.arange(6)]
        for part in whole + whole:
            batch[part]
        # What is computed again, one record by itself, is no gradient.
        batch[0:1]
        batch[3:4]
        assert len(witness.arrays()["seen_batches"]) == 2
        assert len(set(witness.batches)) == 1
    other = Witnessed(held, witness, together)[torch.arange(5)]
    other[0:2]
    assert len(set(witness.batches)) == 2
    # One at a time they cannot be told from what is computed again.
    alone = Witness(bytes(32))
    Witnessed(held, alone, 1)[torch.arange(6)][0:1]
    assert alone.arrays().keys() == {"seen_rows", "seen_contents"}
    assert "seen_batches" not in seen_in([0, 1], [witness.arrays(), alone.arrays()])
