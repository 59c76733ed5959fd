"""Pages of a mapped file are let go of, and what was read stays readable."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfedadamw.storage.mapped import AT_ONCE, let_go, stretches


def resident(path: Path) -> int:
    """KiB of a mapped file that lie in this process's memory."""
    maps = Path("/proc/self/smaps").read_text()
    of_file = re.search(rf"{re.escape(str(path))}\n(?:\w+:.*\n)*?Rss: +(\d+) kB", maps)
    assert of_file is not None
    return int(of_file[1])


@pytest.mark.skipif(sys.platform != "linux", reason="what is in memory is read from /proc")
@pytest.mark.parametrize("view", [lambda all_of_it: all_of_it, lambda all_of_it: all_of_it[3:9].T])
def test_a_mapped_file_that_was_read_is_let_go_of_and_can_be_read_again(view, tmp_path: Path):
    path = tmp_path / "records"
    np.arange(2**20, dtype=np.int64).tofile(path)
    values = np.memmap(path, np.int64, "r", shape=(1024, 1024))
    total = int(values.sum())
    assert resident(path) > 4096
    let_go(view(values))
    assert resident(path) < 1024
    assert int(values.sum()) == total


def test_an_array_that_is_no_file_is_left_alone():
    values = np.arange(10)
    let_go(values[2:])
    assert values.tolist() == list(range(10))


@given(
    st.lists(st.integers(0, 2**20), unique=True, max_size=40), st.integers(0, 2**25), st.booleans()
)
def test_every_row_is_in_one_part_and_a_part_touches_no_more_of_the_file(rows, each, ascending):
    rows = np.array(sorted(rows) if ascending else rows, np.int64)
    parts = list(stretches(rows, each))
    assert np.concatenate([rows[:0], *(rows[part] for part in parts)]).tolist() == rows.tolist()
    for part in parts:
        # A row that is larger by itself is read whole.
        assert (part.stop - part.start) * each <= max(AT_ONCE, each)
        if ascending:
            assert (rows[part][-1] - rows[part][0] + 1) * each <= max(AT_ONCE, each)


def test_rows_far_from_one_another_are_read_one_by_one():
    assert len(list(stretches(np.arange(5) * 2**14, 1024))) == 5
    assert len(list(stretches(np.arange(5) * 2**10, 1024))) == 1


def test_rows_out_of_order_are_limited_by_their_own_bytes_alone():
    rows = np.array([0, 5, 4, 3, 2, 1]) * 2**20
    assert list(stretches(rows, 1024)) == [slice(0, 6)]


def test_a_system_without_the_advice_is_left_alone(tmp_path: Path, monkeypatch):
    path = tmp_path / "records"
    np.arange(1024, dtype=np.int64).tofile(path)
    values = np.memmap(path, np.int64, "r")
    monkeypatch.delattr(mmap, "MADV_DONTNEED", raising=False)
    let_go(values)
    assert values.tolist() == list(range(1024))
