"""Reading untrusted files: everything wrong becomes a recorded problem."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.errors import RunDirectoryError, UntrustedFileError
from audit.reading import bundle
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.files import read_bytes
from audit.reading.ledger import read_ledger
from tests.audit.synthetic_run import Settings, build_run


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


@pytest.mark.parametrize(
    ("name", "read", "limit"),
    [
        ("evidence/layout.json", Bundle.layout, 64 * 2**20),
        ("evidence/salt", Bundle.salt, 4096),
        ("evidence/tuning", Bundle.tuning_secret, 4096),
        ("evidence/partition.npz", Bundle.holdings, 2**30),
        ("model.safetensors", Bundle.weights, 2**30),
    ],
)
def test_a_file_of_more_bytes_than_its_kind_ever_has_is_refused_before_it_is_read(
    tmp_path: Path, name: str, read: Callable[[Bundle], object], limit: int
) -> None:
    bundle = open_bundle(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    # It has that size and takes no room.
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, limit + 1)
    with pytest.raises(UntrustedFileError, match=f"is larger than {limit} bytes"):
        read(bundle)


def test_rounds_are_read_only_when_asked_for(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings())
    (run / "evidence" / "round-00002.npz").unlink()
    bundle = open_bundle(run)
    assert bundle.round_evidence(1).batch_size.shape == (3, 3)
    with pytest.raises(UntrustedFileError, match=r"round-00002.npz: is missing"):
        bundle.round_evidence(2)


def test_what_is_no_archive_is_read_once_however_many_checks_ask(
    good_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(root: Path, name: str, limit: int) -> bytes:
        read.append(name)
        return read_bytes(root, name, limit)

    bundle = open_bundle(good_run)
    bundle.layout()
    monkeypatch.setattr("audit.reading.bundle.read_bytes", counted)
    os.truncate(good_run / "evidence/round-00000.npz", 2**26)
    for _ in range(3):
        with pytest.raises(UntrustedFileError, match="is not a readable archive"):
            bundle.round_evidence(0)
    assert read == ["evidence/round-00000.npz"]


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


def test_a_layout_states_no_more_parameters_than_the_model_has_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number of twelve digits asked for a terabyte of memory."""
    run = build_run(tmp_path / "run", Settings(rounds=1))
    layout, model = run / "evidence" / "layout.json", run / "model.safetensors"
    few = open_bundle(run).layout().parameters
    monkeypatch.setattr(bundle, "_ANY_PARAMETERS", few - 1)
    assert open_bundle(run).layout().parameters == few
    os.truncate(model, few)
    assert open_bundle(run).layout().parameters == few
    os.truncate(model, few - 1)
    refusal = "evidence/layout.json: parameters are more than model.safetensors has bytes"
    with pytest.raises(UntrustedFileError, match=refusal):
        open_bundle(run).layout()
    monkeypatch.undo()
    assert open_bundle(run).layout().parameters == few
    model.unlink()
    assert open_bundle(run).layout().parameters == few
    layout.write_text(json.dumps({**json.loads(layout.read_text()), "parameters": 10**11}))
    with pytest.raises(UntrustedFileError, match="has bytes"):
        open_bundle(run).layout()
