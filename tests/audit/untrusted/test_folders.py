"""Listing of hostile folders, and the keyed digest over all that lies in one."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

import pytest

from audit.untrusted.files import MOST_DEPTH, FileError, Refusal, _walk, keyed_digest, list_files

KEY = bytes(range(32))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run with a folder of private files and their key."""
    folder = tmp_path / "private"
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    (folder / "below" / "b").write_bytes(b"b")
    (folder / "salt").write_bytes(KEY)
    return tmp_path


def test_links_and_special_files_are_listed_and_not_followed(root: Path) -> None:
    folder = root / "private"
    (folder / "link").symlink_to(root)
    os.mkfifo(folder / "pipe")
    (folder / "a space").write_bytes(b"")
    deep = folder
    for _ in range(MOST_DEPTH + 1):
        deep = deep / "d"
    deep.mkdir(parents=True)
    listing = list_files(folder, ("salt",))
    assert listing.files == ("a", "below/b")
    assert {error.name: error.refusal for error in listing.refused} == {
        "link": Refusal.LINK,
        "pipe": Refusal.NOT_PLAIN,
        "a space": Refusal.UNUSUAL_NAME,
        "/".join("d" * (MOST_DEPTH + 1)): Refusal.TOO_DEEP,
    }


def test_a_folder_of_more_than_a_million_files_is_refused_however_they_are_spread(
    root: Path,
) -> None:
    folder = root / "private" / "below"
    for before, refused in ((999_999, False), (1_000_000, True)):
        files = ["a"] * before
        if refused:
            with pytest.raises(FileError, match="has more than 1000000 files") as error:
                _walk(folder, "below/", 1, (), files, [])
            assert (error.value.name, error.value.refusal) == ("below", Refusal.TOO_MANY)
        else:
            _walk(folder, "below/", 1, (), files, [])
            assert files[before:] == ["below/b"]


def test_a_name_that_is_left_out_is_left_out_at_the_top_alone(root: Path) -> None:
    assert list_files(root / "private", ("b", "salt")).files == ("a", "below/b")
    assert list_files(root / "private", ("below", "salt")).files == ("a",)


def test_the_digest_is_the_one_that_is_documented(root: Path) -> None:
    lines = [
        f"{hashlib.sha256(name[-1:].encode()).hexdigest()}  {name}\n" for name in ("a", "below/b")
    ]
    expected = hmac.new(KEY, "".join(sorted(lines)).encode(), hashlib.sha256).hexdigest()
    assert keyed_digest(root, "private", "salt") == expected


@pytest.mark.parametrize("changed", ["a", "below/b", "salt", "new"])
def test_the_digest_is_another_after_any_change(root: Path, changed: str) -> None:
    before = keyed_digest(root, "private", "salt")
    (root / "private" / changed).write_bytes(bytes(32))
    assert keyed_digest(root, "private", "salt") != before


def test_what_the_digest_does_not_cover_may_change(root: Path) -> None:
    before = keyed_digest(root, "private", "salt", ("findings.json",))
    (root / "private" / "findings.json").write_bytes(b"{}")
    assert keyed_digest(root, "private", "salt", ("findings.json",)) == before
    (root / "private" / "below" / "findings.json").write_bytes(b"{}")
    assert keyed_digest(root, "private", "salt", ("findings.json",)) != before


def test_a_folder_behind_a_link_has_no_digest(root: Path) -> None:
    (root / "private").rename(root / "elsewhere")
    (root / "private").symlink_to(root / "elsewhere")
    with pytest.raises(FileError) as caught:
        keyed_digest(root, "private", "salt")
    assert caught.value.refusal is Refusal.LINK


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_length_is_refused(root: Path, size: int) -> None:
    (root / "private" / "salt").write_bytes(bytes(size))
    with pytest.raises(FileError, match="private/salt: is"):
        keyed_digest(root, "private", "salt")


def test_what_is_refused_in_the_folder_is_named_from_the_root(root: Path) -> None:
    (root / "private" / "below" / "link").symlink_to(root / "private" / "a")
    with pytest.raises(FileError, match=r"^private/below/link: is or lies behind a symbolic link"):
        keyed_digest(root, "private", "salt")
