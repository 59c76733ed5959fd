"""What is written looks as readers expect, and nobody else can look at it meanwhile."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from dpfedadamw.storage.disk import (
    DISK,
    FOLDER_MODE,
    PRIVATE_MODE,
    PUBLIC_MODE,
    UNFINISHED,
    json_line,
    write_json,
)
from dpfedadamw.storage.lock import RunLock


def test_who_may_read_what():
    assert [oct(mode) for mode in (PUBLIC_MODE, PRIVATE_MODE, FOLDER_MODE)] == [
        "0o644",
        "0o600",
        "0o700",
    ]


def test_a_folder_is_its_owners_alone_from_its_first_moment(tmp_path, monkeypatch):
    at_first = []
    change = Path.chmod

    def watching(path, mode):
        at_first.append(stat.S_IMODE(path.stat().st_mode))
        change(path, mode)

    monkeypatch.setattr(Path, "chmod", watching)
    before = os.umask(0)
    try:
        DISK.make_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    assert at_first == [0o700]


def test_json_is_indented_for_people_and_one_line_for_machines(tmp_path):
    write_json(tmp_path / "file", {"name": "Müller", "clients": [1]})
    text = '{\n  "name": "Müller",\n  "clients": [\n    1\n  ]\n}\n'
    assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert json_line({"round": 1, "epsilon": 0.5}) == b'{"round":1,"epsilon":0.5}\n'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(number, tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file", {"epsilon": number})
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line({"epsilon": number})
    assert not (tmp_path / "file").exists()


def test_a_file_that_is_created_was_not_there_before(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        DISK.create(tmp_path / "file", PUBLIC_MODE)
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_cut_is_on_the_disk_when_it_returns(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"0123456789")
    sizes = []
    monkeypatch.setattr(os, "fsync", lambda file: sizes.append(os.fstat(file).st_size))
    DISK.cut(tmp_path / "file", 4)
    assert (tmp_path / "file").read_bytes() == b"0123"
    assert sizes == [4]


def test_a_file_that_was_cut_is_closed(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"0123456789")
    closed = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda file: (closed.append(file), close(file)))
    DISK.cut(tmp_path / "file", 4)
    assert len(closed) == 1


def test_a_lock_says_who_holds_it_and_since_when(tmp_path):
    with RunLock(tmp_path):
        said = json.loads((tmp_path / UNFINISHED / "lock").read_bytes())
    assert set(said) == {"process", "machine", "started"}
    assert said["process"] == os.getpid()
    assert said["started"].endswith(" UTC")


def test_the_place_goes_though_somebody_removed_the_lock(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / UNFINISHED / "lock").unlink()
    assert os.listdir(tmp_path) == []


def test_what_a_writer_left_unfinished_goes_when_it_lets_go(tmp_path):
    with RunLock(tmp_path):
        (tmp_path / UNFINISHED / "half").write_text("half")
    assert os.listdir(tmp_path) == []
