"""What a finished round and a claim wait for, step by step."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dpfedadamw.run.journal import Journal, begin
from dpfedadamw.rundir import appeared, starting
from dpfedadamw.storage.disk import Disk


class Watched(Disk):
    """Notes which names and contents are put on the disk, in order."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def sync(self, file) -> None:
        self.steps.append(f"content of {file.path.name.lstrip('.').split('-')[0]}")
        super().sync(file)

    def sync_folder(self, path) -> None:
        self.steps.append(f"names in {path.name}")
        super().sync_folder(path)


@pytest.fixture
def journal(tmp_path):
    with starting("toy", tmp_path, datetime(2026, 1, 2, tzinfo=UTC)) as (hidden, lock):
        begin(hidden, b"rounds: 1\n", {"rounds": 1}, {"round": 0})
    lock.release()
    opened = Journal(replace(appeared(hidden), disk=Watched()))
    # What it found is put on the disk before anything relies on it.
    assert opened._disk.steps == ["content of ledger.jsonl"]
    opened._disk.steps.clear()
    return opened


def test_a_charge_is_in_the_ledger_before_it_is_noted_as_paid(journal):
    journal.charge([{"round": 0, "client": 1}])
    assert journal._disk.steps == ["content of ledger.jsonl", "content of paid"]
    journal.charge([])
    assert len(journal._disk.steps) == 2
    last = (journal._run.checkpoint / "paid").read_bytes().splitlines(keepends=True)[-1]
    size = b"%d" % journal._run.ledger.stat().st_size
    assert last == size + b" " + hashlib.sha256(size).hexdigest().encode() + b"\n"


def test_a_round_is_over_once_its_evidence_and_the_state_after_it_are_on_the_disk(journal):
    journal.complete({"round": 0}, b"state")
    assert journal._disk.steps == [
        "names in evidence",
        "content of state",
        "names in checkpoint",
        "content of ledger.jsonl",
    ]
    (line,) = journal.ledger.of_kind("round")
    assert line["state_sha256"] == hashlib.sha256(b"state").hexdigest()
    assert journal.completed == 1


def test_a_state_that_the_evidence_keeps_is_not_written_a_second_time(journal):
    journal.complete({"round": 0}, b"state", kept=True)
    assert journal._disk.steps == ["names in evidence", "content of ledger.jsonl"]


def test_the_claim_comes_after_the_evidence_and_the_checkpoint_goes_after_the_claim(journal):
    folder = journal._run.path.name
    journal.close({"epsilon": 2.0})
    assert journal._disk.steps == [
        "names in evidence",
        "content of ledger.jsonl",
        f"names in {folder}",
    ]
    assert not journal._run.checkpoint.exists()


def test_metrics_are_lines_that_are_on_the_disk_when_they_are_written(journal):
    journal.measure({"round": 1, "test_accuracy": 0.5})
    assert journal._disk.steps == ["content of metrics.jsonl"]
    assert journal.last_metrics() == {"round": 1, "test_accuracy": 0.5}
    assert not journal.lacks_metrics(1)
    assert journal.lacks_metrics(2)
    lines = journal._run.metrics.read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1]
    journal._run.metrics.write_bytes(b"")
    assert journal.last_metrics() == {}
    assert journal.lacks_metrics(0)
