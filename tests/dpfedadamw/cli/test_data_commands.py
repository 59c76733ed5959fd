"""Data sets at the command line: whole runs, refusals that leave nothing, and who holds what."""

from __future__ import annotations

import json
import stat

import pytest

from dpfedadamw import cli
from dpfedadamw.privacy.noise.randomness import ReleaseRandomness
from dpfedadamw.run import setup as engine_setup
from tests.dpfedadamw.data import published
from tests.runs import key_of_a_test

SPEC = """
version: 1
name: tiny
data:
  dataset: mnist
  path: {path}
  clients: 2
  partition: {{kind: iid}}
  validation: {{fraction: 0.5, public: true}}
  augmentation: [flip, crop]
model: {{name: cnn, channels: [4], groups: 2}}
algorithm: {{name: dp-fedadamw, learning_rate: 0.1}}
federation: {{rounds: 4, clients_per_round: 2, local_steps: 4}}
privacy:
  {{unit: record, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-5,
   sampling: {{kind: poisson, expected_batch_size: 3}}}}
"""


@pytest.fixture
def spec(tmp_path):
    published.write_mnist(tmp_path / "mnist")
    (tmp_path / "tiny.yaml").write_text(SPEC.format(path=tmp_path / "mnist"))
    return tmp_path / "tiny.yaml"


def call(*arguments) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_a_run_on_publishers_files_is_audited_and_names_its_public_validation_set(
    spec, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(
        engine_setup, "ReleaseRandomness", lambda: ReleaseRandomness(key_of_a_test())
    )
    assert call("run", spec, "--out", tmp_path / "runs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "PASS"
    run = (tmp_path / "runs" / "latest").resolve()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["validation_accuracy"] <= 1 for line in lines)
    report = json.loads((run / "report.json").read_text())
    outside = {entry["title"]: entry["text"] for entry in report["outside_budget"]}
    assert "share of 0.5" in outside["Public validation records"]
    header = json.loads((run / "ledger.jsonl").read_text().splitlines()[0])
    assert report["identity"]["data_sha256"] == header["data_sha256"]


@pytest.mark.slow
def test_a_reproducible_run_repeats_its_random_views(spec, tmp_path):
    weights = []
    for _ in range(2):
        seed = "randomness={mode: reproducible, seed: 1}"
        call("run", spec, "--out", tmp_path / "runs", "--set", seed)
        run = (tmp_path / "runs" / "latest").resolve()
        weights.append((run / "model.safetensors").read_bytes())
    call("run", spec, "--out", tmp_path / "runs", "--set", seed, "--set", "data.augmentation=[]")
    plain = (tmp_path / "runs" / "latest").resolve() / "model.safetensors"
    assert weights[0] == weights[1] != plain.read_bytes()


def test_a_damaged_data_set_is_one_line_exit_2_and_no_run_directory(spec, tmp_path, capsys):
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(b"cut")
    assert call("run", spec, "--out", tmp_path / "runs") == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: data.path: ")
    assert "\n" not in told
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.path=null", "data.path: neither is given; give the path"),
        (f"data.revision={'0' * 40}", "data.path: both are given"),
        ("data.validation.public=false", "data.validation.public: validation records are eval"),
        ("data.sha256=abc", "must be 64 hexadecimal digits"),
        ("data.partition={kind: column, column: who}", "mnist has no columns; give file"),
        ("data.partition={kind: column}", "give either a column of the table or a file"),
        ("data.dataset=minst", "did you mean mnist?"),
        ("data.split=letters", "data.split"),
    ],
)
def test_what_a_spec_says_of_its_data_is_checked_before_they_are_read(
    change, message, spec, capsys
):
    assert call("spec", "validate", spec, "--set", change) == 2
    assert message in capsys.readouterr().err


def test_the_partition_shows_sizes_and_no_labels(spec, tmp_path, capsys):
    assert call("spec", "show", spec, "--partition", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "clients": 2,
        "records": [6, 6],
        "test_records": 3,
        "validation_records": 3,
    }
    picture = tmp_path / "sizes.svg"
    assert call("spec", "show", spec, "--partition", "--output", picture) == 0
    assert "12 training records of 2 clients" in capsys.readouterr().out
    assert picture.read_text().startswith("<?xml")


def test_label_counts_are_shown_to_whoever_asks_and_said_to_be_private(spec, tmp_path, capsys):
    picture = tmp_path / "labels.png"
    assert call("spec", "show", spec, "--partition", "--labels", "--output", picture) == 0
    assert "label counts are private" in capsys.readouterr().err
    assert stat.S_IMODE(picture.stat().st_mode) == 0o600
    assert call("spec", "show", spec, "--partition", "--labels", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [sum(counts) for counts in shown["labels"]] == shown["records"]
    assert "private" in shown["private"]


def test_options_of_a_partition_belong_to_it(spec, capsys):
    assert call("spec", "show", spec, "--labels") == 2
    assert "belong to --partition" in capsys.readouterr().err
    assert call("spec", "show", spec, "--partition", "--output", "a.gif") == 2
    assert ".svg, .png or .pdf" in capsys.readouterr().err


def test_data_sets_are_listed_with_source_and_licence(capsys):
    assert call("list", "datasets", "--json") == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert listed["fashion-mnist"]["licence"] == "MIT"
    assert all(row["from"] for row in listed.values())
