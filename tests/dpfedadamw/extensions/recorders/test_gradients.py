"""Recorded steps, given as arrays of gradients: a correct loop passes, broken ones fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from audit.auditor import audit_run
from audit.evidence import faults
from audit.verdict import Verdict
from dpfedadamw.extensions.recorders import gradients
from dpfedadamw.extensions.recorders.evidence import EvidenceError
from dpfedadamw.extensions.recorders.gradients import GradientRecorder
from dpfedadamw.extensions.recorders.updates import UpdateRecorderError
from tests.audit.corruptions import attest
from tests.dpfedadamw.extensions.recorders import gradient_loop


def test_a_correct_loop_passes(tmp_path: Path) -> None:
    run = attest(gradient_loop.train(tmp_path / "run", seed=3))
    assert faults(run) == []
    found = audit_run(run)
    assert found.verdict is Verdict.PASS
    assert any("forged all the evidence consistently" in text for text in found.qualifications)


@pytest.mark.parametrize(
    ("change", "meant"), [({"noise": 0.9}, "noise-scale"), ({"clip": 1.6}, "sensitivity")]
)
def test_a_broken_loop_fails_by_the_check_meant_for_it(
    change: dict[str, float], meant: str, tmp_path: Path
) -> None:
    found = audit_run(attest(gradient_loop.train(tmp_path / "run", seed=3, **change)))
    assert {one.name for one in found.findings if one.verdict is Verdict.FAIL} == {meant}


def test_the_probe_asks_for_the_sum_at_the_trained_parameters_and_at_others_twice() -> None:
    """A sum that ignores the parameters is told from one that reads them by these alone."""
    asked: list[np.ndarray] = []

    def mean(weights: Any, records: Any, labels: Any) -> Any:
        asked.append(weights[0])
        return weights

    trained = np.array([2.0, -4.0], np.float32)
    step = gradients._Step(1.0, 8.0, trained, [(2,)], None, mean, (3,), 2)
    given = np.zeros((1, 3)), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
    found = [
        step.sum_of_step(*given),
        step.sum_of_step(*given, elsewhere=True),
        step.sum_of_step_far_off(*given),
    ]
    due = [trained, 0.5 * trained, 4.0 - 3.0 * trained]
    np.testing.assert_array_equal(asked, due)
    np.testing.assert_array_equal(found, 8.0 * np.array(due))


def test_without_its_sum_whether_it_clips_is_not_verified(tmp_path: Path) -> None:
    recorder, zeros = _recorder(tmp_path), [np.zeros(3, np.float32)]
    recorder.charge(zeros, clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=2)
    noised = [np.ones(3, np.float32)]
    recorder.record(
        rows=[0], gradients=[np.zeros((1, 3))], mean=zeros, noised=noised,
        after=[-noised[0]], learning_rate=1.0,
    )  # fmt: skip
    found = audit_run(attest(recorder.close()))
    assert found.named("sensitivity").verdict is Verdict.NOT_VERIFIED


def test_a_step_that_was_not_charged_or_has_other_shapes_is_refused(tmp_path: Path) -> None:
    recorder, zeros = _recorder(tmp_path), [np.zeros(3, np.float32)]
    given = {"rows": [0], "mean": zeros, "noised": zeros, "after": zeros, "learning_rate": 1.0}
    with pytest.raises(UpdateRecorderError, match="call charge before"):
        recorder.record(gradients=[np.zeros((1, 3))], **given)
    recorder.charge(zeros, clipping_norm=1.0, noise_multiplier=1.0, expected_batch_size=2)
    with pytest.raises(UpdateRecorderError, match="different shapes"):
        recorder.record(gradients=[np.zeros((1, 4))], **given)
    with pytest.raises(UpdateRecorderError, match="no round was recorded"):
        recorder.close()


def _recorder(folder: Path) -> GradientRecorder:
    return GradientRecorder(folder / "run", 1e-5, producer="mine", version="1", records=10)


# PLDAccountant of dp-accounting 0.6 for 70 steps: Poisson samples of 0.1, LaplaceDpEvent(1.1).
LAPLACE = 3.0453538875576656


def _failed(found: Any) -> set[str]:
    return {one.name for one in found.findings if one.verdict is Verdict.FAIL}


def _open(found: Any) -> set[str]:
    return {one.name for one in found.findings if one.verdict is Verdict.NOT_VERIFIED}


def test_laplace_noise_that_states_what_it_costs_is_accounted_and_not_verified(
    tmp_path: Path,
) -> None:
    run = attest(gradient_loop.train(tmp_path / "run", 3, mechanism="laplace", stated=LAPLACE))
    assert faults(run) == []
    found = audit_run(run)
    assert _failed(found) == set()
    assert found.verdict is Verdict.NOT_VERIFIED
    assert {"noise-scale", "sensitivity"} <= _open(found)
    accounting = found.named("accounting")
    assert accounting.verdict is Verdict.PASS
    assert accounting.details["epsilon"] == pytest.approx(LAPLACE, rel=1e-3)
    assert accounting.details["over_rounds"][-1]["server"] == pytest.approx(LAPLACE, rel=1e-3)
    assert "laplace noise" in accounting.measurement


def test_laplace_noise_that_states_less_than_it_costs_fails(tmp_path: Path) -> None:
    stated = 0.98 * LAPLACE
    run = attest(gradient_loop.train(tmp_path / "run", 3, mechanism="laplace", stated=stated))
    assert _failed(audit_run(run)) == {"accounting"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stated", [1e-3, 19.8])
def test_a_mechanism_without_an_accountant_is_not_verified_whatever_it_states(
    tmp_path: Path, stated: float
) -> None:
    mechanism = "sparse vector"
    run = attest(gradient_loop.train(tmp_path / "run", 3, mechanism=mechanism, stated=stated))
    assert faults(run) == []
    found = audit_run(run)
    assert _failed(found) == set()
    assert found.verdict is Verdict.NOT_VERIFIED
    accounting = found.named("accounting")
    assert accounting.verdict is Verdict.NOT_VERIFIED
    assert accounting.measurement.startswith("mechanism unknown: sparse vector. ")
    assert "the noise on threshold and on answers" in accounting.measurement


def test_a_name_does_not_turn_a_broken_gaussian_loop_into_a_pass(tmp_path: Path) -> None:
    found = audit_run(attest(gradient_loop.train(tmp_path / "run", 3, noise=0.1, mechanism="none")))
    assert found.verdict is Verdict.NOT_VERIFIED


def test_a_mechanism_whose_name_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="mechanism is 'SVT!'"):
        gradient_loop.train(tmp_path / "run", 3, mechanism="SVT!")


def one_step(folder: Path, **given: Any) -> GradientRecorder:
    """A step of three parameters with C = 5, σ = 2 and four of ten records."""
    recorder = GradientRecorder(folder, 1e-5, producer="mine", version="1", records=10, **given)
    recorder.charge(
        {"w": np.array([1.0, 2.0]), "b": np.array([3.0])},
        clipping_norm=5, noise_multiplier=2, expected_batch_size=4,
    )  # fmt: skip
    recorder.record(
        rows=[7, 2],
        # In another order than at the charge.
        gradients={"b": np.array([[0.0], [1.0]]), "w": np.array([[6.0, 8.0], [0.0, 0.0]])},
        mean={"w": np.array([0.75, 1.0]), "b": np.array([0.25])},
        noised={"b": np.array([-0.5]), "w": np.array([1.25, 1.0])},
        after={"b": np.array([3.05]), "w": np.array([0.875, 1.9])},
        learning_rate=0.1,
    )
    return recorder


# By hand: noise is 4 times what was released, less 4 times the mean.
ONE_STEP = {
    "batch_size": [[2]],
    "rows": [7, 2],
    "raw_norms": [10, 1],
    "clean_sample": [[3, 4, 1]],
    "expected_sample": [[3, 4, 1]],
    "released_sample": [[1.25, 1, -0.5]],
    "noise_sample": [[[0.4, 0, -0.6]]],
    "noise_sum_squares": [[[4, 9]]],
    "clean_sum_squares": [[[25, 1]]],
    "divisor": [[4]],
    "before_sample": [[1, 2, 3]],
    "after_sample": [[0.875, 1.9, 3.05]],
    "settings": [[[0.1, 0, 0, 0, 0, 0, 0, 0]]],
}


def test_what_is_written_of_a_step_is_what_its_arrays_say_whatever_their_order(
    tmp_path: Path,
) -> None:
    run = one_step(tmp_path / "run").close(3.0, "rdp")
    with np.load(run / "evidence" / "round-00000.npz") as arrays:
        for name, due in ONE_STEP.items():
            np.testing.assert_allclose(arrays[name], due, rtol=1e-6, err_msg=name)
    header, spend, _, claim = map(json.loads, (run / "ledger.jsonl").read_text().splitlines())
    assert header["producer"] == {
        "name": "mine", "version": "1", "mode": "per record", "optimizer": "sgd",
        "generator": "unknown", "secure": False,
    }  # fmt: skip
    assert (header["unit"], header["sampling"], header["records"]) == ("record", "poisson", [10])
    assert (spend["sampling_rate"], spend["expected_batch_size"]) == (0.4, 4.0)
    assert claim["server"] == {"accountant": "rdp", "epsilon": {"rdp": 3.0}}
    tensors = load_file(run / "model.safetensors")
    assert {name: one.shape for name, one in tensors.items()} == {"w": (2,), "b": (1,)}
    assert not (run / "evidence" / "probe.npz").exists()


def test_a_recorder_of_gradients_declares_what_it_is_told(tmp_path: Path) -> None:
    given = {"mode": "vmap", "generator": "a die", "secure": True, "mechanism": "laplace"}
    one_step(tmp_path / "run", sampling="fixed-size", **given)
    header = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
    assert header["producer"] == {"name": "mine", "version": "1", "optimizer": "sgd", **given}
    assert (header["sampling"], header["adjacency"]) == ("fixed-size", "replace-one")
    # No record is drawn more often than always.
    recorder = _recorder(tmp_path / "other")
    recorder.charge([np.zeros(3)], clipping_norm=1, noise_multiplier=1, expected_batch_size=20)
    spend = (tmp_path / "other" / "run" / "ledger.jsonl").read_text().splitlines()[-1]
    assert json.loads(spend)["sampling_rate"] == 1.0


def test_the_probe_hands_over_the_records_of_the_client_and_the_parameters_by_name() -> None:
    asked: list[Any] = []

    def mean(weights: Any, records: Any, labels: Any) -> Any:
        asked.append((weights, records, labels))
        return {"b": np.array([7.0]), "w": np.array([[1.0, 2.0]])}

    trained = np.array([2.0, -4.0, 6.0], np.float32)
    step = gradients._Step(1.0, 8.0, trained, [(1, 2), (1,)], ["w", "b"], mean, (1,), 2)
    inputs, labels = np.array([[0.5], [1.5], [2.5], [3.5]]), np.array([0, 1, 2, 3])
    clients = np.array([0, 1, 0, 0])
    # Of client 0's records, which are 0, 2 and 3.
    found = step.sum_of_step(inputs, labels, clients, np.array([2, 1]))
    assert found.tolist() == [8.0, 16.0, 56.0]
    ((weights, records, drawn),) = asked
    assert {name: one.tolist() for name, one in weights.items()} == {"w": [[2, -4]], "b": [6]}
    assert (records.tolist(), records.dtype) == ([[3.5], [2.5]], np.float32)
    assert drawn.tolist() == [3, 2]
    # Few libraries read a batch of nobody.
    assert step.sum_of_step(inputs, labels, clients, np.zeros(0, np.int64)).tolist() == [0.0] * 3
    assert len(asked) == 1
    assert (step.parameters, step.grey_levels) == (3, False)
