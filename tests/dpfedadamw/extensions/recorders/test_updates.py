"""Recorded rounds of whole clients' updates: correct ones pass, and usual mistakes fail."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from audit.auditor import audit_run
from audit.evidence import faults
from audit.reading.evidence import read_layout
from audit.reading.loop_evidence import read_round
from audit.verdict import Severity, Verdict
from dpfedadamw.extensions.recorders.updates import UpdateRecorder, UpdateRecorderError
from tests.audit.corruptions import attest, finding_of
from tests.dpfedadamw.extensions.recorders import filters, numpy_loop
from tests.runs import call


@pytest.fixture(autouse=True)
def _the_same_draws_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistical checks raise a false alarm now and then; a test may not."""
    monkeypatch.setattr(filters.secrets, "randbits", lambda _: 6_512_087_331)


@pytest.mark.parametrize("rounds", filters.CORRECT, ids=lambda one: one.__name__)
def test_correct_rounds_pass(rounds, tmp_path: Path) -> None:
    run = attest(rounds(tmp_path / "run"))
    assert faults(run) == []
    found = audit_run(run)
    assert {
        one.name: one.measurement
        for one in found.findings
        if one.verdict is not Verdict.PASS and one.severity is Severity.CRITICAL
    } == {}
    assert found.verdict is Verdict.PASS
    assert "whole clients" in found.named("promise").measurement
    assert any("computes its update" in text for text in found.qualifications)


@pytest.mark.parametrize(
    ("rounds", "meant"), filters.BROKEN.items(), ids=[one.__name__ for one in filters.BROKEN]
)
def test_broken_rounds_fail_by_the_check_meant_for_them(rounds, meant, tmp_path: Path) -> None:
    found = audit_run(attest(rounds(tmp_path / "run")))
    failed = {one.name for one in found.findings if one.verdict is Verdict.FAIL}
    assert failed == {meant}
    assert found.verdict is Verdict.FAIL


def test_the_report_speaks_of_clients(tmp_path: Path, capsys) -> None:
    run = filters.server(tmp_path / "run")
    assert call("sign", str(run), "--role", "trainer") == 0
    assert call("audit", str(run), "--write") == 0
    report = json.loads((run / "report.json").read_text())
    assert report["guarantee"]["unit"] == "client"
    assert "replace-one-client" in report["guarantee"]["statement"]
    assert "one record" not in json.dumps(report["guarantee"])
    assert (report["clients"]["count"], report["clients"]["records_total"]) == (40, None)
    assert report["sampling"]["clients_per_round"] == 8
    page = (run / "report.html").read_text()
    assert "30 recorded rounds, 8 clients a round" in page
    assert "40 clients could take part" in page
    capsys.readouterr()
    assert call("compare", str(run), "--json") == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert group["heading"].startswith("a recorded loop, 40 clients")
    assert group["entries"][0]["objection"] == "a recorded loop tells no accuracy"
    assert (run / "report.pdf").read_bytes().startswith(b"%PDF")


def test_records_and_whole_clients_are_no_one_training(tmp_path: Path, capsys) -> None:
    loop = numpy_loop.train(tmp_path / "loop", seed=3)
    rounds = filters.client_filter(tmp_path / "rounds")
    assert call("evidence", "merge", str(loop), str(rounds), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert "the clients do not have the same unit of protection" in found["reasons"]


def test_rounds_without_a_sum_to_ask_are_not_verified(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(filters, "as_sum", lambda _: None)
    found = audit_run(filters.server(tmp_path / "run")).named("sensitivity")
    assert found.verdict is Verdict.NOT_VERIFIED
    assert "active probe" in found.measurement


def test_a_sum_that_fails_is_told_and_the_recording_closes(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(filters, "as_sum", lambda _: lambda updates: updates[0])
    with pytest.warns(UserWarning, match="made-up updates"):
        run = filters.server(tmp_path / "run")
    assert finding_of(run, "sensitivity").verdict is Verdict.NOT_VERIFIED


def test_updates_of_other_shapes_and_rounds_out_of_order_are_refused(tmp_path: Path) -> None:
    recorder = UpdateRecorder(tmp_path / "run", 1e-3, producer="x", version="1", clients=4)
    weights, other = [np.zeros(3, np.float32)], [np.zeros(4, np.float32)]
    bill = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "cohort": 2}
    with pytest.raises(UpdateRecorderError, match="no round was recorded"):
        recorder.close()
    with pytest.raises(UpdateRecorderError, match="call charge before"):
        recorder.record(updates=[weights], mean=weights, noised=weights)
    recorder.charge(weights, **bill)
    with pytest.raises(UpdateRecorderError, match="different shapes from the parameters"):
        recorder.record(updates=[other], mean=weights, noised=weights)
    with pytest.raises(UpdateRecorderError, match="not recorded"):
        recorder.charge(weights, **bill)
    recorder.record(updates=[weights], mean=weights, noised=weights)
    with pytest.raises(UpdateRecorderError, match="from the first round"):
        recorder.charge(other, **bill)


def test_made_up_updates_raise_no_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filters.client_filter(tmp_path / "run")


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_the_program_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs" / "evidence.md").read_text("utf-8")
    found = re.search(r"<!-- updates -->\s+```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    drawn = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda *_: drawn(83_215_907))
    exec(compile(found[1], "docs/evidence.md", "exec"), {})
    assert audit_run(attest(tmp_path / "my-server")).verdict is Verdict.PASS


def as_tensors(*numbers: float) -> list[NDArray[np.float32]]:
    """Three numbers as a tensor of two and a tensor of one."""
    return [np.array(numbers[:2], np.float32), np.array([numbers[2:]], np.float32)]


def bits(*numbers: float) -> int:
    """The sum of the numbers' bits in float32, as docs/evidence-format.md has it."""
    return sum(struct.unpack("<3i", struct.pack("<3f", *numbers))) % 2**53


def two_rounds(folder: Path) -> UpdateRecorder:
    """Two rounds of three parameters with C = 5, σ = 2 and four of eight clients."""
    recorder = UpdateRecorder(folder, 1e-3, producer="mine", version="1", clients=8)
    bill = {"clipping_norm": 5.0, "noise_multiplier": 2.0, "cohort": 4}
    recorder.charge(as_tensors(1, 2, 3), **bill, names=["a", "b"])
    recorder.record(
        participants=[6, 0, 3],
        updates=[as_tensors(6, 8, 0), as_tensors(0, 0, 1), as_tensors(0, 0, 0)],
        mean=as_tensors(0.75, 1, 0.25),
        noised=as_tensors(1.25, 1, -0.5),
    )
    recorder.charge(as_tensors(2.25, 3, 2.5), **bill)
    recorder.record(
        participants=[7],
        updates=[as_tensors(0, 0, 10)],
        mean=as_tensors(0, 0, 1.25),
        noised=as_tensors(0.5, 0, 1.25),
        after=as_tensors(10, 20, 30),
    )
    return recorder


# By hand: gradients point against updates; noise is 4 times what was released, less the clean sum.
TWO_ROUNDS: dict[str, Any] = {
    "batch_size": [[3, 1]],
    "rows": [6, 0, 3, 7],
    "row_offsets": [0, 3, 4],
    "record_offsets": [0, 3, 4],
    "raw_norms": [10, 1, 0, 10],
    "measured_divisor": [4, 4],
    "clean": [[-3, -4, -1], [0, 0, -5]],
    "clean_sum_squares": [[[25, 1], [0, 25]]],
    "expected": [[-3, -4, -1], [0, 0, -5]],
    "released": [[-1.25, -1, 0.5], [-0.5, 0, -1.25]],
    "noise_sample": [[[-0.4, 0, 0.6], [-0.4, 0, 0]]],
    "noise_sum_squares": [[[4, 9], [4, 0]]],
    "noise_silent": [[1, 2]],
    "noise_largest": [[0.6, 0.4]],
    "before": [[1, 2, 3], [2.25, 3, 2.5]],
    "after": [[2.25, 3, 2.5], [10, 20, 30]],
    "before_fingerprint": [bits(1, 2, 3), bits(2.25, 3, 2.5)],
    "after_fingerprint": [bits(2.25, 3, 2.5), bits(10, 20, 30)],
    # The update is a step of plain descent with rate 1, of one group of parameters.
    "settings": [[[1, 0, 0, 0, 0, 0, 0, 0]]] * 2,
    "group": [0, 0, 0],
    "unused": [0, 0],
    "skipped": [0, 0],
}


def test_what_is_written_of_a_round_is_what_its_arrays_say(tmp_path: Path) -> None:
    recorder = two_rounds(tmp_path / "run")
    assert recorder.rounds == 2
    run = recorder.close(3.0, "rdp")
    layout = read_layout(json.loads((run / "evidence" / "layout.json").read_text()))
    with np.load(run / "evidence" / "round-00000.npz") as arrays:
        found = read_round(dict(arrays), layout)
    for name, due in TWO_ROUNDS.items():
        np.testing.assert_allclose(getattr(found, name), due, rtol=1e-6, err_msg=name)
    with np.load(run / "evidence" / "coordinates.npz") as sums:
        # In units of the variance charged, which is 10 times 10.
        np.testing.assert_allclose(sums["squares"], [0.08, 0, 0.09], rtol=1e-6)
    with np.load(run / "evidence" / "end.npz") as end:
        assert end["fingerprint"] == bits(10, 20, 30)


def test_the_ledger_and_the_model_of_recorded_rounds_are_theirs(tmp_path: Path) -> None:
    run = two_rounds(tmp_path / "run").close(3.0, "rdp")
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    cost = {
        "sampling": "fixed-size", "sampling_rate": 0.5, "expected_batch_size": 4.0,
        "clipping_norm": 5.0, "noise_multiplier": 2.0,
    }  # fmt: skip
    header, *spends = lines[:3]
    loop = {"kind": "header", "unit": "client", "delta": 1e-3, "adjacency": "replace-one"}
    assert header.items() >= (cost | loop | {"parameters": 3}).items()
    assert header["records"] == [8]
    charged = {"kind": "spend", "client": 0, "records": 8, "steps": 1, "queries_per_step": 1}
    assert all(one.items() >= (cost | charged).items() for one in spends)
    (ended,) = [line for line in lines if line["kind"] == "round"]
    released = struct.pack("<3f", 10, 20, 30)
    assert ended["parameters_sha256"] == hashlib.sha256(released).hexdigest()
    view = {"accountant": "rdp", "epsilon": {"rdp": 3.0}}
    claim = {"kind": "claim", "delta": 1e-3, "server": view, "third_party": view}
    assert lines[-1].items() >= claim.items()
    tensors = load_file(run / "model.safetensors")
    assert {name: one.tolist() for name, one in tensors.items()} == {"a": [10, 20], "b": [[30]]}


def test_a_cohort_of_more_clients_than_there_are_is_charged_as_all(tmp_path: Path) -> None:
    recorder = UpdateRecorder(tmp_path / "run", 1e-3, producer="mine", version="1", clients=8)
    recorder.charge(as_tensors(1, 2, 3), clipping_norm=5.0, noise_multiplier=2.0, cohort=9)
    spend = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[-1])
    assert spend["sampling_rate"] == 1.0
    with pytest.raises(UpdateRecorderError, match="not as many names"):
        UpdateRecorder(tmp_path / "b", 1e-3, producer="mine", version="1", clients=8).charge(
            as_tensors(1, 2, 3), clipping_norm=5.0, noise_multiplier=2.0, cohort=4, names=["a"]
        )


def ledger(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]


def test_a_recorder_of_a_server_declares_what_servers_do_unless_it_is_told_otherwise(
    tmp_path: Path,
) -> None:
    who = {"producer": "mine", "version": "1.5", "clients": 8}
    further = {
        "mode": "client", "optimizer": "adam", "generator": "a die", "secure": True,
        "mechanism": "laplace",
    }  # fmt: skip
    bill = {"clipping_norm": 5, "noise_multiplier": 2, "cohort": 4}
    for name, given in (("a", {}), ("b", {**further, "sampling": "poisson"})):
        recorder = UpdateRecorder(tmp_path / name, 1e-3, **who, **given)
        assert recorder.rounds == 0
        recorder.charge(as_tensors(1, 2, 3), **bill)
    (plain, *_), (told, *_) = ledger(tmp_path / "a"), ledger(tmp_path / "b")
    assert plain["producer"] == {
        "name": "mine", "version": "1.5", "mode": "server", "optimizer": "sgd",
        "generator": "NumPy's default generator", "secure": False,
    }  # fmt: skip
    assert (plain["unit"], plain["sampling"]) == ("client", "fixed-size")
    assert told["producer"] == {"name": "mine", "version": "1.5", **further}
    assert (told["sampling"], told["adjacency"]) == ("poisson", "add-remove")
    model = json.loads((tmp_path / "a" / "model.json").read_text())
    assert model["tensors"] == [
        {"name": "tensor_0", "shape": [2], "dtype": "F32", "trained": True},
        {"name": "tensor_1", "shape": [1, 1], "dtype": "F32", "trained": True},
    ]


def test_parameters_that_were_replaced_between_two_rounds_begin_a_stretch(tmp_path: Path) -> None:
    recorder = UpdateRecorder(tmp_path / "run", 1e-3, producer="mine", version="1", clients=8)
    bill = {"clipping_norm": 5.0, "noise_multiplier": 2.0, "cohort": 4}
    # The second begins where the first ended, the third elsewhere.
    for before in (as_tensors(0, 0, 0), as_tensors(1, 1, 1), as_tensors(2, 2, 3)):
        recorder.charge(before, **bill)
        nothing = as_tensors(0, 0, 0)
        recorder.record(updates=[nothing], mean=nothing, noised=as_tensors(1, 1, 1))
    run = recorder.pause(2.0, "rdp")
    found = []
    for path in sorted((run / "evidence").glob("round-*.npz")):
        with np.load(path) as arrays:
            found.append((int(arrays["attachment"]), arrays["settings"].shape[0]))
            # Nobody said which clients they were.
            assert "rows" not in arrays
    assert found == [(1, 2), (2, 1)]


def test_a_paused_recording_of_rounds_goes_on_with_its_sums_and_states_what_it_said(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    who = {"producer": "mine", "version": "1", "clients": 1, "mode": "client"}
    for place in range(2):
        recorder = UpdateRecorder(folder, 1e-3, **who, continued=True)
        recorder.charge(as_tensors(0, 0, 0), clipping_norm=5, noise_multiplier=2, cohort=1)
        nothing = as_tensors(0, 0, 0)
        # Noise of ten is one of the deviations that are charged.
        recorder.record(
            participants=[0], updates=[nothing], mean=nothing, noised=as_tensors(10, 0, -20)
        )
        assert recorder.rounds == 1 + place
        assert recorder.pause(3.0 + place, "classical") == folder.resolve()
    with np.load(folder / "evidence" / "coordinates.npz") as sums:
        np.testing.assert_allclose(sums["squares"], [2, 0, 8])
    with np.load(folder / "evidence" / "end.npz") as end:
        assert end["fingerprint"] == bits(10, 0, -20)
    assert call("evidence", "close", str(folder)) == 0
    claim = ledger(folder)[-1]
    assert claim["server"] == {"accountant": "classical", "epsilon": {"classical": 4.0}}
