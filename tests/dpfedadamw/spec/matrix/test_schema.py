"""The schema that editors check files by knows sweeps, and says what their readers say."""

from __future__ import annotations

import json

import jsonschema
import pytest

import specs
from dpfedadamw import spec
from dpfedadamw.errors import SpecError
from dpfedadamw.spec import reading
from dpfedadamw.spec.document import SWEEP_KEYS, TUNE_KEYS
from dpfedadamw.spec.matrix.schema import describe_sweep, file_schema
from dpfedadamw.spec.yamltext import parse
from tests.sweeps import BASE, METHODS, OWN_SEEDS, SEARCH, UNTUNED, swept

SHIPPED = {**specs.spec_files(), **specs.sweep_files()}
VALIDATOR = jsonschema.Draft202012Validator(json.loads(specs.schema_text()))


def errors(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(parse(text, "a test").value)]


def test_every_shipped_spec_and_sweep_is_valid_by_the_schema_that_ships():
    found = {
        name: [error.message for error in VALIDATOR.iter_errors(reading.read(name).value)]
        for name in SHIPPED
    }
    assert {name: said for name, said in found.items() if said} == {}
    assert len(SHIPPED) > len(specs.sweep_files()) > 30


def test_the_schema_of_files_is_valid_and_has_every_key_of_a_sweep_and_each_documented():
    whole = file_schema()
    jsonschema.Draft202012Validator.check_schema(whole)
    top = whole["properties"].keys() - spec.schema()["properties"].keys()
    assert top == set(SWEEP_KEYS)
    assert {row.path for row in describe_sweep()} == {*top, *(f"tune.{key}" for key in TUNE_KEYS)}
    parts = [*(whole["properties"][name] for name in SWEEP_KEYS),
             *(whole["$defs"][f"tune_{name}"] for name in TUNE_KEYS)]  # fmt: skip
    for part in parts:
        assert part["title"]
        assert part["description"].endswith(".")
        for value in part.get("examples", []):
            jsonschema.Draft202012Validator({**part, "$defs": whole["$defs"]}).validate(value)


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        BASE + METHODS,
        BASE + "seeds: {numbers: [3, 5], vary: [data]}\n",
        UNTUNED + SEARCH.format(selection="unaccounted").replace("tune:", "tune:\n  seeds: [7]"),
        UNTUNED + OWN_SEEDS.format(selection="unaccounted", seeds="2"),
        "matrix: {algorithm: [{name: dp-fedavg}]}\n",
    ],
)
def test_a_sweep_is_valid_by_the_schema(text):
    assert errors(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "matrix: 3\n",
        "matrix: {federation.rounds: 3}\n",
        "matrix: {federation.rounds: []}\n",
        "matrix: {size: {federation.rounds: [2], label: [7]}}\n",
        "seeds: 0\n",
        "seeds: [1, 1]\n",
        "seeds: {vary: [run]}\n",
        "seeds: {numbers: 2, vary: [noise]}\n",
        "expected: {test_speed: {source: X, rows: a, values: {b: 1}}}\n",
        "expected: {test_accuracy: {source: X, values: {b: 1}}}\n",
        "readings: {federation.rounds: 3}\n",
    ],
)
def test_what_the_reader_refuses_by_its_form_the_schema_refuses(text, tmp_path):
    assert errors(BASE + text)
    with pytest.raises(SpecError):
        swept(tmp_path, text)


@pytest.mark.parametrize(
    "tune",
    [
        "selection: private, mean_trials: 4, seeds: [7]",
        "selection: unaccounted, score: test_accuracy, data: {dataset: digits}",
        "selection: unaccounted, score: test_accuracy, seeds: 0",
    ],
)
def test_a_search_has_the_keys_of_its_kind_alone(tune, tmp_path):
    text = f"tune: {{{tune}, grid: {{algorithm.learning_rate: [0.1, 0.2]}}}}\nseeds: 2\n"
    assert errors(UNTUNED + text)
    with pytest.raises(SpecError):
        swept(tmp_path, text, base=UNTUNED)
