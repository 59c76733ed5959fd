"""Reading specs from files and by name, defaults, short forms, and writing them back."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest
import yaml

from audit.untrusted.documents import parse_yaml
from dpfedadamw import spec
from dpfedadamw.algorithms.keys import SecondMomentSpec
from dpfedadamw.errors import SpecError
from dpfedadamw.spec import yamltext
from dpfedadamw.spec.yamltext import parse

ROOT = Path(__file__).parents[3]
MINIMAL = """\
data: {dataset: digits}
model: {name: mlp}
algorithm: {name: dp-fedadamw}
privacy:
  unit: record
  clipping_norm: 1
  noise_multiplier: 2
  delta: 1e-5
  sampling: {kind: poisson, expected_batch_size: 32}
"""


def refused(path, overrides=()) -> str:
    with pytest.raises(SpecError) as caught:
        spec.load(path, overrides)
    (problem,) = caught.value.problems
    return str(problem)


def test_defaults_are_those_of_the_vocabulary():
    assert spec.loads(MINIMAL).to_mapping() == {
        "version": 1,
        "name": "experiment",
        "description": "",
        "data": {
            "dataset": "digits",
            "path": None,
            "sha256": None,
            "clients": 10,
            "partition": {
                "kind": "dirichlet",
                "alpha": 0.6,
                "minimum_records": 1,
                "seed": None,
            },
            "test_fraction": 0.2,
            "validation": {"fraction": 0.0, "public": False},
            "augmentation": [],
            "seed": 0,
        },
        "model": {"name": "mlp", "seed": None, "hidden": [32]},
        "task": {
            "kind": "classification",
            "loss": "cross_entropy",
            "focal_gamma": 2.0,
            "class_weights": [],
        },
        "algorithm": {
            "name": "dp-fedadamw",
            "learning_rate": 0.02,
            "schedule": "cosine",
            "beta1": 0.9,
            "beta2": 0.999,
            "epsilon": 1e-8,
            "server": {"learning_rate": 1.0, "averaging": None},
            "weight_decay": 0.01,
            "decay": "decoupled",
            "alignment": 0.5,
            "first_moment": {"aggregation": "none"},
            "second_moment": {
                "aggregation": "heads",
                "debias": True,
                "counter": "global",
                "floor": {"relative": 1.0},
                "denominator": "coordinate",
            },
        },
        "federation": {
            "rounds": 20,
            "clients_per_round": 10,
            "clients_per_person": 1,
            "client_sampling": "fixed",
            "local_steps": 5,
            "max_epsilon": None,
            "engine": "inline",
            "workers": 1,
            "drop_outs": 0,
        },
        "privacy": {
            "unit": "record",
            "adjacency": "add-remove",
            "clipping_norm": 1.0,
            "noise_multiplier": 2.0,
            "target_epsilon": None,
            "delta": 1e-5,
            "sampling": {
                "kind": "poisson",
                "expected_batch_size": 32.0,
                "rate": None,
                "reference_size": None,
            },
            "gaussian_sampler": "box-muller",
        },
        "randomness": {"mode": "release", "seed": None},
        "budget": {"file": None, "epsilon": None, "delta": None},
        "tune": {"selection": "none"},
        "evaluation": {
            "every": "auto",
            "training": False,
            "public_test": None,
            "metrics": [],
        },
        "compute": {"physical_batch_size": 512, "precision": "float32"},
        "report": {
            "purpose": None,
            "lawful_basis": None,
            "necessity": None,
            "risks": None,
            "measures": None,
            "responsible": None,
            "governance": dict.fromkeys(
                (
                    "controller",
                    "data_categories",
                    "collection",
                    "access",
                    "retention",
                    "recipients",
                    "other_releases",
                    "reidentification",
                    "trust_model",
                    "region",
                    "sector",
                    "publication_date",
                    "registry_authors",
                )
            ),
            "paper": "a4",
            "language": "en",
        },
    }


def test_the_resolved_keys_stand_in_the_vocabularys_order_whatever_the_files_order():
    backwards = "".join(reversed(MINIMAL.partition("privacy")[0].splitlines(keepends=True)))
    text = "privacy" + MINIMAL.partition("privacy")[2] + backwards
    assert spec.dump(spec.loads(text)) == spec.dump(spec.loads(MINIMAL))
    assert list(spec.loads(text).to_mapping()) == list(spec.schema()["properties"])


def test_a_rule_without_second_moment_has_none_and_its_dump_neither():
    loaded = spec.loads(MINIMAL.replace("dp-fedadamw", "dp-fedavg"))
    assert loaded.algorithm.part(SecondMomentSpec) is None
    assert "beta1" not in loaded.algorithm.to_mapping()
    written = yaml.safe_load(spec.dump(loaded))["algorithm"]
    assert list(written) == ["name", "learning_rate", "schedule", "weight_decay", "server"]


def test_whole_numbers_are_floats_where_numbers_are_asked_for():
    loaded = spec.loads(MINIMAL)
    assert isinstance(loaded.privacy.noise_multiplier, float)
    assert isinstance(loaded.federation.rounds, int)


@pytest.mark.parametrize(
    ("short", "mode", "seed"),
    [
        ("release", "release", None),
        ("reproducible", "reproducible", 0),
        ("{mode: reproducible, seed: 7}", "reproducible", 7),
    ],
)
def test_randomness_has_a_short_form(short, mode, seed):
    loaded = spec.loads(f"{MINIMAL}randomness: {short}\n")
    assert loaded.randomness.to_mapping() == {"mode": mode, "seed": seed}


def test_a_resolved_spec_with_a_solved_multiplier_loads_again():
    asked = spec.loads(MINIMAL.replace("noise_multiplier: 2", "target_epsilon: 8"))
    assert asked.privacy.noise_multiplier is None
    solved = spec.replace_noise_multiplier(asked, 1.25)
    assert solved.privacy.noise_multiplier == 1.25
    assert solved.privacy.target_epsilon == 8.0
    assert spec.loads(spec.dump(solved)) == solved


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_solved_multiplier_is_refused(value):
    with pytest.raises(ValueError, match="positive and finite"):
        spec.replace_noise_multiplier(spec.loads(MINIMAL), value)


def test_a_spec_without_privacy_takes_no_multiplier():
    with pytest.raises(ValueError, match="without privacy"):
        spec.replace_noise_multiplier(spec.load("digits-baseline-fedadamw"), 1.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("+3", 3),
        ("0", 0),
        ("007", "007"),
        ("0x10", "0x10"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2026-11-21", "2026-11-21"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("'true'", "true"),
        ('"1"', "1"),
        ("e5", "e5"),
    ],
)
def test_plain_words_mean_what_they_say(text, value):
    read = parse(f"key: {text}", "a.yaml")
    assert read.problems == []
    assert read.value == {"key": value}
    assert type(read.value["key"]) is type(value)


def test_a_spec_stays_the_same_when_pickled():
    loaded = spec.load("quickstart")
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        loaded.name = "other"


# Files and names


def test_a_shipped_spec_is_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert spec.load("quickstart").name == "quickstart"


def test_a_file_wins_over_a_shipped_spec_and_a_directory_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits-cnn").mkdir()
    (tmp_path / "quickstart").write_text(MINIMAL)
    assert spec.load("quickstart").name == "experiment"
    assert spec.load("digits-cnn").name == "digits-cnn"


def test_a_missing_file_names_the_nearest_shipped_spec_and_where_all_are_listed():
    message = refused("quikstart.yaml")
    assert message == (
        "quikstart.yaml: no such file, and no shipped spec of that name; did you mean quickstart? "
        "dpfedadamw list specs names those that are shipped"
    )


def test_a_directory_is_refused(tmp_path):
    assert refused(tmp_path) == f"{tmp_path}: this is a directory; give a YAML file"


def test_a_named_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = refused(tmp_path / "pipe")
    assert message == f"{tmp_path}/pipe: this is not a regular file; give a YAML file"


@pytest.mark.parametrize("target", ["nowhere", "/etc/passwd", "link"])
def test_a_link_is_refused_unread(target, tmp_path):
    (tmp_path / "link").symlink_to(target)
    assert refused(tmp_path / "link") == f"{tmp_path}/link: this is a link; give the file itself"


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", "a\nb", ""])
def test_impossible_names_are_refused_in_one_line(name):
    assert len(refused(name).splitlines()) == 1


def test_a_file_that_is_not_utf8_is_refused_with_its_place(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"version: 1\nname: caf\xe9\n")
    assert refused(path) == f"{path}:2:10: the byte 0xE9 is not UTF-8; save the file as UTF-8"


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "windows.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert spec.load(path) == spec.loads(MINIMAL)


@pytest.mark.parametrize(("size", "fits"), [(2**20, True), (2**20 + 1, False)])
def test_a_file_has_at_most_a_mebibyte(tmp_path, size, fits):
    path = tmp_path / "large.yaml"
    path.write_text(MINIMAL + "#" * (size - len(MINIMAL)))
    if fits:
        assert spec.load(path) == spec.loads(MINIMAL)
    else:
        message = "the file is larger than 1 MiB; a spec has a few kilobytes"
        assert refused(path) == f"{path}: {message}"


def wide(columns):
    data = {"dataset": "table", "path": "genes.csv", "label": "y"}
    data["columns"] = [
        {"name": f"g{i}", "kind": "number", "low": 0, "high": 1} for i in range(columns)
    ]
    return spec.from_mapping(parse(MINIMAL, "minimal").value | {"data": data})


def test_a_spec_is_filed_only_if_it_reads_back_with_every_default_written_out():
    """A run of 2,300 columns trained, and neither the engine nor the auditor read its spec."""
    fits = wide(1_900)
    text = spec.filed(fits)
    assert text == spec.dump(fits)
    assert spec.loads(text) == fits
    assert parse_yaml(text.encode())["data"]["columns"][-1]["name"] == "g1899"
    with pytest.raises(SpecError, match="more than 20000 values"):
        spec.loads(spec.dump(wide(2_300)))
    with pytest.raises(SpecError, match=r"this has 23,\d\d\d values in .*at most 20,000 in 1 MiB"):
        spec.filed(wide(2_300))


def test_values_are_counted_as_they_are_read(monkeypatch):
    small = wide(3)
    found = yamltext.counted(small.to_mapping())
    monkeypatch.setattr(yamltext, "MAXIMUM_NODES", found)
    assert spec.loads(spec.filed(small)) == small
    monkeypatch.setattr(yamltext, "MAXIMUM_NODES", found - 1)
    with pytest.raises(SpecError, match=f"more than {found - 1} values"):
        spec.loads(spec.dump(small))
    with pytest.raises(SpecError, match=f"has {found} values"):
        spec.filed(small)


def test_the_bytes_of_what_is_filed_are_counted(monkeypatch):
    small = wide(3).replace(description="é" * 100)
    monkeypatch.setattr(yamltext, "MAXIMUM_BYTES", len(spec.dump(small).encode()))
    assert spec.loads(spec.filed(small)) == small
    monkeypatch.setattr(yamltext, "MAXIMUM_BYTES", len(spec.dump(small).encode()) - 1)
    with pytest.raises(SpecError, match="resolved, this has"):
        spec.filed(small)


def test_reading_specs_loads_no_tensor_library():
    code = (
        "import sys, dpfedadamw.spec as s; s.load('quickstart'); "
        "print({'torch', 'opacus', 'dp_accounting', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "set()"


def test_a_listed_description_is_that_of_the_spec():
    described = {one.name: one.description for one in spec.shipped()}
    assert all(described.values())
    for name in ("quickstart", "digits-vit", "sst2-lora"):
        assert described[name] == spec.load(name).description
