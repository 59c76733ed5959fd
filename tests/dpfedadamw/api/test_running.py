"""Runs from Python: refused before anything is written, cut off and taken up again."""

from __future__ import annotations

import json
import sys
import types
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedadamw import api
from dpfedadamw import spec as specs
from dpfedadamw.api.running import _copied
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from tests.runs import key_of_a_test, small_spec, train

SMALL = small_spec(rounds=2, clients_per_round=2)


def test_a_wrong_spec_is_refused_with_all_that_is_wrong_and_nothing_is_written(tmp_path):
    wrong = {**SMALL.to_mapping(), "federation": {"rounds": -1}, "modle": {}}
    with pytest.raises(api.SpecError) as caught:
        api.run(wrong, out=tmp_path / "runs")
    assert [one.path for one in caught.value.problems][:2] == ["modle", "federation.rounds"]
    assert not (tmp_path / "runs").exists()


def test_changes_apply_to_a_dictionary_as_set_does_to_a_file():
    cost = api.epsilon(SMALL.to_mapping(), ["privacy.noise_multiplier=4.0"])
    assert cost.noise_multiplier == 4.0
    assert cost.epsilon < api.epsilon(SMALL).epsilon
    with pytest.raises(api.SpecError, match="did you mean rounds"):
        api.epsilon(SMALL, ["federation.roundz=1"])


def test_a_callback_that_raises_leaves_a_run_that_is_resumed(tmp_path):
    seen = []

    def stop(done):
        seen.append(done)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough") as caught:
        api.run(SMALL, out=tmp_path, callbacks=[stop])
    assert [one.completed for one in seen] == [1]
    (path,) = (one for one in tmp_path.iterdir() if not one.is_symlink())
    assert f"--resume {path}" in "".join(caught.value.__notes__)
    cut = api.Run(path)
    assert cut.verdict == "NOT VERIFIED"
    with pytest.raises(api.DpfedadamwError, match=r"training has not finished.*api\.resume"):
        _ = cut.epsilon
    with pytest.raises(api.DpfedadamwError, match="is not finished"):
        cut.report()
    assert "audit" in cut._repr_html_()
    more = []
    run = cut.resume(callbacks=[more.append])
    assert (run.verdict, [one.completed for one in more]) == ("PASS", [2])


def test_a_callback_gets_copies_of_the_models_of_its_rounds_and_can_change_nothing(tmp_path):
    same = ["randomness={mode: reproducible, seed: 1}"]
    alone, _ = train(SMALL, tmp_path / "alone")
    models = []

    def spoil(done):
        models.append(done.model())
        with torch.no_grad():
            for parameter in done.model().parameters():
                parameter.zero_()

    run = api.run(SMALL, out=tmp_path / "seen", changes=same, callbacks=[spoil])
    first, last = (torch.cat([one.flatten() for one in model.parameters()]) for model in models)
    assert not torch.equal(first, last)
    assert torch.equal(last, torch.cat([one.flatten() for one in run.model.parameters()]))
    assert not any(model.training for model in models)
    weights = [(one.path / "model.safetensors").read_bytes() for one in (alone.run, run)]
    assert weights[0] == weights[1]


def test_a_trial_of_a_private_selection_shows_no_model():
    spec = SimpleNamespace(tune=SimpleNamespace(selection="private"))
    trial = SimpleNamespace(experiment=SimpleNamespace(spec=spec, model=torch.nn.Linear(1, 1)))
    with pytest.raises(api.DpfedadamwError, match="releases its best model alone"):
        _copied(trial)


def test_a_run_has_the_accuracy_and_measures_of_its_last_evaluation_and_not_of_its_best(tmp_path):
    folder = tmp_path / "small-20261126T000000Z-00000001"
    folder.mkdir()
    (folder / "spec.yaml").write_text("version: 1\n")
    rows = [
        {"round": 0, "test_accuracy": 0.2, "test_auc": 0.1},
        {"round": 1, "test_accuracy": 0.9, "test_auc": 0.9, "test_own": {"f2": 0.9}},
        {"round": 2, "test_accuracy": 0.4, "test_auc": 0.3, "test_own": {"f2": 0.5}},
        {"round": 3, "test_accuracy": None},
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    run = api.Run(folder)
    assert run.accuracy == 0.4
    assert run.measures == {"test_auc": 0.3, "f2": 0.5}


def test_participations_are_computed_again_while_the_key_is_in_memory(tmp_path, monkeypatch):
    """Also of records and a module that no file can bring back."""
    generator = np.random.default_rng(1)
    records = generator.normal(size=(800, 8)).astype(np.float32), generator.integers(0, 3, 800)
    spec = {**small_spec(rounds=2, clients_per_round=2, mode="release").to_mapping()}
    spec = {name: part for name, part in spec.items() if name != "model"}
    spec["data"] = {"clients": 4, "partition": {"kind": "iid"}}
    # Checks that judge by chance fail once in a thousand runs, and a test with a fixed key never.
    key = ReleaseRandomness(key_of_a_test())
    monkeypatch.setattr(engine_setup, "ReleaseRandomness", lambda: key)
    net = torch.nn.Linear(8, 3)
    run = api.run(spec, model=net, data=records, out=tmp_path, replay=3)
    assert run.verify().level == 2
    found = run.audit()
    assert found.named("reexecution").details["drawn"] == 3
    assert (run.verdict, found.level) == ("PASS", 2)


@pytest.mark.parametrize(
    ("spec", "count", "message"),
    [
        (SMALL, -1, "replay -1: must be a whole number, 0 or more"),
        (SMALL, 2.0, "replay 2.0: must be a whole number, 0 or more"),
        (small_spec("fedavg", rounds=1), 2, "replay 2: this spec claims no privacy"),
    ],
)
def test_what_cannot_be_computed_again_is_refused_before_anything_is_written(
    tmp_path, spec, count, message
):
    with pytest.raises(api.DpfedadamwError, match=message):
        api.run(spec, out=tmp_path / "runs", replay=count)
    assert not (tmp_path / "runs").exists()


def test_a_run_without_privacy_claims_no_epsilon(tmp_path):
    run = api.run(small_spec("fedavg", rounds=1), out=tmp_path)
    assert (run.epsilon, run.delta, run.verdict) == (None, None, "NO CLAIM")
    assert "no differential privacy" in run._repr_html_()
    with pytest.raises(api.DpfedadamwError, match="there is no ε to compute"):
        api.epsilon(small_spec("fedavg"))


def test_an_export_without_the_program_that_was_asked_for_warns_with_the_reason(
    tmp_path, monkeypatch
):
    def cut_off(*_arguments, **_keys) -> None:
        raise RuntimeError("this layer cannot be traced")

    run = api.run(small_spec("fedavg", rounds=1), out=tmp_path)
    monkeypatch.setattr(torch.export, "export", cut_off)
    with pytest.warns(UserWarning, match=r"holds no program, .*this layer cannot be traced"):
        run.export(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run.export(tmp_path / "plain", program=False)


def test_whole_clients_are_claimed_towards_third_parties():
    plan = api.epsilon(small_spec("blur"))
    assert plan.epsilon == plan.claim["third_party"]["epsilon"]["pld"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "neither a run nor an exported model"),
        ({"adapter_config.json": "{}"}, "peft"),
        ({"config.json": "{}"}, "from_pretrained"),
    ],
)
def test_what_is_no_model_of_ours_is_refused_with_what_loads_it(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(api.DpfedadamwError, match=message):
        api.load_model(tmp_path)


def test_unknown_choices_are_refused_with_those_that_there_are(tmp_path):
    for call, message in (
        (lambda: api.calibrate(SMALL, 2.0, view="press"), "view 'press': must be one of server"),
        (lambda: api.calibrate(SMALL, 2.0, solve="luck"), "solve 'luck': must be one of noise"),
        (lambda: api.compare([], towards="press"), "`towards`: is 'press', must be one of server"),
        (lambda: api.run(SMALL, out=tmp_path, device="abacus"), "--device abacus: unknown"),
        (lambda: api.Run(tmp_path / "none"), "there is no such directory"),
    ):
        with pytest.raises(api.DpfedadamwError, match=message):
            call()


def test_a_table_is_rows_columns_and_a_frame(monkeypatch):
    table = api.Table([{"a": 1, "b": "<i>"}, {"a": 2.5}])
    assert (len(table), table.columns, table.column("b")) == (2, ["a", "b"], ["<i>", None])
    assert table[1:].column("a") == [2.5]
    assert "&lt;i&gt;" in table._repr_html_()
    with pytest.raises(KeyError, match="no such column; there are a, b"):
        table.column("c")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(api.DpfedadamwError, match="pip install pandas"):
        table.to_pandas()
    frames = types.SimpleNamespace(DataFrame=lambda rows, columns: (rows, columns))
    monkeypatch.setitem(sys.modules, "pandas", frames)
    assert table.to_pandas() == ([{"a": 1, "b": "<i>"}, {"a": 2.5}], ["a", "b"])


@pytest.mark.slow
def test_a_sweep_returns_a_row_a_cell_and_a_wrong_one_says_what_the_command_says(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(
        specs.dump(small_spec(rounds=1)) + "matrix: {algorithm.learning_rate: [0.1, 0.2]}\n"
    )
    table = api.sweep(path, out=tmp_path / "sweep", only=["algorithm.learning_rate=0.2"])
    assert table.column("algorithm.learning_rate") == ["0.2"]
    assert table.column("audit") == ["PASS"]
    with pytest.raises(api.DpfedadamwError, match="has no 9; it has"):
        api.sweep(path, out=tmp_path / "sweep", only=["algorithm.learning_rate=9"])
