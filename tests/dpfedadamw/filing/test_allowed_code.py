"""The user's own list of modules that files may name."""

from __future__ import annotations

import os

import pytest

from dpfedadamw.errors import FilingError
from dpfedadamw.filing.allowed_code import FILE, listed


@pytest.fixture
def keys(tmp_path, monkeypatch):
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(folder))
    return folder


def write(folder, content: bytes = b"nets\n", mode: int = 0o600):
    path = folder / FILE
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_without_a_list_nothing_is_listed(keys):
    assert listed() == ()
    keys.rmdir()
    assert listed() == ()


def test_a_line_is_a_module_and_comments_and_empty_lines_are_none(keys):
    write(keys, b"# my own\n\nnets  # for the paper\n  package.models\r\n", 0o644)
    assert listed() == ("nets", "package.models")


@pytest.mark.skipif(os.name != "posix", reason="there are no users elsewhere")
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_list_that_another_user_may_write_is_refused(keys, mode):
    write(keys, mode=mode)
    with pytest.raises(FilingError, match="another user may write to it"):
        listed()


@pytest.mark.skipif(os.name != "posix", reason="there are no users elsewhere")
def test_so_is_one_in_a_folder_of_others_or_that_belongs_to_somebody_else(keys, monkeypatch):
    write(keys)
    keys.chmod(0o770)
    with pytest.raises(FilingError, match="another user may write to it"):
        listed()
    keys.chmod(0o700)
    assert listed() == ("nets",)
    if os.geteuid() == 0:
        os.chown(keys / FILE, 12345, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 12345)
    with pytest.raises(FilingError, match="another user may write to it"):
        listed()


def test_what_is_no_text_is_refused(keys):
    write(keys, b"\xff\xfe")
    with pytest.raises(FilingError, match="is not text"):
        listed()


def test_a_pipe_is_not_waited_for(keys):
    os.mkfifo(keys / FILE)
    with pytest.raises(FilingError, match="is not a plain file"):
        listed()


def test_a_folder_named_from_the_working_directory_holds_no_list(keys, monkeypatch):
    write(keys)
    monkeypatch.chdir(keys.parent)
    monkeypatch.setenv("DPFEDADAMW_KEYS", keys.name)
    assert listed() == ()
