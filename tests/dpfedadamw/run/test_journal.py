"""A run's durable course: what a cut-off run goes on from, and what it refuses to go on from."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

import pytest

from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.run.journal import Journal, begin
from dpfedadamw.rundir import appeared, starting

SPEC = b"privacy:\n  noise_multiplier: 2.5\nrounds: 4\n"


def state(completed: int) -> bytes:
    return b"state after round %d" % completed


@pytest.fixture
def run(tmp_path):
    """A run that was cut off in its fourth round, after the spends."""
    header = {"spec_sha256": hashlib.sha256(SPEC).hexdigest()}
    with starting("toy", tmp_path, datetime(2026, 1, 2, tzinfo=UTC)) as (hidden, lock):
        begin(hidden, SPEC, header, {"round": 0})
    lock.release()
    run = appeared(hidden)
    journal = Journal(run)
    for index in range(3):
        journal.charge([{"round": index, "client": client} for client in range(3)])
        (run.evidence / f"round-{index:05d}.npz").write_bytes(b"evidence")
        journal.complete({"round": index}, state(index + 1))
        journal.measure({"round": index + 1})
    journal.charge([{"round": 3, "client": client} for client in range(3)])
    (run.evidence / "round-00003.npz").write_bytes(b"half a round's evidence")
    (run.evidence / "upload-00003-00001.npz").write_bytes(b"and an upload's")
    return run


def rounds_measured(run) -> list[int]:
    return [json.loads(line)["round"] for line in run.metrics.read_text().splitlines()]


def test_it_goes_on_after_the_last_completed_round_and_forgets_what_came_later(run):
    found = Journal(run).recover()
    assert (found.completed, found.state, found.note) == (3, state(3), None)
    names = [path.name for path in sorted(run.evidence.iterdir())]
    assert names == [f"round-{index:05d}.npz" for index in range(3)]
    assert rounds_measured(run) == [0, 1, 2, 3]


def test_what_other_processes_noted_of_clients_is_gone_once_there_is_a_claim(run):
    (run.stations / "process-7").mkdir(parents=True)
    (run.stations / "process-7" / "00000-00001.npz").write_bytes(b"what a client did")
    Journal(run).tidy()
    assert not run.stations.exists()
    assert not run.checkpoint.exists()


def test_the_last_two_states_are_kept_and_no_more(run):
    kept = sorted(path.name for path in run.checkpoint.glob("state-*"))
    assert kept == ["state-00002.safetensors", "state-00003.safetensors"]


@pytest.mark.parametrize("damage", [None, b"", b"state after round 2", b"another run's"])
def test_a_lost_or_foreign_state_makes_the_round_before_run_again_and_says_so(run, damage):
    path = run.checkpoint / "state-00003.safetensors"
    path.unlink() if damage is None else path.write_bytes(damage)
    found = Journal(run).recover()
    assert (found.completed, found.state) == (2, state(2))
    assert "round 3 is run and charged again" in found.note
    assert rounds_measured(run) == [0, 1, 2]
    assert not path.exists()


def test_without_either_of_the_last_two_states_it_is_refused(run):
    for path in run.checkpoint.glob("state-*"):
        path.unlink()
    with pytest.raises(DpfedadamwError, match="would spend their budget twice"):
        Journal(run).recover()


def test_older_states_put_back_under_the_last_ones_names_are_refused(run):
    for path in run.checkpoint.glob("state-*"):
        path.write_bytes(state(1))
    with pytest.raises(DpfedadamwError, match="is not there as the ledger names it"):
        Journal(run).recover()


def test_a_state_that_the_ledger_does_not_know_yet_is_not_gone_on_from(run):
    (run.checkpoint / "state-00004.safetensors").write_bytes(state(4))
    assert Journal(run).recover().completed == 3
    assert not (run.checkpoint / "state-00004.safetensors").exists()


def test_a_missing_line_of_metrics_is_noticed_and_a_torn_one_dropped(run):
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join(lines[:-1]) + lines[-1][:5])
    journal = Journal(run)
    journal.recover()
    assert journal.lacks_metrics(3)
    assert rounds_measured(run) == [0, 1, 2]


def test_lines_that_a_crash_left_of_other_files_behind_the_metrics_are_dropped(run):
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join(lines[:-1]) + b'\0torn\n{"round":0}\n{"round":3}\n')
    journal = Journal(run)
    journal.recover()
    assert journal.lacks_metrics(3)
    assert rounds_measured(run) == [0, 1, 2]


def test_metrics_that_lost_lines_which_were_safe_are_refused(run):
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join(lines[:-2]))
    with pytest.raises(DpfedadamwError, match=r"metrics\.jsonl, line 3"):
        Journal(run).recover()


def test_damaged_metrics_are_refused_by_line(run):
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join([lines[0], b"{torn\n", *lines[2:]]))
    with pytest.raises(DpfedadamwError, match=r"metrics\.jsonl, line 2"):
        Journal(run).recover()


@pytest.mark.parametrize(
    ("edited", "told"),
    [
        (SPEC.replace(b"2.5", b"0.01"), "privacy.noise_multiplier: 2.5 became 0.01"),
        (SPEC + b"delta: 1\n", "delta: not given became 1"),
        (SPEC + b"# a comment\n", "its text, though no value"),
        (b"{", "it is no YAML any more"),
    ],
)
def test_an_edited_spec_is_refused_and_what_was_changed_is_told(run, edited, told):
    run.spec.write_bytes(edited)
    with pytest.raises(DpfedadamwError) as caught:
        Journal(run).check_spec()
    assert told in str(caught.value)
    assert f"cp {run.checkpoint / 'spec.yaml'} {run.spec}" in str(caught.value)
    run.spec.write_bytes((run.checkpoint / "spec.yaml").read_bytes())
    Journal(run).check_spec()


def spends(run) -> int:
    return len(Journal(run).ledger.of_kind("spend"))


def test_charges_that_a_crash_tore_before_any_noise_was_drawn_are_dropped(run):
    paid = (run.checkpoint / "paid").read_bytes()
    Journal(run).charge([{"round": 3, "client": client} for client in range(3)])
    # The power went before the ledger was synced: the middle of the last write is lost.
    (run.checkpoint / "paid").write_bytes(paid)
    content = run.ledger.read_bytes()
    first = content.rfind(b"\n", 0, content.rfind(b'"client":1')) + 1
    run.ledger.write_bytes(content[:first] + b"\0" * 40 + content[first + 40 :])
    assert spends(run) == 12 + 1
    assert spends(run) == 12 + 1


def test_a_charge_that_noise_was_drawn_upon_cannot_be_lost(run):
    content = run.ledger.read_bytes()
    run.ledger.write_bytes(content.replace(b'"round":3', b'"round":2', 1))
    with pytest.raises(PrivacyError, match="the hash chain is broken"):
        Journal(run)
    run.ledger.write_bytes(content[: content.rfind(b"\n", 0, -1) + 1])
    with pytest.raises(PrivacyError, match="bytes that were written are missing"):
        Journal(run)


def test_without_knowing_what_was_paid_no_broken_line_is_dropped(run):
    (run.checkpoint / "paid").unlink()
    with run.ledger.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(PrivacyError, match="the hash chain is broken"):
        Journal(run)


def test_with_its_claim_a_run_has_no_checkpoint_any_more(run):
    journal = Journal(run)
    journal.close({"epsilon": 1.0})
    assert not run.checkpoint.exists()
    assert Journal(run).claim["epsilon"] == 1.0


def test_a_start_that_fails_leaves_nothing_and_a_killed_one_is_swept_by_the_next(tmp_path):
    created = datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(KeyError), starting("toy", tmp_path, created) as (hidden, _):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    hidden.path.mkdir()
    (hidden.path / "spec.yaml").write_bytes(SPEC)
    with starting("toy", tmp_path, created) as (second, lock):
        assert not hidden.path.exists()
        with starting("toy", tmp_path, created) as (third, other):
            assert second.path.exists()
        other.release()
    lock.release()
    assert {path.name for path in tmp_path.iterdir()} == {second.identifier, third.identifier}
