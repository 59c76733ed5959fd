"""What a run says of itself: each field of its ledger's header, its metrics and model.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dpfedadamw import __version__
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.experiment import Experiment, RunError, prepare
from dpfedadamw.models.registry import MODELS
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness, ReproducibleRandomness
from dpfedadamw.run import header as own
from dpfedadamw.run.checkpoints import RoundNumbers
from dpfedadamw.run.evaluation import Evaluation
from dpfedadamw.run.setup import resume
from dpfedadamw.run.start_options import StartOptions
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from tests.runs import begin, key_of_a_test, small_spec, train

MADE = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def said(
    experiment: Experiment,
    folder: Path,
    reserved: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, object]:
    """The header of a run in a folder of its own."""
    run = RunDirectory(folder / "20260304-050607-small-1a2b3c4d")
    run.evidence.mkdir(parents=True)
    (run.evidence / "salt").write_bytes(b"s" * 32)
    known = experiment.spec.randomness.mode == "reproducible"
    randomness = ReproducibleRandomness(1) if known else ReleaseRandomness(key_of_a_test())
    started = StartOptions(created=MADE, **options)
    return own.header(experiment, run, b"the spec's text", randomness, reserved, started)


def prepared(algorithm: str = "dp-fedadamw", *overrides: str, mode: str = "release") -> Experiment:
    return prepare(small_spec(algorithm, mode=mode, overrides=overrides), torch.device("cpu"))


def test_the_header_of_single_records_promises_what_the_spec_asks_for(tmp_path: Path) -> None:
    experiment = prepared()
    found = said(experiment, tmp_path)
    assert str(found.pop("rate_assumption")).startswith("the number of records R of each client")
    for derived in ("tensors_sha256", "commitment", "streams", "grid", "run"):
        assert found.pop(derived)
    assert found == {
        "format": 1,
        "spec_sha256": hashlib.sha256(b"the spec's text").hexdigest(),
        "data_sha256": experiment.dataset.sha256,
        "package": __version__,
        "created": "2026-03-04T05:06:07Z",
        "unit": "record",
        "adjacency": "add-remove",
        "delta": 1e-5,
        "rounds": 4,
        "local_steps": 3,
        "clients": 5,
        "clients_per_round": 4,
        "client_sampling": "fixed-size",
        "records": list(experiment.plan.records),
        "sampling": "poisson",
        "expected_batch_size": 24.0,
        "clipping_norm": 1.0,
        "noise_multiplier": 2.0,
        "participation": 0.8,
        "noise_added_by": None,
        "sparsification": None,
        "adaptation": None,
        "seconds": "whole",
        "precision": "float32",
        "randomness": "release",
        "qualifications": [],
        "seed": None,
        "accountant": {"library": "dpfedadamw", "version": __version__},
        "parameters": 650,
        "selection_sha256": hashlib.sha256(b"s" * 32).hexdigest(),
        "commitments": "blake3",
    }


def test_the_header_without_privacy_promises_nothing(tmp_path: Path) -> None:
    found = said(prepared("fedavg"), tmp_path)
    assert (found["unit"], found["clipping_norm"], found["noise_multiplier"]) == (
        "none",
        None,
        None,
    )
    assert found["qualifications"] == ["no differential privacy"]
    assert "commitments" not in found


def test_what_only_some_runs_have_is_named_there_and_nowhere_else(tmp_path: Path) -> None:
    plain = said(prepared(), tmp_path / "plain")
    order = CanaryOrder(7)
    rate = said(
        prepared(
            "dp-fedavg", "privacy.sampling={kind: poisson, expected_batch_size: 24, rate: 0.05}"
        ),
        tmp_path / "rate",
    )
    more = said(
        prepared("dp-fedavg", "federation.max_epsilon=3.5"),
        tmp_path / "more",
        reserved={"epsilon": 4.0},
        canaries=order,
        challenged=SimpleNamespace(header={"nonce": "00"}),
    )
    assert not {
        "sampling_rate",
        "max_epsilon",
        "budget",
        "tuning",
        "canaries",
        "public_coin",
    } & set(plain)
    assert rate["sampling_rate"] == 0.05
    assert (more["max_epsilon"], more["budget"], more["public_coin"]) == (
        3.5,
        {"epsilon": 4.0},
        {"nonce": "00"},
    )
    assert more["canaries"] == {"count": 7, "kind": "gradient", "audited": None}
    assert more["qualifications"] == [
        "audit run with 7 planted canaries: its model is not for release"
    ]
    known = said(prepared(mode="reproducible"), tmp_path / "known")
    assert known["seed"] == 1
    assert "streams" not in known
    sparse = said(prepared("fed-smp"), tmp_path / "sparse")
    assert sparse["sparsification"] == {"kind": "random", "size": 650, "kept": 260, "seed": 0}
    assert sparse["unit"] == "client"


@pytest.mark.parametrize(
    ("overrides", "mode", "expected"),
    [
        ((), "release", []),
        ((), "reproducible", [own.REPRODUCIBLE]),
        (
            ("tune={selection: unaccounted, score: test_accuracy}",),
            "release",
            [own.UNACCOUNTED_TUNING],
        ),
        (
            ("tune={selection: unaccounted, score: test_accuracy}",),
            "reproducible",
            [own.UNACCOUNTED_TUNING, own.REPRODUCIBLE],
        ),
        (("tune={selection: public, score: test_accuracy}",), "release", []),
    ],
)
def test_what_limits_a_claim_stands_on_it(overrides, mode, expected) -> None:
    spec = small_spec("dp-fedavg", mode=mode, overrides=overrides)
    assert own.qualifications(spec) == expected
    with_canaries = own.qualifications(spec, CanaryOrder(3))
    assert with_canaries[1:] == expected
    assert "3 planted canaries" in with_canaries[0]


NUMBERS = RoundNumbers(0.25, 100, 200, False)


def test_times_of_rounds_are_whole_seconds_that_add_up_to_all_of_them() -> None:
    times = own.WholeSeconds()
    assert [times.of(0.3) for _ in range(10)] == [1, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    assert times.of(7.25) == 8
    assert times.of(0.0) == 0
    told, measured = own.WholeSeconds(), [0.01 * number for number in range(500)]
    whole = [told.of(seconds) for seconds in measured]
    assert {type(seconds) for seconds in whole} == {int}
    assert 0 <= sum(whole) - sum(measured) < 1
    # No round is told as more than one second away from what it took.
    assert all(abs(one - other) <= 1 for one, other in zip(whole, measured, strict=True))


def test_a_line_of_metrics_before_training_has_no_round_behind_it() -> None:
    assert own.metrics_line(0, Evaluation(0.1, 2.5), None, None) == {
        "round": 0,
        "learning_rate": None,
        "test_accuracy": 0.1,
        "test_loss": 2.5,
        "validation_accuracy": None,
        "bytes_up": 0,
        "bytes_down": 0,
        "seconds": None,
    }


def test_a_line_of_metrics_has_what_was_measured_and_nothing_else() -> None:
    plain = own.metrics_line(3, Evaluation(None, None), NUMBERS, 2)
    assert plain["seconds"] == 2
    assert (plain["learning_rate"], plain["bytes_up"], plain["bytes_down"]) == (0.25, 100, 200)
    assert not {"epsilon", "canaries", "validation_loss", "train_accuracy", "test_classes"} & set(
        plain
    )
    full = own.metrics_line(
        3,
        Evaluation(
            None,
            1.0,
            train_loss=0.5,
            measures={"rmse": 2.0, "r2": 0.5},
            validation_loss=0.75,
            by_class=((5, 3), (4, 4)),
        ),
        NUMBERS,
        1,
        CanaryOrder(9),
        epsilon=0.0,
    )
    assert full["canaries"] == 9
    assert full["epsilon"] == 0.0
    assert (full["test_rmse"], full["test_r2"]) == (2.0, 0.5)
    assert (full["train_accuracy"], full["train_loss"], full["validation_loss"]) == (
        None,
        0.5,
        0.75,
    )
    # By class after the last round alone.
    assert "test_classes" not in full
    by_class = Evaluation(0.5, 1.0, by_class=((5, 3), (4, 4)), train_accuracy=0.25)
    last = own.metrics_line(4, by_class, replace(NUMBERS, last=True), 1)
    assert last["test_classes"] == [[5, 3], [4, 4]]
    assert (last["train_accuracy"], last["train_loss"]) == (0.25, None)
    none = own.metrics_line(4, Evaluation(0.5, 1.0), replace(NUMBERS, last=True), 1)
    assert "test_classes" not in none


def test_the_model_s_description_is_what_rebuilds_it(tmp_path: Path) -> None:
    experiment = prepared()
    run = RunDirectory(tmp_path)
    own.write_model_config(experiment, run)
    found = json.loads(run.model_config.read_bytes())
    assert found.pop("tensors")
    assert found == {
        "format": 1,
        "model": {"name": "mlp", "seed": None, "hidden": []},
        "input_shape": [1, 8, 8],
        "classes": 10,
        "parameters": 650,
        "base": None,
        "qualifications": [],
    }
    own.write_model_config(experiment, run, CanaryOrder(2))
    assert json.loads(run.model_config.read_bytes())["canaries"] == 2
    assert own.recorded_origin(run) is None
    own.refuse_changed_source(run, experiment.spec)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", None])
def test_a_description_that_cannot_be_read_is_one_line(
    content: bytes | None, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    if content is not None:
        run.model_config.write_bytes(content)
    with pytest.raises(RunDirectoryError, match="cannot be read") as caught:
        own.recorded_origin(run)
    assert str(run.model_config) in str(caught.value)


@pytest.mark.parametrize(
    ("before", "named"),
    [
        ({"a.py": "1", "b.py": "2"}, None),
        ({"a.py": "1", "b.py": "3"}, r"\(b\.py\)"),
        ({"a.py": "1"}, r"\(b\.py\)"),
        ({"a.py": "0", "b.py": "2", "c.py": "4"}, r"\(a\.py, c\.py\)"),
        (None, r"\(a\.py, b\.py\)"),
    ],
)
def test_a_run_goes_on_with_the_source_it_began_with_alone(
    before: dict[str, str] | None, named: str | None, tmp_path: Path, monkeypatch
) -> None:
    run = RunDirectory(tmp_path)
    run.model_config.write_text(json.dumps({"source": before}))
    monkeypatch.setattr(own, "source_of", lambda _spec: {"a.py": "1", "b.py": "2"})
    if named is None:
        own.refuse_changed_source(run, small_spec())
        return
    with pytest.raises(RunDirectoryError, match=f"source has changed since the run began {named}"):
        own.refuse_changed_source(run, small_spec())


def test_parameters_of_the_header_are_those_that_are_trained(tmp_path: Path) -> None:
    experiment = prepared()
    frozen = next(experiment.model.parameters())
    every = said(experiment, tmp_path / "every")["parameters"]
    frozen.requires_grad_(False)
    trained = said(experiment, tmp_path / "trained")["parameters"]
    assert every == sum(one.numel() for one in experiment.model.parameters())
    assert trained == every - frozen.numel()


def test_the_header_commits_to_what_the_first_round_sends(tmp_path: Path) -> None:
    entries = train(small_spec(rounds=1), tmp_path)[0].ledger.entries
    (first,) = (entry for entry in entries if entry["kind"] == "round")
    committed = {"broadcast_sha256": first["broadcast_sha256"], "origin": "seed"}
    assert entries[0]["initial"] == committed


@pytest.mark.parametrize(
    ("entry", "published", "told"),
    [
        ({}, {}, {"origin": "seed"}),
        ({}, {"source": "a/b", "revision": "c", "weights_sha256": "d"},
         {"origin": "file", "file": "a/b", "file_sha256": "d"}),
        ({"names_code": lambda _: "nets:Net"}, {}, {"origin": "code"}),
        ({"rebuilt": False}, {"source": "a/b"}, {"origin": "given"}),
    ],
)  # fmt: skip
def test_the_header_says_where_the_first_weights_are_from(
    entry: dict[str, Any], published: dict[str, str], told: dict[str, str], monkeypatch
) -> None:
    experiment = prepared()
    monkeypatch.setitem(MODELS._entries, "mlp", replace(MODELS["mlp"], **entry))
    experiment.model.origin = published
    found = own.initial_weights(experiment, ServerState(torch.zeros(650), {}))
    assert len(found.pop("broadcast_sha256")) == 64
    assert found == told


def test_a_run_whose_first_weights_are_built_otherwise_is_not_taken_up(
    tmp_path: Path, monkeypatch
) -> None:
    training = begin(small_spec(), tmp_path)
    training.lock.release()
    monkeypatch.setattr("dpfedadamw.experiment._model_seed", lambda _: 5)
    with pytest.raises(RunError, match="does not start from the weights that the run began with"):
        resume(training.run, torch.device("cpu"))
