"""One writer at a time: who is told what, and what a writer that was killed leaves behind."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfedadamw.storage.disk import UNFINISHED, write_atomically
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
