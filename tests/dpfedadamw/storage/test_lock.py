"""One writer at a time: who is told what, and what a writer that was killed leaves behind."""

from __future__ import annotations

import errno
import json
import os
import platform
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfedadamw.storage.disk import UNFINISHED, Disk, write_atomically
from dpfedadamw.storage.lock import LockedError, RunLock, is_held

HOLD = """
import sys
import time
from pathlib import Path
from dpfedadamw.storage.lock import RunLock

lock = RunLock(Path(sys.argv[1]))
(Path(sys.argv[1]) / ".unfinished" / "half").write_text("half")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that writes to the folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_second_writer_is_told_who_the_first_is_and_since_when(holder, tmp_path):
    assert is_held(tmp_path)
    with pytest.raises(LockedError, match=rf"process {holder.pid} on .+, since 2\d{{3}}-"):
        RunLock(tmp_path)


def test_a_killed_writer_holds_nothing_and_what_it_left_is_swept(holder, tmp_path):
    holder.kill()
    holder.wait()
    assert (tmp_path / UNFINISHED / "half").exists()
    assert not is_held(tmp_path)
    with RunLock(tmp_path) as lock:
        assert lock.cut_off
        assert os.listdir(tmp_path / UNFINISHED) == ["lock"]
    assert os.listdir(tmp_path) == []


def test_nothing_is_left_of_a_writer_that_ended_well(tmp_path):
    with RunLock(tmp_path) as lock:
        assert lock.held
        assert not lock.cut_off
        write_atomically(tmp_path / "file", b"content")
    assert not lock.held
    assert os.listdir(tmp_path) == ["file"]


def test_two_writers_of_one_process_exclude_each_other_too(tmp_path):
    with RunLock(tmp_path), pytest.raises(LockedError):
        RunLock(tmp_path)
    RunLock(tmp_path).release()


def test_a_link_is_not_followed_to_make_or_sweep_files(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / UNFINISHED).symlink_to(elsewhere)
    with pytest.raises(LockedError, match="is a link"):
        RunLock(run)
    assert os.listdir(elsewhere) == ["precious"]


def test_a_file_that_is_not_whole_lies_in_the_runs_place_for_such_files(tmp_path, monkeypatch):
    seen = []
    rename = Path.replace

    def watching(self, target):
        seen.append((self.parent.name, Path(target).name))
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", watching)
    (tmp_path / "evidence").mkdir()
    with RunLock(tmp_path):
        write_atomically(tmp_path / "file", b"1")
        write_atomically(tmp_path / "evidence" / "below", b"2")
    write_atomically(tmp_path / "file", b"3")
    assert seen == [(UNFINISHED, "file"), (UNFINISHED, "below"), (tmp_path.name, "file")]


@pytest.fixture
def failing_removal(monkeypatch):
    def rmdir(path, *_rest, **_more):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(os, "rmdir", rmdir)


def test_a_place_that_stays_after_work_that_ended_well_is_told(failing_removal, tmp_path):
    with pytest.raises(OSError, match=rf"error: '.*{UNFINISHED}'"), RunLock(tmp_path):
        pass
    assert not is_held(tmp_path)


def test_what_ended_the_work_is_told_rather_than_what_its_lock_left(failing_removal, tmp_path):
    with pytest.raises(KeyError, match="of the work"), RunLock(tmp_path):
        raise KeyError("of the work")
    assert not is_held(tmp_path)


def test_a_lock_that_cannot_be_closed_hides_nothing(monkeypatch, tmp_path):
    lock = RunLock(tmp_path)
    close = os.close

    def closing(descriptor):
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", closing)
        lock.release()
    assert not is_held(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("signs", [True, False])
def test_a_killed_writer_is_not_named_while_the_next_has_yet_to_sign(signs, tmp_path, monkeypatch):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    monkeypatch.setattr(os, "getpid", lambda: ended.pid)
    with RunLock(tmp_path):
        monkeypatch.undo()
        # The next holder signs while the other waits to read who it is.
        lock = tmp_path / UNFINISHED / "lock"
        now = json.loads(lock.read_bytes()[:400]) | {"process": os.getpid()}

        def wait(_seconds: float) -> None:
            if signs:
                lock.write_bytes(json.dumps(now).encode().ljust(400))

        monkeypatch.setattr(time, "sleep", wait)
        with pytest.raises(LockedError) as caught:
            RunLock(tmp_path)
    assert str(ended.pid) not in str(caught.value).partition("run (")[2].partition(",")[0]
    assert (f"(process {os.getpid()} on" in str(caught.value)) == signs


def lock_file(folder: Path) -> Path:
    return folder / UNFINISHED / "lock"


class Troubled(Disk):
    """A disk whose steps fail as it is told: by name, an error or what is returned."""

    def __init__(self, **troubles):
        self.tried = []
        for name, trouble in troubles.items():
            setattr(self, name, self._troubled(name, trouble))

    def _troubled(self, name, trouble):
        def step(*_given, **_named):
            self.tried.append(name)
            if isinstance(trouble, BaseException):
                raise trouble
            return trouble

        return step


@pytest.mark.parametrize("number", [errno.EACCES, errno.EAGAIN])
def test_a_lock_that_another_holds_is_said_to_be_held(number, tmp_path):
    disk = Troubled(lock=OSError(number, "no"))
    with pytest.raises(LockedError, match="another process is writing to this run; wait until"):
        RunLock(tmp_path, disk)
    assert disk.tried == ["lock"]


def test_a_file_system_without_locks_is_refused(tmp_path):
    with pytest.raises(LockedError, match=r"cannot lock files \(no locks\)"):
        RunLock(tmp_path, Troubled(lock=OSError(errno.ENOLCK, "no locks")))
    assert not is_held(tmp_path)


def test_a_lock_that_is_lost_again_and_again_is_tried_twenty_times(tmp_path):
    disk = Troubled(is_named=False)
    with pytest.raises(LockedError, match="other processes keep locking it"):
        RunLock(tmp_path, disk)
    assert len(disk.tried) == 20
    assert not is_held(tmp_path)


def test_a_place_that_its_last_holder_has_just_removed_is_made_again(tmp_path):
    class Removed(Disk):
        left = 19

        def open_or_create(self, path, mode):
            if self.left:
                self.left -= 1
                path.parent.rmdir()
            return super().open_or_create(path, mode)

    with RunLock(tmp_path, Removed()):
        assert is_held(tmp_path)
    disk = Removed()
    disk.left = 20
    with pytest.raises(LockedError, match="other processes keep locking it"):
        RunLock(tmp_path, disk)


def test_a_run_that_is_not_there_cannot_be_locked(tmp_path):
    with pytest.raises(FileNotFoundError):
        RunLock(tmp_path / "none")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError):
        RunLock(tmp_path / "file")


def test_a_lock_that_cannot_be_signed_is_given_free(tmp_path):
    with pytest.raises(OSError, match="full"):
        RunLock(tmp_path, Troubled(write=OSError(errno.ENOSPC, "full")))
    assert not is_held(tmp_path)


def test_a_holder_signs_over_whatever_an_earlier_one_wrote(tmp_path):
    lock_file(tmp_path).parent.mkdir()
    lock_file(tmp_path).write_bytes(b"x" * 400)
    earliest = datetime.now(UTC) - timedelta(seconds=1)
    with RunLock(tmp_path):
        content = lock_file(tmp_path).read_bytes()
    assert len(content) == 400
    said = json.loads(content)
    assert (said["process"], said["machine"]) == (os.getpid(), platform.node())
    started = datetime.strptime(said["started"], "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    assert earliest <= started <= datetime.now(UTC)


def test_a_new_lock_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        with RunLock(tmp_path):
            assert stat.S_IMODE(lock_file(tmp_path).stat().st_mode) == 0o600
            assert stat.S_IMODE((tmp_path / UNFINISHED).stat().st_mode) == 0o700
    finally:
        os.umask(before)


def told_of(folder: Path, signature: bytes) -> str:
    """What the second writer is told of a first one that signed so."""
    with RunLock(folder):
        lock_file(folder).write_bytes(signature)
        with pytest.raises(LockedError) as caught:
            RunLock(folder)
    return str(caught.value).removeprefix(f"{folder}: another process is writing to this run")


def signature(**changes) -> bytes:
    """What a holder writes of itself: here of the first process of this machine, which lives."""
    said = {"process": 1, "machine": platform.node(), "started": "today"} | changes
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode()


@pytest.mark.parametrize(
    "signed",
    [
        b"",
        b"[1]",
        b"torn",
        signature(process=None),
        signature(machine=None),
        signature(started=None),
        signature(process="many"),
        signature(process=[]),
        signature(started="a line\nmore"),
        signature(machine="m\x1b[2J"),
        signature() + b" " * (399 - len(signature())) + b"xyz",
    ],
)
def test_a_holder_whose_signature_cannot_be_read_is_not_named(signed, tmp_path):
    assert told_of(tmp_path, signed) == "; wait until it has ended"


def test_what_stands_behind_a_signature_is_not_read(tmp_path):
    told = told_of(tmp_path, signature().ljust(400) + b"an earlier one's")
    assert told.startswith(f" (process 1 on {platform.node()}, since today); wait")


@pytest.fixture
def ended():
    """The number of a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    return process.pid


def test_a_process_of_another_machine_is_named_whether_it_lives_or_not(ended, tmp_path):
    told = told_of(tmp_path, signature(process=ended, machine="elsewhere"))
    assert told.startswith(f" (process {ended} on elsewhere, since today)")


def test_the_next_holder_is_given_a_fifth_of_a_second_to_sign(ended, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(time, "sleep", waits.append)
    assert told_of(tmp_path, signature(process=ended)) == "; wait until it has ended"
    assert sum(waits) == pytest.approx(0.2)
    assert len(waits) == 20


@pytest.mark.parametrize(
    ("trouble", "named"),
    [
        (ProcessLookupError(), False),
        (PermissionError(), True),
        (OverflowError(), True),
        (OSError(), True),
    ],
)
def test_a_process_is_taken_to_live_unless_the_system_knows_it_does_not(
    trouble, named, tmp_path, monkeypatch
):
    asked = []

    def kill(*given):
        asked.append(given)
        raise trouble

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    assert ("(process 12345 on" in told_of(tmp_path, signature(process=12345))) == named
    assert set(asked) == {(12345, 0)}


def test_a_lock_whose_run_has_another_name_is_removed_there(tmp_path):
    (tmp_path / "old").mkdir()
    lock = RunLock(tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    lock.moved(tmp_path / "new")
    assert is_held(tmp_path / "new")
    (tmp_path / "new" / UNFINISHED / "half").write_text("half")
    lock.release()
    assert os.listdir(tmp_path) == ["new"]
    assert os.listdir(tmp_path / "new") == []
    lock.moved(tmp_path)
    lock.release()
    assert not lock.held


def test_another_holders_lock_and_files_are_left_alone(tmp_path):
    lock = RunLock(tmp_path)
    lock_file(tmp_path).unlink()
    with RunLock(tmp_path) as other:
        assert other.cut_off
        (tmp_path / UNFINISHED / "half").write_text("half")
        lock.release()
        assert not lock.held
        assert sorted(os.listdir(tmp_path / UNFINISHED)) == ["half", "lock"]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), False),
        (OSError(errno.ENOTEMPTY, "not empty"), False),
        (OSError(errno.EEXIST, "not empty"), False),
        (OSError(errno.EIO, "broken"), True),
    ],
)
def test_a_place_that_another_holder_uses_or_removed_is_no_error(trouble, told, tmp_path):
    disk = Troubled(remove_folder=trouble)
    if told:
        with pytest.raises(OSError, match="broken"), RunLock(tmp_path, disk):
            pass
    else:
        with RunLock(tmp_path, disk):
            pass
    assert disk.tried == ["remove_folder"]


def test_where_an_open_file_cannot_be_removed_the_empty_place_is_left(tmp_path):
    with RunLock(tmp_path, Troubled(remove=PermissionError(errno.EACCES, "open"))) as lock:
        pass
    assert not lock.held
    assert not is_held(tmp_path)
    assert os.listdir(tmp_path / UNFINISHED) == ["lock"]


def test_a_lock_that_nobody_refers_to_is_free_and_its_files_stay_as_after_a_crash(tmp_path):
    lock = RunLock(tmp_path)
    (tmp_path / UNFINISHED / "half").write_text("half")
    del lock
    assert not is_held(tmp_path)
    assert sorted(os.listdir(tmp_path / UNFINISHED)) == ["half", "lock"]


def test_folders_and_files_that_are_not_whole_are_swept_before_and_after(tmp_path):
    def leave():
        (tmp_path / UNFINISHED / "folder" / "below").mkdir(parents=True)
        (tmp_path / UNFINISHED / "folder" / "file").write_text("half")
        (tmp_path / UNFINISHED / "a file").write_text("half")
        (tmp_path / UNFINISHED / "parameters").write_text("half")

    leave()
    with RunLock(tmp_path) as lock:
        assert lock.cut_off
        assert os.listdir(tmp_path / UNFINISHED) == ["lock"]
        leave()
    assert os.listdir(tmp_path) == []


def test_asking_whether_a_run_is_held_makes_no_lock_and_holds_none(tmp_path):
    assert is_held(tmp_path) is False
    assert os.listdir(tmp_path) == []
    lock_file(tmp_path).parent.mkdir()
    lock_file(tmp_path).write_bytes(b"")
    assert [is_held(tmp_path), is_held(tmp_path)] == [False, False]


def test_work_that_fails_lets_go_and_leaves_nothing_unfinished(tmp_path):
    lock = RunLock(tmp_path)
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert not lock.held
    assert os.listdir(tmp_path) == []


def test_a_system_that_cannot_be_asked_for_processes_has_its_holder_named(
    ended, tmp_path, monkeypatch
):
    windows = SimpleNamespace(name="nt", getpid=os.getpid)
    monkeypatch.setattr("dpfedadamw.storage.lock.os", windows)
    assert f"(process {ended} on" in told_of(tmp_path, signature(process=ended))


def test_windows_locks_one_byte_that_nobody_reads(tmp_path, monkeypatch):
    asked = []

    def locking(descriptor, how, count):
        asked.append((os.lseek(descriptor, 0, os.SEEK_CUR), how, count))

    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    with RunLock(tmp_path):
        assert lock_file(tmp_path).stat().st_size == 400
    # Its place lies a mebibyte behind the beginning, where a holder signs.
    assert asked == [(2**20, 2, 1)]
