"""Plain files of hostile folders: read within bounds, never through a link, written whole."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path, PurePath

import pytest

from audit.untrusted import files
from audit.untrusted.files import FileError, Refusal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a plain file and everything that must not be read."""
    (tmp_path / "secret").write_text("x")
    folder = tmp_path / "run"
    (folder / "folder").mkdir(parents=True)
    (folder / "plain").write_bytes(b"plain")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "outside").symlink_to(tmp_path)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    (folder / "large").write_bytes(bytes(11))
    os.mkfifo(folder / "pipe")
    return folder


REFUSED = [
    ("link", Refusal.LINK),
    ("dangling", Refusal.LINK),
    ("outside/secret", Refusal.LINK),
    ("pipe", Refusal.NOT_PLAIN),
    ("folder", Refusal.NOT_PLAIN),
    ("", Refusal.NOT_PLAIN),
    ("../secret", Refusal.NOT_PLAIN),
    ("folder/../../secret", Refusal.NOT_PLAIN),
    ("/etc/hostname", Refusal.NOT_PLAIN),
    ("large", Refusal.TOO_LARGE),
    ("absent", Refusal.MISSING),
    ("plain/below", Refusal.CANNOT_OPEN),
]


@pytest.mark.parametrize(("name", "refusal"), REFUSED)
def test_what_is_no_small_plain_file_below_the_folder_is_refused(
    root: Path, name: str, refusal: Refusal
) -> None:
    with pytest.raises(FileError) as caught:
        files.read_bytes(root, name, 10)
    assert caught.value.refusal is refusal
    assert caught.value.name == name
    assert "\n" not in str(caught.value)


def test_a_plain_file_is_read_and_hashed(root: Path) -> None:
    assert files.read_bytes(root, "plain", 5) == b"plain"
    assert files.hash_file(root, "plain") == hashlib.sha256(b"plain").hexdigest()
    assert files.hash_file(root, "large") == hashlib.sha256(bytes(11)).hexdigest()
    for name in ("link", "outside/secret", "pipe"):
        with pytest.raises(FileError):
            files.hash_file(root, name)


def test_a_link_is_refused_where_the_system_cannot_refuse_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_NO_LINK", 0)
    for name in ("link", "outside/secret", "dangling"):
        with pytest.raises(FileError) as caught:
            files.read_bytes(root, name, 10)
        assert caught.value.refusal is Refusal.LINK
    assert files.read_bytes(root, "plain", 10) == b"plain"


@pytest.mark.parametrize("name", ["plain", "folder/inside"])
def test_a_link_that_is_put_there_after_the_path_was_looked_at_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In place of the file, and of the folder in which it lies."""
    (root / "folder" / "inside").write_text("inside")
    outside = root.parent / "of others"
    outside.mkdir()
    (outside / "inside").write_text("not for us")
    looked_at = Path.is_symlink

    def swapped(path: Path) -> bool:
        found = looked_at(path)
        if path == root / name and not found:
            first = root / PurePath(name).parts[0]
            first.rename(root / "away")
            first.symlink_to(outside if first != path else outside / "inside")
        return found

    monkeypatch.setattr(Path, "is_symlink", swapped)
    with pytest.raises(FileError):
        files.read_bytes(root, name, 100)
    assert looked_at(root / PurePath(name).parts[0])


def test_a_link_that_the_user_chose_is_followed_to_a_plain_file_alone(root: Path) -> None:
    (root.parent / "secret").chmod(0o640)
    assert files.read_chosen(root / "link", 10) == (b"x", 0o640)
    assert files.read_chosen(root / "large", 10)[0] == bytes(10)
    for name in ("pipe", "folder", "dangling"):
        with pytest.raises(FileError) as caught:
            files.read_chosen(root / name, 10)
        assert caught.value.refusal in (Refusal.NOT_PLAIN, Refusal.MISSING)
        assert caught.value.detail


_WITHOUT_POSIX = """
import os, pathlib, sys
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "fchmod", "link"):
    delattr(os, name)
from audit.untrusted import files
root = pathlib.Path(sys.argv[1])
files.write_atomically(root / "new", b"new")
assert files.read_bytes(root, "new", 10) == b"new"
files.create(root / "first", b"first", 0o600)
assert files.read_bytes(root, "first", 10) == b"first"
try:
    files.create(root / "first", b"second", 0o600)
except FileExistsError:
    assert files.read_bytes(root, "first", 10) == b"first"
    print("kept")
try:
    files.read_bytes(root, "link", 10)
except files.FileError as error:
    assert error.refusal is files.Refusal.LINK
    print("refused")
"""


def test_files_are_read_on_a_system_without_the_guards_of_posix(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_POSIX, str(root)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "kept\nrefused\n"), done.stderr


def test_a_write_replaces_a_link_and_not_what_it_points_to(root: Path) -> None:
    files.write_atomically(root / "link", b"new", 0o600)
    assert not (root / "link").is_symlink()
    assert (root / "link").read_bytes() == b"new"
    assert (root.parent / "secret").read_text() == "x"
    assert stat.S_IMODE((root / "link").stat().st_mode) == 0o600


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in root.iterdir())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="plain: cannot be written \\(No space left"):
        files.write_atomically(root / "plain", b"new")
    assert (root / "plain").read_bytes() == b"plain"
    assert sorted(path.name for path in root.iterdir()) == before


def test_a_new_file_has_no_name_before_it_is_whole_and_on_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is killed while writing leaves no part of a key under the key's name."""
    named_at_sync = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        named_at_sync.append((root / "new").exists())

    monkeypatch.setattr(os, "fsync", watched)
    before = {path.name for path in root.iterdir()}
    files.create(root / "new", b"new", 0o600)
    assert named_at_sync == [False]
    assert (root / "new").read_bytes() == b"new"
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o600
    assert {path.name for path in root.iterdir()} == before | {"new"}


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_that_cannot_be_written_leaves_nothing_and_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    if links:
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    before = {path.name for path in root.iterdir()}
    with pytest.raises(OSError, match="No space left") as caught:
        files.create(root / "new", b"new", 0o600)
    assert caught.value.filename == str(root / "new")
    assert {path.name for path in root.iterdir()} == before


@pytest.mark.parametrize("name", ["plain", "link", "dangling"])
def test_nothing_is_created_over_what_exists(root: Path, name: str) -> None:
    with pytest.raises(FileExistsError):
        files.create(root / name, b"new", 0o600)
    assert not (root.parent / "nowhere").exists()
    assert (root / "plain").read_bytes() == b"plain"


def test_what_was_created_counts_though_its_temporary_name_cannot_be_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        files.create(root / "new", b"new", 0o600)
    assert (root / "new").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ((), None),
        (("head.json",), "."),
        (("ledger/head.json",), "ledger"),
        (("head.json", "ledger/head.json"), "."),
        (("head.json", "ledger.jsonl", "gate.pub", "replies/000001.safetensors"), "."),
        (("ledger/head.json", "gate.yaml"), "ledger"),
        (("other/head.json",), None),
        (("ledger/head.json", "ledger.jsonl"), None),
        (("ledger/head.json", "ledger/spec.yaml"), None),
        *(
            ((head, name), None)
            for head in ("head.json", "ledger/head.json")
            for name in (
                "spec.yaml", "audit.json", "report.json", "report-public.json", "trainer.pub",
                "auditor.pub", "training.attestation.json", "attestation.json",
                "attestation-public.json",
            )
        ),
    ],
)  # fmt: skip
def test_a_folder_is_a_gate_s_where_its_head_lies_and_nothing_of_a_run(
    names: tuple[str, ...], found: str | None, tmp_path: Path
) -> None:
    """A gate's ledger that was put into a run would be judged in the run's place."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files.folder_of_gate(tmp_path) == (None if found is None else tmp_path / found)


def test_a_head_is_a_file_and_a_link_is_something_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "head.json").mkdir()
    assert files.folder_of_gate(tmp_path) is None
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "head.json").touch()
    assert files.folder_of_gate(tmp_path) == tmp_path / "ledger"
    (tmp_path / "spec.yaml").symlink_to("nowhere")
    assert files.folder_of_gate(tmp_path) is None
