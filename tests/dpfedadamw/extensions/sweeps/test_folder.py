"""What a sweep's folder keeps of each cell."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.extensions.sweeps.folder import CellFolder, SweepFolder, machine_of, named
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.spec.matrix import Cell

DIGEST = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def cell() -> Cell:
    return Cell({}, None, specs.load("quickstart"), DIGEST)


def begun(folder: CellFolder, *lines: str, number: int = 0) -> Path:
    """A run of a cell, with these lines of metrics."""
    run = folder.runs / f"small-2026010{number + 1}T000000Z-0000000{number}"
    run.mkdir(parents=True)
    (run / "spec.yaml").touch()
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return run


def test_a_cell_lies_where_the_first_sixteen_digits_of_its_digest_say(cell, tmp_path):
    folder = SweepFolder(tmp_path).begin_cell(cell)
    assert named(cell) == "0123456789abcdef"
    assert folder.path == tmp_path / "cells" / "0123456789abcdef"
    assert {path.name for path in folder.path.iterdir()} == {"spec.yaml", "runs"}
    assert folder.spec.read_text() == specs.dump(cell.spec)
    # What was begun stays as it is.
    folder.spec.write_text("another")
    SweepFolder(tmp_path).begin_cell(cell)
    assert folder.spec.read_text() == "another"


def test_what_was_asked_for_last_is_kept(tmp_path):
    folder = SweepFolder(tmp_path / "a" / "b")
    for text in ("first", "last ε"):
        folder.begin(text)
    assert (tmp_path / "a" / "b" / "sweep.yaml").read_text("utf-8") == "last ε"
    assert (tmp_path / "a" / "b" / "cells").is_dir()


def test_a_failure_is_told_until_there_is_a_result(cell, tmp_path):
    folder = SweepFolder(tmp_path).begin_cell(cell)
    assert folder.failed() is None
    folder.failure.write_bytes(b" no memory \xff\n")
    assert folder.failed() == "no memory \ufffd"
    folder.failure.write_text("\n")
    assert folder.failed() == "unknown"
    folder.write_result({"a": 1})
    assert folder.failed() is None
    assert folder.result() == {"a": 1}
    written = json.loads((folder.path / "result.json").read_text())
    assert written == {"format": 1, "row": {"a": 1}}


def test_a_result_of_a_table_counts_where_there_is_none_here_and_is_kept_once(cell, tmp_path):
    known = SweepFolder(tmp_path, {named(cell): {"a": 1}})
    assert known.cell(cell).result() == {"a": 1}
    assert not (tmp_path / "cells").exists()
    known.keep_known(cell)
    assert SweepFolder(tmp_path).cell(cell).result() == {"a": 1}
    assert known.cell(cell).spec.is_file()
    other = SweepFolder(tmp_path, {named(cell): {"a": 2}})
    other.keep_known(cell)
    assert other.cell(cell).result() == {"a": 1}
    # Of a cell that no table knows nothing is made.
    SweepFolder(tmp_path / "new").keep_known(cell)
    assert SweepFolder(tmp_path / "new").cell(cell).result() is None
    assert not (tmp_path / "new").exists()


def test_how_far_a_cell_is_follows_from_the_last_line_of_its_newest_run(cell, tmp_path):
    folder = SweepFolder(tmp_path).cell(cell)
    assert folder.newest_run() is None
    assert folder.completed_rounds() == (0, None)
    begun(folder, '{"round": 9, "test_accuracy": 0.9}')
    newest = begun(
        folder, '{"round": 0, "test_accuracy": 0.1}', '{"round": 3, "test_accuracy": 0.5}', number=1
    )
    assert folder.newest_run().path == newest
    assert folder.completed_rounds() == (3, 0.5)
    for broken in ("", "{\n", '{"round": 3}\n', '{"round": "x", "test_accuracy": 1}\n', "[]\n"):
        (newest / "metrics.jsonl").write_text(broken)
        assert folder.completed_rounds() == (0, None)
    (newest / "metrics.jsonl").unlink()
    assert folder.completed_rounds() == (0, None)


def test_the_machine_is_that_of_the_newest_rounds_or_this_one(tmp_path):
    run = RunDirectory(tmp_path)
    run.evidence.mkdir()
    (run.evidence / "layout.json").write_text("{}")
    here = {"python": platform.python_version(), "system": platform.system()}
    assert machine_of(run) == here
    for number, system in (("00000", "old"), ("00004", "new")):
        found = {"system": system, "threads": 2, "device": None, "more": [1]}
        (run.evidence / f"environment-{number}.json").write_text(json.dumps(found))
    assert machine_of(run) == {"system": "new", "threads": 2}
