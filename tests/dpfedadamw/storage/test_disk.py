"""Whole writes: what is synced before what, and what permissions files have."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from dpfedadamw.storage.disk import DISK, Disk, append, write_atomically


class Watched(Disk):
    """Notes the steps that decide what survives a crash."""

    def __init__(self):
        self.steps = []

    def write(self, file, content, offset=0):
        self.steps.append("write")
        super().write(file, content, offset)

    def sync(self, file):
        self.steps.append("sync")
        super().sync(file)

    def rename(self, old, new):
        self.steps.append("rename")
        super().rename(old, new)

    def sync_folder(self, path):
        self.steps.append("sync folder")
        super().sync_folder(path)


def test_content_is_on_the_disk_before_the_name_and_the_name_before_it_returns(tmp_path):
    disk = Watched()
    write_atomically(tmp_path / "file", b"content", disk=disk)
    assert disk.steps == ["write", "sync", "rename", "sync folder"]


def test_an_append_returns_once_it_is_on_the_disk(tmp_path):
    (tmp_path / "file").write_bytes(b"1")
    disk = Watched()
    append(tmp_path / "file", b"2", 1, disk)
    assert disk.steps == ["write", "sync"]
    assert (tmp_path / "file").read_bytes() == b"12"


def test_every_step_reaches_the_operating_system(tmp_path, monkeypatch):
    synced = []
    sync = os.fsync

    def watching(descriptor):
        synced.append(stat.S_IFMT(os.fstat(descriptor).st_mode))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watching)
    write_atomically(tmp_path / "file", b"content")
    append(tmp_path / "file", b"more", 7)
    assert synced == [stat.S_IFREG, stat.S_IFDIR, stat.S_IFREG]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o277])
def test_permissions_are_the_wanted_ones_whatever_the_umask(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "public", b"")
        write_atomically(tmp_path / "private", b"", 0o600)
        DISK.make_folder(tmp_path / "folder")
    finally:
        os.umask(before)
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()}
    assert modes == {"public": 0o644, "private": 0o600, "folder": 0o700}


@pytest.mark.parametrize("step", ["fchmod", "write", "fsync"])
def test_a_write_that_fails_leaves_the_old_content_and_names_the_file(step, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")

    def failing(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, failing)
    with pytest.raises(OSError, match=r"No space left on device: '.*file") as caught:
        write_atomically(tmp_path / "file", b"new")
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_what_failed_first_is_told_where_closing_fails_too(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fchmod", failing)
    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(OSError, match=r"Input/output error: '.*file'"):
        DISK.create(tmp_path / "file", 0o644)


def test_a_write_that_the_system_cuts_short_is_continued(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:3]))
    write_atomically(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
