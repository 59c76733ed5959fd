"""A run's durable course: what a cut-off run goes on from, and what it refuses to go on from."""

from __future__ import annotations

import errno
import hashlib
import json
import stat
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dpfedadamw.errors import DpfedadamwError, PrivacyError
from dpfedadamw.run.journal import Journal, begin
from dpfedadamw.rundir import RunDirectoryError, appeared, starting
from dpfedadamw.storage.disk import Disk

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


def test_a_state_that_the_evidence_keeps_is_gone_on_from(run):
    last = run.checkpoint / "state-00003.safetensors"
    last.rename(run.evidence / "state-00002.safetensors")
    found = Journal(run).recover()
    assert (found.completed, found.state, found.note) == (3, state(3), None)
    (run.evidence / "state-00002.safetensors").write_bytes(b"another run's")
    assert Journal(run).recover().completed == 2
    assert not (run.evidence / "state-00002.safetensors").exists()


def test_without_either_of_the_last_two_states_it_is_refused(run):
    for path in run.checkpoint.glob("state-*"):
        path.unlink()
    with pytest.raises(DpfedadamwError, match="would spend their budget twice"):
        Journal(run).recover()


def test_older_states_put_back_under_the_last_ones_names_are_refused(run):
    for path in run.checkpoint.glob("state-*"):
        path.write_bytes(state(1))
    with pytest.raises(DpfedadamwError, match="do not match the ledger"):
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
        (SPEC + b"# a comment\n", "its text, but no value"),
        (b"{", "it is no longer valid YAML"),
        (b"a: &a [1]\nb: *a\n", "it has aliases, which no spec may have"),
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


class Watched(Disk):
    """Notes which files are written, synced, named and removed, by their names."""

    def __init__(self):
        self.steps = []

    def write(self, file, content, offset=0):
        self.steps.append(f"write {self._known(file.path)}")
        super().write(file, content, offset)

    def sync(self, file):
        self.steps.append(f"sync {self._known(file.path)}")
        super().sync(file)

    def rename(self, old, new):
        self.steps.append(f"name {new.name}")
        super().rename(old, new)

    def remove(self, path):
        self.steps.append(f"remove {path.name}")
        super().remove(path)

    def sync_folder(self, path):
        self.steps.append(f"names of {path.name}")
        super().sync_folder(path)

    def remove_folder(self, path):
        self.steps.append(f"remove {path.name}")
        super().remove_folder(path)

    @staticmethod
    def _known(path):
        return "unfinished" if path.name.startswith(".") else path.name


@pytest.fixture
def watched(run):
    """The run on a disk that notes the steps, and those steps."""
    disk = Watched()
    return replace(run, disk=disk), disk.steps


def paid_line(size: int) -> bytes:
    return b"%d %s\n" % (size, hashlib.sha256(b"%d" % size).hexdigest().encode())


def test_a_charge_is_on_the_disk_before_it_is_said_to_be_paid(watched):
    run, steps = watched
    journal = Journal(run)
    before = (run.checkpoint / "paid").read_bytes()
    steps.clear()
    journal.charge(iter([{"round": 3, "client": 7}]))
    assert steps == ["write ledger.jsonl", "sync ledger.jsonl", "write paid", "sync paid"]
    size = run.ledger.stat().st_size
    assert (run.checkpoint / "paid").read_bytes() == before + paid_line(size)
    steps.clear()
    journal.charge([])
    assert steps == []
    journal.charge([{"round": 3, "client": 8}])
    size, more = run.ledger.stat().st_size, paid_line(size)
    assert (run.checkpoint / "paid").read_bytes() == before + more + paid_line(size)


def test_a_round_is_over_once_its_evidence_and_its_state_are_on_the_disk(watched):
    run, steps = watched
    journal = Journal(run)
    steps.clear()
    journal.complete({"round": 3, "clients": 3}, state(4))
    assert steps == [
        "names of evidence",
        "write unfinished",
        "sync unfinished",
        "name state-00004.safetensors",
        "names of checkpoint",
        "write ledger.jsonl",
        "sync ledger.jsonl",
        "remove state-00002.safetensors",
    ]
    last = journal.ledger.of_kind("round")[-1]
    assert (last["round"], last["clients"]) == (3, 3)
    assert last["state_sha256"] == hashlib.sha256(state(4)).hexdigest()
    assert stat.S_IMODE((run.checkpoint / "state-00004.safetensors").stat().st_mode) == 0o600
    assert journal.completed == 4


def test_states_of_rounds_to_come_go_when_a_round_is_over(run):
    (run.checkpoint / "state-00005.safetensors").write_bytes(state(5))
    (run.checkpoint / "state-x.safetensors").write_bytes(b"no state")
    Journal(run).complete({"round": 3}, state(4))
    kept = sorted(path.name for path in run.checkpoint.glob("state-*"))
    assert kept == [f"state-{one}.safetensors" for one in ("00003", "00004", "x")]


def test_a_run_without_evidence_completes_its_rounds_all_the_same(run):
    for path in run.evidence.iterdir():
        path.unlink()
    run.evidence.rmdir()
    journal = Journal(run)
    journal.complete({"round": 3}, state(4))
    assert journal.completed == 4


def test_a_run_that_has_just_begun_has_completed_nothing_and_claims_nothing(tmp_path):
    disk = Watched()
    header = {"spec_sha256": hashlib.sha256(SPEC).hexdigest()}
    with starting("toy", tmp_path, datetime(2026, 1, 2, tzinfo=UTC), disk) as (hidden, lock):
        disk.steps.clear()
        begin(hidden, SPEC, header, {"round": 0, "epsilon": 0.5})
        named = [step for step in disk.steps if step.startswith(("name ", "write ledger"))]
    lock.release()
    assert named == [
        "name spec.yaml",
        "name spec.yaml",
        "write ledger.jsonl",
        "name metrics.jsonl",
        "name paid",
    ]
    run = appeared(hidden)
    journal = Journal(run)
    assert (journal.completed, journal.claim) == (0, None)
    assert journal.header["spec_sha256"] == header["spec_sha256"]
    assert run.spec.read_bytes() == (run.checkpoint / "spec.yaml").read_bytes() == SPEC
    assert run.metrics.read_bytes() == b'{"round":0,"epsilon":0.5}\n'
    paid = run.checkpoint / "paid"
    assert paid.read_bytes() == paid_line(run.ledger.stat().st_size)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (run.spec, run.metrics, paid)]
    assert modes == [0o644, 0o644, 0o600]
    found = journal.recover()
    assert (found.completed, found.state, found.note) == (0, None, None)
    assert not journal.lacks_metrics(0)


def test_a_first_round_whose_state_is_lost_is_run_again_from_the_beginning(tmp_path):
    header = {"spec_sha256": hashlib.sha256(SPEC).hexdigest()}
    with starting("toy", tmp_path, datetime(2026, 1, 2, tzinfo=UTC)) as (hidden, lock):
        begin(hidden, SPEC, header, {"round": 0})
    lock.release()
    run = appeared(hidden)
    journal = Journal(run)
    journal.complete({"round": 0}, state(1))
    journal.measure({"round": 1})
    (run.checkpoint / "state-00001.safetensors").unlink()
    (run.evidence / "round-00000.npz").write_bytes(b"evidence")
    found = Journal(run).recover()
    assert (found.completed, found.state) == (0, None)
    assert found.note.startswith("the state after round 1 is lost or damaged")
    assert "continues after round 0, and round 1 is run and charged again" in found.note
    assert not (run.evidence / "round-00000.npz").exists()
    # With both states of two rounds lost there is no going back to the beginning.
    journal = Journal(run)
    journal.complete({"round": 1}, state(2))
    (run.checkpoint / "state-00002.safetensors").unlink()
    with pytest.raises(
        RunDirectoryError,
        match="the states after round 2 and the round before do not match the ledger",
    ):
        Journal(run).recover()


def test_a_state_that_is_a_link_is_not_gone_on_from(run, tmp_path):
    path = run.checkpoint / "state-00003.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert Journal(run).recover().completed == 2


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl", "checkpoint/paid", "spec.yaml"])
def test_a_run_that_lost_what_it_wrote_before_it_spent_anything_is_refused(run, name):
    def go_on():
        journal = Journal(run)
        journal.check_spec()
        journal.recover()

    go_on()
    (run.path / name).unlink()
    with pytest.raises(RunDirectoryError, match=rf"{name}: is missing, and without it"):
        go_on()
    assert not (run.path / name).exists()


def test_a_ledger_without_a_header_is_refused(run):
    run.ledger.write_bytes(b"")
    (run.checkpoint / "paid").unlink()
    with pytest.raises(RunDirectoryError, match="the ledger has no header"):
        Journal(run)


def test_what_a_killed_writer_left_in_memory_is_on_the_disk_before_anything_is_forgotten(watched):
    run, steps = watched
    journal = Journal(run)
    steps.clear()
    journal.recover()
    assert steps == [
        f"names of {run.path.parent.name}",
        f"names of {run.path.name}",
        "names of checkpoint",
        "sync metrics.jsonl",
        "remove round-00003.npz",
        "remove upload-00003-00001.npz",
    ]


def test_only_the_folder_above_the_run_may_be_closed_to_whoever_goes_on(run):
    class Closed(Disk):
        refused = run.path.parent

        def sync_folder(self, path):
            if path == self.refused:
                raise PermissionError(errno.EACCES, "no", str(path))
            super().sync_folder(path)

    run = replace(run, disk=Closed())
    assert Journal(run).recover().completed == 3
    for refused in (run.path, run.checkpoint):
        run.disk.refused = refused
        with pytest.raises(PermissionError):
            Journal(run).recover()


def test_evidence_is_forgotten_by_the_number_of_its_round_alone(run):
    later = ["state-00003.safetensors", "round-00004.npz", "upload-00012-00001.npz"]
    kept = [
        "salt",
        "round-00002.npz",
        "upload-00002-00003.npz",
        "state-00002.safetensors",
        "round-00003.npz.kept",
        "around-00003.npz",
        "round-0003.npz",
        "other-00003.npz",
    ]
    for name in later + kept:
        (run.evidence / name).write_bytes(b"")
    Journal(run).recover()
    left = {path.name for path in run.evidence.iterdir()}
    assert left == {*kept, "round-00000.npz", "round-00001.npz"}


def test_metrics_go_on_where_they_end(run):
    with run.metrics.open("ab") as file:
        file.write(b'{"round":4}\n{"round":5}\n')
    journal = Journal(run)
    journal.recover()
    assert rounds_measured(run) == [0, 1, 2, 3]
    assert not journal.lacks_metrics(3)
    assert journal.lacks_metrics(2)
    journal.measure({"round": 4})
    journal.measure({"round": 5})
    assert rounds_measured(run) == [0, 1, 2, 3, 4, 5]
    assert stat.S_IMODE(run.metrics.stat().st_mode) == 0o644
    assert journal.last_metrics() == {"round": 5}


def test_metrics_are_appended_to_whatever_their_file_holds(run):
    journal = Journal(run)
    journal.measure({"round": 4})
    journal.measure({"round": 5})
    assert rounds_measured(run) == [0, 1, 2, 3, 4, 5]


def test_metrics_that_are_whole_are_not_written_again(watched):
    run, steps = watched
    Journal(run).recover()
    assert "name metrics.jsonl" not in steps


@pytest.mark.parametrize("content", [b"", b"no json\n", b'{"round":'])
def test_there_are_no_last_metrics_where_none_can_be_read(run, content):
    journal = Journal(run)
    run.metrics.write_bytes(content)
    assert journal.last_metrics() == {}
    assert journal.lacks_metrics(0)


@pytest.mark.parametrize("line", [b"[1]", b"{}", b"null", b'{"round":"x"}', b'{"round":null}'])
def test_a_line_of_metrics_without_a_round_is_none(run, line):
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join([*lines[:-1], line + b"\n"]))
    journal = Journal(run)
    journal.recover()
    assert rounds_measured(run) == [0, 1, 2]
    assert journal.lacks_metrics(3)


def test_model_and_evidence_are_on_the_disk_before_the_claim_and_then_the_checkpoint_goes(watched):
    run, steps = watched
    journal = Journal(run)
    steps.clear()
    journal.close({"epsilon": 1.0})
    assert steps == [
        "names of evidence",
        "write ledger.jsonl",
        "sync ledger.jsonl",
        "remove paid",
        "remove spec.yaml",
        "remove state-00002.safetensors",
        "remove state-00003.safetensors",
        "remove checkpoint",
        f"names of {run.path.name}",
    ]
    assert journal.claim["epsilon"] == 1.0
    steps.clear()
    journal.tidy()
    assert steps == []


def test_the_last_claim_counts(run):
    journal = Journal(run)
    journal.ledger.append("claim", {"epsilon": 1.0})
    journal.ledger.append("claim", {"epsilon": 2.0})
    assert journal.claim["epsilon"] == 2.0


FOUR = b"a: 1\nb: 1\nc: 1\nd: 1\ne: 1\n"


@pytest.mark.parametrize(
    ("edited", "told"),
    [
        (b"a: 2\nb: 2\nc: 2\nd: 1\ne: 1\n", "(a: 1 became 2; b: 1 became 2; c: 1 became 2)"),
        (b"a: 2\nb: 2\nc: 2\nd: 2\ne: 1\n", "c: 1 became 2; and 1 more)"),
        (b"c: 1\nd: 1\ne: 1\n", "(a: 1 became not given; b: 1 became not given)"),
        (b"[1]", "c: 1 became not given; and 3 more)"),
        (b"\xff", "(it is no longer valid YAML)"),
    ],
)
def test_three_changes_of_a_spec_are_told_and_how_many_more_there_are(run, edited, told):
    journal = Journal(run)
    journal.ledger.entries[0] = {
        **journal.ledger.entries[0],
        "spec_sha256": hashlib.sha256(FOUR).hexdigest(),
    }
    (run.checkpoint / "spec.yaml").write_bytes(FOUR)
    run.spec.write_bytes(edited)
    with pytest.raises(RunDirectoryError) as caught:
        journal.check_spec()
    assert told in str(caught.value)
    run.spec.write_bytes(FOUR)
    journal.check_spec()


@pytest.mark.parametrize("copy", [None, b"edited: too\n"])
def test_an_edited_spec_whose_copy_is_gone_or_edited_too_is_refused_without_a_comparison(run, copy):
    path = run.checkpoint / "spec.yaml"
    path.unlink() if copy is None else path.write_bytes(copy)
    run.spec.write_bytes(SPEC + b"more: 1\n")
    with pytest.raises(RunDirectoryError, match="restore it, or start a new run"):
        Journal(run).check_spec()


@pytest.mark.parametrize("torn", [b"12", b"17 abc\n", b"x 0\n", b" \n", b"\0\0\0"])
def test_a_record_of_what_was_paid_that_a_crash_tore_is_written_over(run, torn):
    whole = (run.checkpoint / "paid").read_bytes()
    (run.checkpoint / "paid").write_bytes(whole + torn)
    journal = Journal(run)
    journal.charge([{"round": 3, "client": 9}])
    written = (run.checkpoint / "paid").read_bytes()
    assert written.startswith(whole + paid_line(run.ledger.stat().st_size))


def test_no_line_that_was_paid_is_dropped_whatever_stands_behind_the_record(run):
    with (run.checkpoint / "paid").open("ab") as file:
        file.write(b"torn\n")
    content = run.ledger.read_bytes()
    run.ledger.write_bytes(content[:-10])
    with pytest.raises(PrivacyError, match="bytes that were written are missing"):
        Journal(run)
