"""The engine's door to files that anybody may have made: what comes in, and what is refused how."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from dpfedadamw.storage import foreign
from dpfedadamw.storage.foreign import (
    ForeignFileError,
    read_arrays,
    read_chosen,
    read_json,
    read_json_lines,
    read_mapping,
    read_salt,
)


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_lines_are_mappings_and_the_one_that_is_none_is_named(tmp_path):
    path = written(tmp_path / "lines", '{"a": 1}\n{"b": [2, null]}\n')
    assert read_json_lines(path) == [{"a": 1}, {"b": [2, None]}]
    assert read_json_lines(written(path, "")) == []
    for line in ("[1]", "3", "{", '{"a": 1, "a": 2}', '{"a": NaN}', ""):
        written(path, f'{{"a": 1}}\n{line}\n{{"a": 1}}')
        with pytest.raises(ForeignFileError, match=f"{path}, line 2: "):
            read_json_lines(path)


def test_a_mapping_is_asked_for_where_one_is_needed_and_any_value_elsewhere(tmp_path):
    path = written(tmp_path / "value", "[1, 2]")
    assert read_json(path) == [1, 2]
    for broken in ("{", "[NaN]", '{"a": 1, "a": 2}', ""):
        with pytest.raises(ForeignFileError, match=f"{path}: "):
            read_json(written(tmp_path / "value", broken))
    written(path, "[1, 2]")
    with pytest.raises(ForeignFileError, match=f"{path}: is no mapping"):
        read_mapping(path)
    assert read_mapping(written(path, '{"a": 1}')) == {"a": 1}


def test_arrays_can_be_written_to_and_nothing_is_unpickled(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, a=np.arange(3), b=np.zeros((2, 0)))
    found = read_arrays(path)
    found["a"] += 1
    assert found["a"].tolist() == [1, 2, 3]
    assert found["b"].shape == (2, 0)
    written(path, pickle.dumps({"a": 1}))
    with pytest.raises(ForeignFileError, match=str(path)):
        read_arrays(path)
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(ForeignFileError, match=str(path)):
        read_arrays(path)


@pytest.mark.parametrize("read", [read_json, read_json_lines, read_mapping, read_arrays, read_salt])
def test_links_folders_and_missing_files_are_refused(read, tmp_path):
    real = written(tmp_path / "real", "{}")
    (tmp_path / "link").symlink_to(real)
    for name in ("link", ".", "missing"):
        with pytest.raises(OSError):  # noqa: PT011
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("read", "limit"),
    [
        (read_json, "MOST_TEXT_BYTES"),
        (read_json_lines, "MOST_TEXT_BYTES"),
        (read_mapping, "MOST_TEXT_BYTES"),
        (read_arrays, "MOST_ARRAY_BYTES"),
    ],
)
def test_no_more_is_read_than_the_limit(read, limit, tmp_path, monkeypatch):
    assert (foreign.MOST_TEXT_BYTES, foreign.MOST_ARRAY_BYTES) == (2**28, 2**30)
    path = tmp_path / "x"
    if read is read_arrays:
        np.savez(path, a=np.arange(3))
        path = tmp_path / "x.npz"
    else:
        written(path, '{"a": 1}')
    monkeypatch.setattr(foreign, limit, path.stat().st_size)
    read(path)
    monkeypatch.setattr(foreign, limit, path.stat().st_size - 1)
    with pytest.raises(OSError, match="large"):
        read(path)


def test_a_secret_has_its_length(tmp_path):
    path = written(tmp_path / "salt", bytes(range(32)))
    assert read_salt(path) == bytes(range(32))
    for size in (0, 31, 33, 64):
        with pytest.raises(ForeignFileError, match=f"has {size} bytes, not 32"):
            read_salt(written(path, bytes(size)))


def test_a_file_that_the_user_names_may_be_a_link_and_has_a_limit(tmp_path):
    real = written(tmp_path / "real", b"12345")
    (tmp_path / "link").symlink_to(real)
    assert read_chosen(tmp_path / "link", 5) == b"12345"
    with pytest.raises(ForeignFileError, match="is larger than 4 bytes"):
        read_chosen(real, 4)
    with pytest.raises(OSError):  # noqa: PT011
        read_chosen(tmp_path, 5)
