"""The digest of what a client holds changes with every record, label, order and owner."""

from __future__ import annotations

import numpy as np
import pytest

from dpfedadamw.data.datasets import Records
from dpfedadamw.data.digests import client_digests
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.storage import mapped

VALUES = np.arange(48, dtype=np.uint8).reshape(8, 2, 3)
LABELS = np.arange(8) % 3
OWNER = np.array([1, 0, 1, 0, 0, 2, 2, 1])


def digested(values=VALUES, labels=LABELS, owner=OWNER, rows=None) -> list[bytes]:
    return client_digests(Records(StoredRecords(values, rows), labels), owner, 3)


def test_what_is_the_same_has_the_same_digest(monkeypatch):
    first = digested()
    assert len(set(first)) == 3
    assert digested(VALUES.copy()) == first
    monkeypatch.setattr(mapped, "AT_ONCE", 7)
    assert digested() == first


def test_a_selection_is_digested_by_the_rows_that_it_has():
    rows = np.array([3, 1, 2, 0, 7, 6, 5, 4])
    assert digested(rows=rows) == digested(VALUES[rows])
    assert digested(rows=rows) != digested()


@pytest.mark.parametrize("client", [0, 1, 2])
def test_every_record_label_and_owner_counts_for_its_client_alone(client):
    first, row = digested(), int(np.flatnonzero(client == OWNER)[0])
    values, labels = VALUES.copy(), LABELS.copy()
    values[row, 1, 2] += 1
    labels[row] += 1
    for changed in (digested(values), digested(labels=labels)):
        differ = [one != other for one, other in zip(first, changed, strict=True)]
        assert differ == [number == client for number in range(3)]


def test_records_exchanged_between_clients_or_within_one_are_noticed():
    owner = OWNER.copy()
    owner[[0, 1]] = owner[[1, 0]]
    assert digested(owner=owner)[:2] != digested()[:2]
    order = np.array([2, 1, 0, *range(3, 8)])
    assert digested(VALUES[order], LABELS[order])[1] != digested()[1]


def test_how_numbers_are_stored_is_part_of_it_and_byte_order_is_not():
    floats = VALUES.astype("<f4")
    assert digested(floats) != digested()
    assert digested(floats.astype(">f4")) == digested(floats)
