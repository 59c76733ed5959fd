"""Models and data sets of other packages: found by their entry points, and known to every spec."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from dpfedadamw import spec
from dpfedadamw.cli import main
from dpfedadamw.data.datasets import load
from dpfedadamw.data.registry import DATASETS, DatasetEntry, Part, Prepared
from dpfedadamw.errors import SpecError
from dpfedadamw.models.registry import MODELS, ModelEntry, build
from dpfedadamw.registration import RegistrationError, Registry
from dpfedadamw.spec.data_section import DataSpec, TestFraction
from dpfedadamw.spec.fields import describe
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.section import Contradictions, Values, key


class ToyModelSpec(ModelSpec, title="Toy model"):
    """One linear layer, scaled."""

    scale: float = key(0.5, "Multiplies every score.", unit="1", gt=0, le=10)


class ToyDataSpec(DataSpec, title="Toy data"):
    """Points on a line."""

    test_fraction: TestFraction = 0.2
    points: int = key(40, "How many points there are.", unit="records", ge=10, le=1000)


class Scaled(nn.Module):
    def __init__(self, inputs: int, classes: int, scale: float) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, classes)
        self.scale = scale

    def forward(self, inputs: Any) -> Any:
        return self.scale * self.head(inputs)


def _build(keys: ToyModelSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    return Scaled(*input_shape, classes, keys.scale)


def _check(get: Values) -> Contradictions:
    if get("model", "scale") == 1:
        yield ("model", "scale"), f"{get.found('model', 'scale')}, which scales nothing"


def _bring(keys: ToyDataSpec, _: object) -> Prepared:
    inputs = np.linspace(-1, 1, keys.points, dtype=np.float32)[:, None]
    labels = (inputs[:, 0] > 0).astype(np.int64)
    return Prepared({"train": Part(inputs, labels, None)}, 2, "0" * 64)


MODEL = ModelEntry(
    name="toy-model",
    keys=ToyModelSpec,
    summary="one linear layer, scaled",
    source="nobody",
    build=_build,
    check=_check,
)
DATA = DatasetEntry(
    name="toy-data",
    keys=ToyDataSpec,
    summary="points on a line",
    origin="nowhere",
    licence="none",
    bring=_bring,
)
TEXT = """\
data: {dataset: toy-data, clients: 10, points: 60}
model: {name: toy-model, scale: 2.0}
algorithm: {name: dp-fedavg}
privacy: {unit: none}
"""


class Point:
    """An entry point of a distribution that is not installed."""

    def __init__(self, found: object) -> None:
        self.name = self.value = "toy"
        self.dist = SimpleNamespace(name="toys", version="1.2")
        self._found = found

    def load(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def add(registry: Registry[Any], found: object, patch: pytest.MonkeyPatch) -> None:
    """Let a distribution bring something to a registry, until the test ends."""
    list(registry)  # what is there before
    for name in ("_entries", "_origins"):
        patch.setattr(registry, name, dict(getattr(registry, name)))
    patch.setattr(registry, "_edition", registry.edition)
    registry._load_foreign(Point(found))


def call(*arguments: str) -> int:
    """The command line's exit code."""
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    return int(end.value.code or 0)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    add(MODELS, MODEL, monkeypatch)
    add(DATASETS, DATA, monkeypatch)


def test_a_spec_names_what_another_package_registers(toys):
    text = TEXT.replace("dp-fedavg", "fedavg")
    loaded = spec.loads(text)
    assert loaded.model == ToyModelSpec(name="toy-model", scale=2.0)
    assert loaded.data.to_mapping()["points"] == 60
    assert spec.loads(text.replace(", scale: 2.0", "")).model.to_mapping() == {
        "name": "toy-model",
        "seed": None,
        "scale": 0.5,
    }
    assert spec.loads(spec.dump(loaded)) == loaded
    data = load(loaded.data)
    assert len(data.train) + len(data.test) == 60
    model = build(loaded.model, data.input_shape, data.classes, seed=0)
    assert isinstance(model, Scaled)
    assert model.scale == 2.0
    # What rebuilds a stored model.
    assert spec.model_of(loaded.model.to_mapping()) == loaded.model


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("scale: 2.0", "scale: 20", "2:33: model.scale: found 20; must be a number greater than 0"),
        ("scale: 2.0", "scael: 2", "2:26: model.scael: unknown key; did you mean scale?"),
        ("scale: 2.0", "scale: 1", "2:33: model.scale: found 1.0, which scales nothing"),
        ("toy-model", "toy-modle", 'found the text "toy-modle"; must be one of mlp, '),
        ("points: 60", "points: 3", "1:48: data.points: found 3; must be an integer from 10"),
        ("toy-data", "toy-dat", "did you mean toy-data?"),
    ],
)
def test_its_keys_are_checked_like_all_others(toys, old, new, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        spec.loads(TEXT.replace("dp-fedavg", "fedavg").replace(old, new))


def test_its_keys_are_in_schema_and_list_of_fields(toys):
    rows = {row.path: row for row in describe(spec.schema())}
    assert rows["model.scale"].when == "model.name is toy-model"
    assert rows["data.points"].default == "40"
    assert rows["model.name"].range.endswith(" | toy-model")
    assert rows["data.dataset"].range.endswith(" | toy-data")


def test_what_is_gone_is_unknown_again(monkeypatch):
    with monkeypatch.context() as patch:
        add(MODELS, MODEL, patch)
        assert "toy-model" in json.dumps(spec.schema())
    assert "toy-model" not in json.dumps(spec.schema())


@pytest.mark.parametrize(("kind", "name"), [("models", "toy-model"), ("datasets", "toy-data")])
def test_a_list_says_which_distribution_brings_a_name(toys, kind, name, capsys):
    assert call("list", kind, "--json") == 0
    *own, foreign = json.loads(capsys.readouterr().out)
    assert foreign["name"] == name
    assert list(foreign.values())[-1].endswith("; from toys 1.2")
    assert not any("; from " in json.dumps(row) for row in own)


@pytest.mark.parametrize(("kind", "registry"), [("models", MODELS), ("datasets", DATASETS)])
@pytest.mark.parametrize("fault", ["does not load", "is registered twice"])
def test_a_broken_or_second_entry_is_one_line_and_exit_code_2(
    kind, registry, fault, monkeypatch, capsys
):
    first = next(iter(registry.values()))
    again = type(first)(**{**vars(first), "summary": "another"})
    found = ImportError("no module\nnamed x") if fault == "does not load" else again
    for name in ("_entries", "_origins"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(registry, "_edition", registry.edition)
    monkeypatch.setattr(registry, "_complete", False)

    def points(group: str) -> list[EntryPoint]:
        return [Point(found)] if group == f"dpfedadamw.{kind}" else []

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    with pytest.raises(RegistrationError, match=fault):
        list(registry)
    assert call("list", kind) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "toys 1.2" in line
    assert fault in line


def test_a_spec_is_read_without_loading_torch_or_transformers():
    code = (
        "import sys; from dpfedadamw import spec; spec.load('quickstart'); "
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
