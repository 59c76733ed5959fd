"""Pages of a mapped file are let go of, and what was read stays readable."""

from __future__ import annotations

import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.storage.mapped import let_go


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


def test_a_system_without_the_advice_is_left_alone(tmp_path: Path, monkeypatch):
    path = tmp_path / "records"
    np.arange(1024, dtype=np.int64).tofile(path)
    values = np.memmap(path, np.int64, "r")
    monkeypatch.delattr(mmap, "MADV_DONTNEED", raising=False)
    let_go(values)
    assert values.tolist() == list(range(1024))
