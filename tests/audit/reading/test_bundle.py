"""Reading untrusted files: everything wrong becomes a recorded problem."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from audit.errors import RunDirectoryError, UntrustedFileError
from audit.reading.archives import ArchiveError, read_archive
from audit.reading.bundle import open_bundle
from audit.reading.documents import DocumentError, parse_json, parse_yaml
from audit.reading.files import read_bytes
from audit.reading.ledger import read_ledger
from tests.audit.synthetic_run import Settings, build_run


def packed(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_every_changed_byte_of_an_archive_is_noticed() -> None:
    raw = packed(first=np.arange(4), second=np.ones((2, 2), np.float32))
    for position in range(len(raw)):
        for mask in (1, 0x80):
            damaged = bytearray(raw)
            damaged[position] ^= mask
            with pytest.raises(ArchiveError):
                read_archive(bytes(damaged))


@pytest.mark.parametrize("change", [b"x", b"PK"])
def test_bytes_outside_the_members_are_refused(change: bytes) -> None:
    raw = packed(first=np.arange(4))
    for damaged in (raw + change, change + raw, raw[:-1], b""):
        with pytest.raises(ArchiveError):
            read_archive(damaged)


def test_pickled_arrays_are_never_loaded() -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.system, ("exit 1",))

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=True, bad=np.array([Trap()], dtype=object))
    with pytest.raises(ArchiveError, match="not an array of numbers"):
        read_archive(buffer.getvalue())
    with pytest.raises(ArchiveError):
        read_archive(pickle.dumps([1, 2]))


def test_a_header_that_promises_more_than_the_file_holds_is_refused() -> None:
    member = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(member, header)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("huge.npy"), member.getvalue())
    with pytest.raises(ArchiveError, match="another number of bytes"):
        read_archive(buffer.getvalue())


def test_a_bomb_is_refused_by_its_declared_size() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(70):
            archive.writestr(f"member{index}.npy", b"")
    with pytest.raises(ArchiveError, match="70 members"):
        read_archive(buffer.getvalue())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a":1e999}', "not finite"),
        (b'{"a":NaN}', "not a number"),
        (b'{"a":-Infinity}', "not a number"),
        (b'{"a":1,"a":2}', "duplicate"),
        (b"[" * 40 + b"]" * 40, "nested"),
        (b'{"a":' + b"9" * 5000 + b"}", "digits"),
        (b"\xff", "UTF-8"),
        (b"{", "valid JSON"),
    ],
)
def test_bad_json_is_refused_with_its_reason(text: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"a: &x [1]\nb: *x", "anchor"),
        (b"a: &x 1", "anchor"),
        (b"a: 1\na: 2", "duplicate"),
        (b"a: .inf", "not finite"),
        (b"a: !!python/object:os.system 1", "valid YAML"),
        (b"? [1]\n: 2", "not text"),
        (b"a: " + b"[" * 40 + b"]" * 40, "nested"),
        (b"a: [", "valid YAML"),
        (b"a: 1\n---\nb: 2\n", "valid YAML"),
    ],
)
def test_bad_yaml_is_refused_with_its_reason(text: bytes, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason):
        parse_yaml(text)


def test_yaml_numbers_without_a_dot_are_numbers() -> None:
    assert parse_yaml(b"a: 1e-5\nb: 1.0e-05\nc: 3\nd: null\n") == {
        "a": 1e-5,
        "b": 1e-5,
        "c": 3,
        "d": None,
    }


def test_links_pipes_folders_and_large_files_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    root = tmp_path / "run"
    (root / "folder").mkdir(parents=True)
    (root / "link").symlink_to(secret)
    (root / "outside").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    (root / "large").write_bytes(bytes(11))
    for name, reason in (
        ("link", "symbolic link"),
        ("outside/secret", "symbolic link"),
        ("pipe", "not a plain file"),
        ("folder", "not a plain file"),
        ("large", "larger than 10"),
        ("absent", "missing"),
    ):
        with pytest.raises(UntrustedFileError, match=reason):
            read_bytes(root, name, 10)


def test_a_path_that_is_no_directory_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="no such run directory"):
        open_bundle(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="not a directory"):
        open_bundle(tmp_path / "file")


def test_an_empty_directory_is_all_problems(tmp_path: Path) -> None:
    bundle = open_bundle(tmp_path)
    assert {problem.file for problem in bundle.problems} >= {"spec.yaml", "ledger.jsonl"}
    assert all(problem.missing for problem in bundle.problems)


def test_rounds_are_read_only_when_asked_for(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings())
    (run / "evidence" / "round-00002.npz").unlink()
    bundle = open_bundle(run)
    assert bundle.round_evidence(1).batch_size.shape == (3, 3)
    with pytest.raises(UntrustedFileError, match=r"round-00002.npz: is missing"):
        bundle.round_evidence(2)


def test_each_fault_of_a_ledger_names_its_line(good_run: Path) -> None:
    lines = (good_run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    assert read_ledger(b"".join(lines)).faults == ()
    swapped = read_ledger(b"".join([lines[0], lines[2], lines[1], *lines[3:]]))
    assert {fault.line for fault in swapped.faults} == {2, 3, 4}
    broken = read_ledger(b"".join([*lines[:3], b"{oops\n", *lines[4:]]))
    assert {fault.line for fault in broken.faults} == {4, 5}
    assert read_ledger(b"").faults
    spaced = lines[-1].replace(b'":', b'": ', 1)
    assert "canonical" in read_ledger(b"".join([*lines[:-1], spaced])).faults[0].what
