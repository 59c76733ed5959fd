"""Copies for each audience hold by themselves, and an erasure takes exactly the private part."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from audit.untrusted.files import FileError, Refusal
from reports.errors import EnvelopeError, ReportError, SourceError
from reports.signatures import copies, signing
from reports.signatures.copies import copy_file, erase, erased_at, is_erased, removed_if_it_fails
from reports.signatures.dsse import (
    PUBLIC_TYPE,
    RUN_TYPE,
    SHA256,
    Envelope,
    Statement,
    write_envelope,
    write_statement,
)
from tests.reports.signing_keys import fresh


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with private evidence and a public attestation."""
    folder = tmp_path / "run"
    for name in ("spec.yaml", "ledger.jsonl", "model.json", "evidence/salt", "evidence/a/b"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    attest_public(folder, "model.json")
    return folder


def attest_public(folder: Path, *names: str, kind: str = PUBLIC_TYPE) -> None:
    """Attest files for the public; that the signature holds is for `verify` to say."""
    payload = write_statement(Statement(dict.fromkeys(names, (SHA256, "0" * 64)), kind, {}))
    envelope = write_envelope(Envelope(payload, "key", b"signed"))
    (folder / signing.PUBLIC_ENVELOPE).write_bytes(envelope)


def test_there_are_three_audiences() -> None:
    assert copies.AUDIENCES == ("public", "auditor", "archive")


def test_the_archive_holds_all_but_evidence_and_the_auditor_that_too(run: Path) -> None:
    kept = ("attestation-public.json", "ledger.jsonl", "model.json", "spec.yaml")
    assert copies.files_for(run, "archive") == kept
    assert copies.files_for(run, "auditor") == (
        "attestation-public.json", "evidence/a/b", "evidence/salt", *kept[1:],
    )  # fmt: skip


def test_the_public_holds_what_was_attested_for_it_and_the_attestation(run: Path) -> None:
    name = "attestation-public.json"
    assert copies.files_for(run, "public") == (name, "model.json")
    (run / f"{name}.tsr").write_bytes(b"stamp")
    assert copies.files_for(run, "public") == (name, f"{name}.tsr", "model.json")
    everything = {*signing.PUBLIC_FILES, *signing.PUBLIC_EXTRAS}
    attest_public(run, *everything)
    assert copies.files_for(run, "public") == tuple(sorted({*everything, name, f"{name}.tsr"}))


def test_what_is_withheld_is_not_public_whoever_attested_it(run: Path) -> None:
    attest_public(run, "model.json", "spec.yaml", "ledger.jsonl")
    with pytest.raises(EnvelopeError, match=r"json: names ledger\.jsonl, which is not public$"):
        copies.files_for(run, "public")
    attest_public(run, "model.json", kind=RUN_TYPE)
    with pytest.raises(EnvelopeError, match="predicateType must be"):
        copies.files_for(run, "public")
    (run / signing.PUBLIC_ENVELOPE).unlink()
    with pytest.raises(SourceError, match="missing; the auditor writes it with the public report"):
        copies.files_for(run, "public")
    (run / signing.PUBLIC_ENVELOPE).symlink_to("nowhere")
    with pytest.raises(SourceError, match=r"^(?!.*the auditor writes it)"):
        copies.files_for(run, "public")


def test_a_link_in_a_run_or_its_evidence_is_handed_to_nobody(run: Path) -> None:
    (run / "evidence" / "link").symlink_to("salt")
    assert "spec.yaml" in copies.files_for(run, "archive")
    with pytest.raises(SourceError, match=r"^evidence/link: "):
        copies.files_for(run, "auditor")
    (run / "link").symlink_to("spec.yaml")
    for audience in ("archive", "auditor"):
        with pytest.raises(SourceError, match=r"^link: is a link; a run holds regular files only$"):
            copies.files_for(run, audience)  # type: ignore[arg-type] # Literals.


def test_an_auditor_needs_evidence_that_can_be_listed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: Path) -> None:
        raise FileError("salt", Refusal.CANNOT_LIST, "Permission denied")

    monkeypatch.setattr(copies, "list_files", refuses)
    with pytest.raises(SourceError, match="salt"):
        copies.files_for(run, "auditor")
    (run / "evidence").rename(run.parent / "away")
    with pytest.raises(SourceError, match=r"^evidence: missing; without it nothing can be audited"):
        copies.files_for(run, "auditor")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_copied_whole_with_the_mode_that_its_reader_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_CHUNK", 3)
    (tmp_path / "a").write_bytes(b"ten bytes.")
    copy_file(tmp_path, "a", tmp_path / "b", 0o600)
    assert (tmp_path / "b").read_bytes() == b"ten bytes."
    assert mode(tmp_path / "b") == 0o600
    with pytest.raises(FileExistsError):
        copy_file(tmp_path, "a", tmp_path / "b", 0o600)


def test_a_link_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "a").symlink_to(tmp_path / "secret")
    for name, said in (("a", "is or lies behind a symbolic link"), ("missing", "is missing")):
        with pytest.raises(SourceError, match=f"{name}: {said}"):
            copy_file(tmp_path, name, tmp_path / "b", 0o600)
    assert not (tmp_path / "b").exists()


def test_a_named_pipe_is_not_waited_for(run: Path) -> None:
    (run / "model.json").unlink()
    os.mkfifo(run / "model.json")
    for audience in copies.AUDIENCES:
        with pytest.raises(SourceError, match=r"^model\.json: is not a (plain|regular) file"):
            copies.copy(run, audience, run.with_name(f"{audience}-copy"))
    assert [path.name for path in run.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_copy_that_fails_leaves_nothing_whatever_ended_it(
    tmp_path: Path, error: BaseException, begun: bool
) -> None:
    partial, target = tmp_path / "partial", tmp_path / "target"
    (partial / "left by an earlier one").mkdir(parents=True)

    def copy() -> None:
        with removed_if_it_fails(partial, target):
            assert not partial.exists()
            if begun:
                partial.mkdir()
                (partial / "file").write_bytes(b"half")
            raise error

    is_disk = isinstance(error, OSError)
    said = r"target: cannot be written \(No space left on device\)" if is_disk else None
    with pytest.raises(SourceError if is_disk else KeyboardInterrupt, match=said):
        copy()
    assert not partial.exists()


def test_a_copy_that_succeeds_stays(tmp_path: Path) -> None:
    with removed_if_it_fails(tmp_path / "partial", tmp_path / "target"):
        (tmp_path / "partial").mkdir()
    assert (tmp_path / "partial").is_dir()


def attested(run: Path, **subjects: str) -> None:
    """The auditor's attestation; that its signature holds is for `verify` to say."""
    named = {name: (SHA256, digest) for name, digest in subjects.items()}
    payload = write_statement(Statement(named, RUN_TYPE, {}))
    (run / signing.RUN_ENVELOPE).write_bytes(write_envelope(Envelope(payload, "key", b"signed")))


def test_evidence_is_erased_where_it_is_gone_and_the_record_of_it_is_signed(
    tmp_path: Path,
) -> None:
    record = tmp_path / copies.ERASURE
    assert erased_at(tmp_path) is None
    assert not is_erased(tmp_path)
    record.write_text(json.dumps({"erased": "2026-11-22T12:00:00Z"}))
    (tmp_path / "evidence").mkdir()
    assert is_erased(tmp_path) is False
    (tmp_path / "evidence").rmdir()
    assert erased_at(tmp_path) == "2026-11-22T12:00:00Z"
    digest, other = hashlib.sha256(record.read_bytes()).hexdigest(), "0" * 64
    attested(tmp_path, **{"erasure.json": digest})
    assert is_erased(tmp_path)
    attested(tmp_path, **{"erasure.json": other})
    assert not is_erased(tmp_path)
    attested(tmp_path, **{"audit.json": digest})
    assert not is_erased(tmp_path)
    attested(tmp_path, **{"erasure.json": digest, "evidence": other})
    assert not is_erased(tmp_path)
    attested(tmp_path, **{"erasure.json": digest})
    (tmp_path / "evidence").mkdir()
    assert not is_erased(tmp_path)


@pytest.fixture
def signed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Any]]:
    """A folder in the place of a signed run, and what was signed anew."""
    made: list[Any] = []
    monkeypatch.setattr(copies, "load", lambda _: SimpleNamespace(run="a-run"))
    monkeypatch.setattr(signing, "sign", lambda *given, **named: made.append((given, named)))
    run = tmp_path / "run"
    run.mkdir()
    (run / signing.RUN_ENVELOPE).write_bytes(b"{}")
    return run, made


def as_folder(run: Path) -> None:
    (run / "evidence" / "inner").mkdir(parents=True)
    (run / "evidence" / "inner" / "round.npz").write_bytes(b"private")


def as_link(run: Path) -> None:
    (run.parent / "elsewhere").mkdir()
    (run.parent / "elsewhere" / "kept").write_bytes(b"another's")
    (run / "evidence").symlink_to(run.parent / "elsewhere")


@pytest.mark.parametrize("lay", [as_folder, as_link, lambda _: None])
def test_evidence_goes_its_record_says_when_and_why_and_the_auditor_signs(
    signed_run: tuple[Path, list[Any]], lay: Callable[[Path], None]
) -> None:
    run, made = signed_run
    lay(run)
    key, authority = fresh("auditor"), object()
    before = datetime.now(UTC)
    erase(run, key, "Two years are over.", authority)  # type: ignore[arg-type] # Only handed on.
    assert not (run / "evidence").is_symlink()
    assert not (run / "evidence").exists()
    # A link is taken away and what it points to is not.
    assert lay is not as_link or (run.parent / "elsewhere" / "kept").is_file()
    assert made == [((run,), {"auditor": key, "authority": authority})]
    record = json.loads((run / copies.ERASURE).read_bytes())
    when = datetime.strptime(record.pop("erased"), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(when - before) < timedelta(minutes=1)
    assert record == {
        "format": 1, "run": "a-run", "what": "evidence", "reason": "Two years are over.",
    }  # fmt: skip


def test_a_reason_that_no_record_can_hold_erases_nothing(
    signed_run: tuple[Path, list[Any]],
) -> None:
    run, made = signed_run
    as_folder(run)
    with pytest.raises(ReportError, match=r"^reason: is no text in UTF-8; nothing was erased$"):
        erase(run, fresh("auditor"), os.fsdecode(b"old\xff"))
    assert (run / "evidence").is_dir()
    assert not (run / copies.ERASURE).exists()
    assert made == []


def test_a_record_that_is_there_is_not_written_anew(signed_run: tuple[Path, list[Any]]) -> None:
    run, made = signed_run
    record = copies._record("a-run", "Two years.", "2026-11-22T12:00:00Z")
    (run / copies.ERASURE).write_bytes(record)
    as_folder(run)
    erase(run, fresh("auditor"), "Again.")
    assert (run / copies.ERASURE).read_bytes() == record
    assert not (run / "evidence").exists()
    assert len(made) == 1


@pytest.mark.parametrize(
    ("told", "instead"),
    [
        (b"a-run", b"b-run"),
        (b"12:00:00Z", b"noon"),
        (b'"evidence"', b'"nothing"'),
        (b"}", b', "patient": 7}'),
        (b'"Two years."', b"null"),
        (b'"Two years."', b'"\\ud800"'),
    ],
)
def test_a_record_that_no_erasure_wrote_is_not_signed(
    signed_run: tuple[Path, list[Any]], told: bytes, instead: bytes
) -> None:
    run, made = signed_run
    record = copies._record("a-run", "Two years.", "2026-11-22T12:00:00Z")
    (run / copies.ERASURE).write_bytes(record.replace(told, instead))
    as_folder(run)
    with pytest.raises(ReportError, match="nothing was erased"):
        erase(run, fresh("auditor"), "Again.")
    assert (run / "evidence").is_dir()
    assert made == []


def test_evidence_that_cannot_be_deleted_is_named_and_nothing_is_signed(
    signed_run: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    run, made = signed_run
    as_folder(run)
    monkeypatch.setattr(copies.shutil, "rmtree", refuse)
    said = r"^evidence: cannot be deleted \(Permission denied\), so .* finish it: dpfedadamw erase "
    with pytest.raises(ReportError, match=said):
        erase(run, fresh("auditor"), "Two years are over.")
    assert made == []


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("round.npz", "evidence/round.npz"),
        ("/a/run/evidence", "evidence"),
        (b"inner", "evidence/inner"),
    ],
)
def test_what_cannot_be_deleted_is_named_as_the_evidence_has_it(
    signed_run: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch, named: Any, said: str
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied", named)

    run, _ = signed_run
    as_folder(run)
    monkeypatch.setattr(copies.shutil, "rmtree", refuse)
    with pytest.raises(ReportError, match=rf"^{said}: cannot be deleted "):
        erase(run, fresh("auditor"), "Two years are over.")


def test_nothing_is_erased_where_nobody_signed_what_was_found(
    signed_run: tuple[Path, list[Any]],
) -> None:
    run, made = signed_run
    as_folder(run)
    (run / signing.RUN_ENVELOPE).unlink()
    with pytest.raises(ReportError, match=r"attestation\.json: missing"):
        erase(run, fresh("auditor"), "Two years are over.")
    assert (run / "evidence" / "inner" / "round.npz").is_file()
    assert made == []
    assert not (run / copies.ERASURE).exists()


@pytest.mark.parametrize(
    ("audience", "folder", "file"),
    [("public", 0o755, 0o644), ("auditor", 0o700, 0o600), ("archive", 0o700, 0o600)],
)
def test_a_copy_has_the_modes_that_its_reader_needs_and_is_closed_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audience: Any, folder: int, file: int
) -> None:
    run, target = tmp_path / "run", tmp_path / "x" / "y" / "out"
    names = ("a", "inner/b", "inner/c", "inner/deep/er/and/deep/er/d")
    for name in names:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(name.encode())
    asked, seen = [], []
    monkeypatch.setattr(copies, "files_for", lambda *given: asked.append(given) or names)

    def notes(source: Path, name: str, place: Path, file_mode: int) -> None:
        seen.append({mode(place.parent), mode(tmp_path / "x" / "y" / ".out.partial")})
        assert not target.exists()
        copy_file(source, name, place, file_mode)

    monkeypatch.setattr(copies, "copy_file", notes)
    before = os.umask(0)
    try:
        assert copies.copy(run, audience, target) == names
    finally:
        os.umask(before)
    assert asked == [(run, audience)]
    assert seen == [{0o700}] * 4
    assert mode(target) == folder
    assert {name: (target / name).read_bytes() for name in names} == {
        name: name.encode() for name in names
    }
    assert {mode(target / name) for name in names} == {file}
    assert [path.name for path in target.parent.iterdir()] == ["out"]
    copies.discard(target)
    assert not target.exists()


def test_a_copy_is_never_written_over_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "files_for", lambda *_: ())
    run = tmp_path / "run"
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"mine")
    for name in ("folder", "link", "file"):
        with pytest.raises(SourceError, match=f"{name}: exists and is never overwritten"):
            copies.copy(run, "archive", tmp_path / name)
    assert (tmp_path / "file").read_bytes() == b"mine"
    with pytest.raises(SourceError, match=r"out: cannot be written \(Not a directory\)"):
        copies.copy(run, "archive", tmp_path / "file" / "out")


def test_a_copy_does_not_lie_in_the_run_where_its_evidence_would_be_signed_and_outlive_an_erasure(
    run: Path,
) -> None:
    (run.parent / "same").symlink_to(run, target_is_directory=True)
    before = sorted(run.rglob("*"))
    for target in (run / "copy", run / "evidence" / "copy", run.parent / "same" / "copy"):
        with pytest.raises(SourceError, match="copy: lies in the run, whose files are all signed"):
            copies.copy(run, "auditor", target)
    assert sorted(run.rglob("*")) == before
    assert copies.copy(run, "auditor", run.parent / "run-auditor")


def test_a_copied_file_is_on_the_disk_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"ten bytes.")
    kept, fsync = [], os.fsync

    def keeps(descriptor: int) -> None:
        fsync(descriptor)
        kept.append((tmp_path / "b").read_bytes())

    monkeypatch.setattr(os, "fsync", keeps)
    copy_file(tmp_path, "a", tmp_path / "b", 0o644)
    assert kept == [b"ten bytes."]


def test_the_record_of_an_erasure_is_for_people_to_read(
    signed_run: tuple[Path, list[Any]],
) -> None:
    run, _ = signed_run
    erase(run, fresh("auditor"), "Zwei Jahre sind über.")
    text = (run / "erasure.json").read_text("utf-8")
    when = json.loads(text)["erased"]
    assert text == (
        '{\n  "format": 1,\n  "run": "a-run",\n  "what": "evidence",\n'
        f'  "reason": "Zwei Jahre sind über.",\n  "erased": "{when}"\n}}\n'
    )
