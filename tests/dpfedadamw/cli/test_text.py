"""Texts from a publisher's files to a signed report: words in, whole numbers all the way."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dpfedadamw import cli, experiment, spec
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from tests.dpfedadamw.cli.texts import LENGTH, SPECIAL, WORDS
from tests.dpfedadamw.cli.texts import folder as texts  # noqa: F401  # a fixture
from tests.runs import key_of_a_test

pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture(scope="module", name="folder")
def _folder(request):
    return request.getfixturevalue("texts")


def call(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_texts_are_read_trained_on_audited_computed_again_and_exported(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key_of_a_test())
    )
    key = tmp_path / "key"
    ReleaseRandomness(key_of_a_test()).write_escrow(key)
    short = ("--set", "federation.rounds=4", "--set", "federation.local_steps=3")
    assert call("run", folder / "texts.yaml", *short, "--out", tmp_path / "runs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
    run = (tmp_path / "runs" / "latest").resolve()
    assert call("audit", run, "--replay", 2, "--escrow", key, "--json") == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    (again,) = (check for check in checks if check["name"] == "reexecution")
    assert (again["verdict"], again["details"]["drawn"]) == ("PASS", 2)
    assert call("export", run, "--output", tmp_path / "model") == 0
    assert (tmp_path / "model" / "adapter_model.safetensors").is_file()


def test_a_text_is_whole_numbers_from_the_tokeniser_to_the_model(folder):
    one = spec.load(folder / "texts.yaml", ())
    prepared = experiment.prepare(one, torch.device("cpu"))
    first = (folder / "sst2" / "train.tsv").read_text().splitlines()[1].split("\t")[0].split()
    vocabulary = (folder / "encoder" / "vocab.txt").read_text().splitlines()
    numbers = [vocabulary.index(word) for word in ("[CLS]", *first, "[SEP]")]
    batch = prepared.dataset.train.inputs[0:1]
    assert batch.dtype == torch.int32
    assert batch[0, 0].tolist() == numbers + [0] * (LENGTH - len(numbers))
    assert batch[0, 1].tolist() == [0] * LENGTH
    batch[0, 0, -1] = 2**24 + 1  # float32 would make it 2**24
    seen = prepared.model._arguments(batch)["input_ids"]
    assert int(seen[0, -1]) == 2**24 + 1


def save_tokens(path, largest: int, kind: int = 0) -> None:
    tokens = np.ones((12, 2, LENGTH), np.int64)
    tokens[:, 1] = 0
    tokens[3, kind, 2] = largest
    labels = np.arange(12) % 2
    np.savez(path, x_train=tokens, y_train=labels, x_test=tokens[:4], y_test=labels[:4])


def arrays(folder, path):
    section = f"data={{dataset: arrays, path: {path}, clients: 2, partition: {{kind: iid}}}}"
    return spec.load(folder / "texts.yaml", (section,))


def test_tokens_of_ones_own_arrays_stay_whole_numbers(folder, tmp_path):
    known = len(SPECIAL) + len(WORDS)
    save_tokens(tmp_path / "tokens.npz", known - 1)
    prepared = experiment.prepare(arrays(folder, tmp_path / "tokens.npz"), torch.device("cpu"))
    batch = prepared.dataset.train.inputs[0:12]
    assert batch.dtype == torch.int32
    assert int(batch.max()) == known - 1
    assert prepared.model(batch).shape == (12, 2)


@pytest.mark.parametrize(("row", "kind", "known"), [(0, "token", 16), (1, "token type", 2)])
def test_a_token_that_the_model_does_not_know_is_one_line(
    folder, tmp_path, capsys, row, kind, known
):
    assert known == (len(SPECIAL) + len(WORDS) if row == 0 else 2)
    save_tokens(tmp_path / "tokens.npz", known, row)
    section = f"data={{dataset: arrays, path: {tmp_path}/tokens.npz, clients: 2}}"
    code = call("run", folder / "texts.yaml", "--out", tmp_path / "runs", "--set", section)
    told = capsys.readouterr().err.strip()
    assert code == 2
    assert f"data.path: holds {kind} {known}, but the model accepts 0 to {known - 1}" in told
    assert "\n" not in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("dataset", "model", "message"),
    [
        ("sst2", "{name: mlp}", "holds texts, but the model reads numbers; use roberta-base"),
        ("digits", None, "digits are images, but the model reads texts"),
    ],
)
def test_texts_and_numbers_do_not_meet_the_wrong_model(
    folder, tmp_path, capsys, dataset, model, message
):
    changes = ["--set", "data.dataset=digits", "--set", "data.path=null"]
    if dataset == "sst2":
        changes = ["--set", f"model={model}"]
    assert call("run", folder / "texts.yaml", "--out", tmp_path / "runs", *changes) == 2
    assert message in capsys.readouterr().err
