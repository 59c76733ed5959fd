"""Whole writes: what is synced before what, and what permissions files have."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

import pytest

from dpfedadamw.storage.disk import (
    DISK,
    MOST_BYTES,
    PRIVATE_MODE,
    UNFINISHED,
    Disk,
    append,
    make_folders,
    settle,
    write_atomically,
    write_json,
)


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


@pytest.fixture
def failing_sync(monkeypatch):
    """A disk that takes what is written and never has it."""

    def failing(_descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)


@pytest.fixture
def none_left_open(monkeypatch):
    """Every descriptor that the test opened was closed by its end."""
    opened, closed = [], []
    opening, closing = os.open, os.close

    def watched_open(*given, **named):
        opened.append(opening(*given, **named))
        return opened[-1]

    def watched_close(descriptor):
        closed.append(descriptor)
        closing(descriptor)

    monkeypatch.setattr(os, "open", watched_open)
    monkeypatch.setattr(os, "close", watched_close)
    yield
    assert opened
    assert closed == opened


@pytest.mark.usefixtures("failing_sync", "none_left_open")
@pytest.mark.parametrize(
    ("step", "named"),
    [
        (lambda path: append(path / "file", b"more", 3), "file"),
        (lambda path: settle(path / "file"), "file"),
        (lambda path: DISK.cut(path / "file", 1), "file"),
        (lambda path: DISK.sync_folder(path), None),
        (lambda path: write_atomically(path / "other", b"new"), "other"),
    ],
)
def test_a_sync_that_fails_is_told_by_name_and_nothing_stays_open(step, named, tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="Input/output error") as caught:
        step(tmp_path)
    assert caught.value.filename == str(tmp_path / named if named else tmp_path)
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.usefixtures("none_left_open")
def test_every_step_closes_what_it_opened(tmp_path):
    write_atomically(tmp_path / "file", b"0123456789")
    append(tmp_path / "file", b"more", 10)
    settle(tmp_path / "file")
    DISK.cut(tmp_path / "file", 2)
    DISK.sync_folder(tmp_path)


@pytest.mark.usefixtures("none_left_open")
def test_a_file_that_cannot_be_given_its_permissions_is_closed(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchmod", failing)
    with pytest.raises(PermissionError) as caught:
        DISK.create(tmp_path / "file", 0o644)
    assert caught.value.filename == str(tmp_path / "file")


def test_a_name_that_the_system_told_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"old")

    def failing(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/the/device")

    monkeypatch.setattr(os, "write", failing)
    with pytest.raises(OSError, match="Input/output error") as caught:
        append(tmp_path / "file", b"new", 3)
    assert caught.value.filename == "/the/device"


def test_settling_a_file_waits_for_it_and_changes_nothing(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    disk = Watched()
    settle(tmp_path / "file", disk)
    assert disk.steps == ["sync"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_what_was_torn_behind_the_end_is_written_over(tmp_path):
    (tmp_path / "file").write_bytes(b"kept torn")
    append(tmp_path / "file", b"MORE", 4)
    assert (tmp_path / "file").read_bytes() == b"keptMOREn"


def test_whoever_writes_many_files_may_wait_for_their_names_once(tmp_path):
    disk = Watched()
    write_atomically(tmp_path / "file", b"content", disk=disk, settle=False)
    assert disk.steps == ["write", "sync", "rename"]


def test_nobody_waits_for_a_file_that_only_running_processes_read(tmp_path):
    disk = Watched()
    write_atomically(tmp_path / "file", b"content", disk=disk, lasting=False)
    assert disk.steps == ["write", "rename"]


@pytest.mark.parametrize("place", [".", "evidence"])
def test_an_unfinished_file_is_hidden_and_in_the_runs_place_if_there_is_one(place, tmp_path):
    seen = []

    class Renaming(Disk):
        def rename(self, old, new):
            seen.append(old)
            super().rename(old, new)

    folder = tmp_path / "run" / place
    folder.mkdir(parents=True)
    write_atomically(folder / "file", b"1", disk=Renaming())
    (tmp_path / "run" / UNFINISHED).mkdir()
    write_atomically(folder / "file", b"2", disk=Renaming())
    assert [path.parent for path in seen] == [folder, tmp_path / "run" / UNFINISHED]
    assert all(re.fullmatch(r"\.file-[0-9a-f]{8}", path.name) for path in seen)
    assert seen[0].name != seen[1].name


def test_a_file_two_folders_below_is_not_taken_for_the_runs(tmp_path):
    (tmp_path / UNFINISHED).mkdir()
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)

    class Failing(Disk):
        def rename(self, old, new):
            assert old.parent == folder
            raise OSError(errno.EACCES, "no", str(old), None, str(new))

    with pytest.raises(PermissionError) as caught:
        write_atomically(folder / "file", b"1", disk=Failing())
    # The name that the reader of a message knows, alone, and nothing is left of the other.
    assert (caught.value.filename, caught.value.filename2) == (str(folder / "file"), None)
    assert os.listdir(folder) == []


def test_an_interrupted_write_leaves_nothing_and_stays_an_interruption(tmp_path):
    class Interrupted(Disk):
        def sync(self, file):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"1", disk=Interrupted())
    assert os.listdir(tmp_path) == []


def test_where_even_the_removal_fails_the_first_error_is_told(tmp_path):
    class Broken(Disk):
        def sync(self, file):
            raise OSError(errno.ENOSPC, "full")

        def remove(self, path):
            raise OSError(errno.EIO, "broken", str(path))

    with pytest.raises(OSError, match="full"):
        write_atomically(tmp_path / "file", b"1", disk=Broken())


class Folders(Disk):
    """Notes which folders are made and synced, by their names."""

    def __init__(self):
        self.steps = []

    def make_folder(self, path, private=True):
        super().make_folder(path, private)
        self.steps.append(("made", path.name, private))

    def sync_folder(self, path):
        super().sync_folder(path)
        self.steps.append(("synced", path.name))


def test_folders_are_made_from_the_outermost_and_each_is_on_the_disk_before_the_next(tmp_path):
    disk = Folders()
    make_folders(tmp_path / "there" / "below", disk)
    assert disk.steps == [
        ("synced", tmp_path.parent.name),
        ("made", "there", False),
        ("synced", tmp_path.name),
        ("made", "below", False),
        ("synced", "there"),
    ]
    disk.steps.clear()
    make_folders(tmp_path / "there" / "below", disk)
    assert disk.steps == [("synced", "there")]


def test_a_folder_that_another_makes_meanwhile_is_synced_all_the_same(tmp_path):
    class Raced(Folders):
        def make_folder(self, path, private=True):
            path.mkdir()
            super().make_folder(path, private)

    disk = Raced()
    make_folders(tmp_path / "new", disk)
    assert disk.steps == [("synced", tmp_path.parent.name), ("synced", tmp_path.name)]


def test_only_a_folder_above_what_was_made_may_be_closed_to_us(tmp_path):
    class Closed(Folders):
        refused: Path

        def sync_folder(self, path):
            if path == self.refused:
                raise PermissionError(errno.EACCES, "no", str(path))
            super().sync_folder(path)

    disk = Closed()
    disk.refused = tmp_path.parent
    make_folders(tmp_path / "one", disk)
    assert disk.steps == [("made", "one", False), ("synced", tmp_path.name)]
    disk.refused = tmp_path
    with pytest.raises(PermissionError):
        make_folders(tmp_path / "two", disk)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o755), (0o027, 0o750)])
def test_folders_that_are_not_private_are_as_the_umask_says(umask, mode, tmp_path):
    before = os.umask(umask)
    try:
        make_folders(tmp_path / "folder")
        DISK.make_folder(tmp_path / "public", private=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == mode
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == mode


def test_json_has_the_permissions_that_were_asked_for(tmp_path):
    write_json(tmp_path / "public", {})
    write_json(tmp_path / "private", {}, PRIVATE_MODE)
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600


@pytest.mark.parametrize("part", ["evidence", "checkpoint"])
def test_a_run_whose_own_folder_is_a_link_is_not_read_through_it(part, tmp_path):
    """Else a command on somebody's run would show what another run keeps to itself."""
    private = tmp_path / "private" / part
    private.mkdir(parents=True)
    (private / "layout.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / part).symlink_to(private)
    with pytest.raises(OSError, match="lies behind a symbolic link"):
        DISK.read(tmp_path / "run" / part / "layout.json")
    assert DISK.read(private / "layout.json") == b"{}"
    # The run itself may be one, as runs/latest is.
    (tmp_path / "latest").symlink_to(private.parent)
    assert DISK.read(tmp_path / "latest" / part / "layout.json") == b"{}"


def test_a_file_that_is_missing_is_told_from_one_that_may_not_be_read(tmp_path):
    """A run without a checkpoint begins at its start; one with a link in its place is refused."""
    with pytest.raises(FileNotFoundError) as missing:
        DISK.read(tmp_path / "none")
    assert missing.value.filename == str(tmp_path / "none")
    (tmp_path / "link").symlink_to("none")
    with pytest.raises(OSError, match="symbolic link") as refused:
        DISK.read(tmp_path / "link")
    assert not isinstance(refused.value, FileNotFoundError)
    assert refused.value.filename == str(tmp_path / "link")
    # Of files of which nothing more is known: states of large models are smaller.
    assert MOST_BYTES == 2**32
    (tmp_path / "long").write_bytes(b"12345")
    assert DISK.read(tmp_path / "long", 5) == b"12345"
    with pytest.raises(OSError, match="larger than"):
        DISK.read(tmp_path / "long", 4)


def test_kinds_of_files_are_told_apart_and_links_are_not_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to a file").symlink_to("file")
    (tmp_path / "to a folder").symlink_to("folder")
    (tmp_path / "to nothing").symlink_to("nothing")
    asked = {"exists": DISK.exists, "link": DISK.is_link, "file": DISK.is_file}
    asked["folder"] = DISK.is_folder
    names = ["file", "folder", "to a file", "to a folder", "to nothing", "nothing"]
    found = {
        name: {kind for kind, is_it in asked.items() if is_it(tmp_path / name)} for name in names
    }
    assert found == {
        "file": {"exists", "file"},
        "folder": {"exists", "folder"},
        "to a file": {"exists", "link"},
        "to a folder": {"exists", "link"},
        "to nothing": {"exists", "link"},
        "nothing": set(),
    }
    assert DISK.size(tmp_path / "file") == 3


def test_names_are_sorted_and_there_are_none_without_a_folder(tmp_path, monkeypatch):
    for name in "bca":
        (tmp_path / name).write_bytes(b"")
    monkeypatch.setattr(os, "listdir", lambda path: ["b", "c", "a"] if path == tmp_path else 1 / 0)
    assert DISK.names(tmp_path) == ["a", "b", "c"]
    monkeypatch.undo()
    assert DISK.names(tmp_path / "none") == []


def test_an_opened_file_knows_whether_it_still_has_its_name(tmp_path):
    file = DISK.open_or_create(tmp_path / "file", 0o600)
    try:
        assert DISK.is_named(file)
        (tmp_path / "file").unlink()
        assert not DISK.is_named(file)
        (tmp_path / "file").write_bytes(b"another's")
        assert not DISK.is_named(file)
    finally:
        DISK.close(file)


def test_a_file_that_is_opened_or_made_keeps_what_is_there_and_is_no_link(tmp_path):
    file = DISK.open_or_create(tmp_path / "file", 0o600)
    DISK.write(file, b"content")
    DISK.close(file)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    DISK.close(DISK.open_or_create(tmp_path / "file", 0o600))
    assert (tmp_path / "file").read_bytes() == b"content"
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        DISK.open_or_create(tmp_path / "link", 0o600)


def test_nothing_is_written_through_a_link(tmp_path):
    (tmp_path / "other").write_bytes(b"another run's")
    (tmp_path / "link").symlink_to("other")
    for step in (DISK.open, lambda path: DISK.cut(path, 0), settle):
        with pytest.raises(OSError, match="symbolic links"):
            step(tmp_path / "link")
    assert (tmp_path / "other").read_bytes() == b"another run's"


def test_only_a_folders_names_are_synced(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        DISK.sync_folder(tmp_path / "file")


def test_what_is_opened_to_write_must_be_there(tmp_path):
    for step in (DISK.open, lambda path: DISK.cut(path, 0), settle):
        with pytest.raises(FileNotFoundError):
            step(tmp_path / "none")
    assert os.listdir(tmp_path) == []


def test_a_tree_goes_as_far_as_it_can_and_a_folder_only_if_it_is_empty(tmp_path):
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").write_bytes(b"")
    with pytest.raises(OSError, match="not empty"):
        DISK.remove_folder(tmp_path / "tree")
    DISK.remove_tree(tmp_path / "tree")
    DISK.remove_tree(tmp_path / "tree")
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_open_is_not_handed_to_other_programs(tmp_path):
    file = DISK.create(tmp_path / "file", 0o600)
    try:
        assert not os.get_inheritable(file.descriptor)
    finally:
        DISK.close(file)


def test_an_open_file_has_its_name_until_it_is_removed_or_another_takes_it(tmp_path):
    path = tmp_path / "a"
    file = DISK.open_or_create(path, 0o600)
    assert DISK.is_named(file) is True
    other = tmp_path / "b"
    other.write_bytes(b"")
    DISK.rename(other, path)
    assert DISK.is_named(file) is False
    DISK.remove(path)
    assert DISK.is_named(file) is False
    DISK.close(file)
