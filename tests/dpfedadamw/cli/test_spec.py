"""``spec`` and ``list``: what they say to people and to machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpfedadamw import experiment
from dpfedadamw import spec as specs
from dpfedadamw.data import identifiers
from dpfedadamw.data.identifiers import Suspected
from dpfedadamw.models.registry import MODELS
from dpfedadamw.run import block_table
from dpfedadamw.run.block_table import BlockGroup, BlockTable
from specs import spec_files, sweep_files
from tests.runs import call

PEOPLE = Suspected("patient", 7)


@pytest.mark.parametrize(
    ("absent", "people", "code", "told", "parts"),
    [
        (None, None, None, {}, ()),
        (
            None, PEOPLE, None, {"people": {"column": "patient", "most_rows": 7}},
            ("data.person: patient",),
        ),
        # Where the data are not here, nobody is looked for in them.
        ("t.csv is missing", PEOPLE, None, {}, ("t.csv is missing",)),
        (
            None, None, "nets.deep:Net", {"not_built": "nets.deep:Net"},
            ("nets.deep:Net", "dpfedadamw model check quickstart --allow-code nets.deep builds"),
        ),
    ],
)  # fmt: skip
def test_a_spec_that_is_valid_is_said_to_be_with_what_was_not_looked_at(
    absent: str | None,
    people: Suspected | None,
    code: str | None,
    told: dict[str, Any],
    parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(experiment, "check", lambda _: absent)
    monkeypatch.setattr(experiment, "not_built", lambda _: code)
    monkeypatch.setattr(identifiers, "suspected", lambda _: people)
    assert call("spec", "validate", "quickstart", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "valid": True, "name": "quickstart", "unchecked": absent, **told,
    }  # fmt: skip
    assert call("spec", "validate", "quickstart") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "quickstart: valid"
    rest = " ".join(" ".join(lines[1:]).split())
    assert bool(rest) == bool(parts)
    assert all(part in rest for part in parts)


def test_a_spec_is_printed_whole_to_people_as_yaml_and_to_machines_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = ("--set", "federation.rounds=3")
    assert call("spec", "show", "quickstart", *changed, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == specs.load("quickstart", ["federation.rounds=3"]).to_mapping()
    assert call("spec", "show", "quickstart", *changed) == 0
    (tmp_path / "again.yaml").write_text(capsys.readouterr().out)
    assert specs.load(str(tmp_path / "again.yaml")).to_mapping() == told


def test_blocks_are_shown_in_place_of_the_spec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = BlockGroup("one", 2, ("one.weight",), 640)
    monkeypatch.setattr(block_table, "table_of", lambda _: BlockTable("layer", (group,), 2, 640, 0))
    assert call("spec", "show", "quickstart", "--blocks", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "kind": "layer",
        "groups": [{"name": "one", "blocks": 2, "tensors": ["one.weight"], "coordinates": 640}],
        "blocks": 2, "trained": 640, "frozen": 0,
    }  # fmt: skip
    assert call("spec", "show", "quickstart", "--blocks") == 0
    assert capsys.readouterr().out.split()[:2] == ["blocks:", "layer"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--labels", "--labels, --output"),
        ("--output a.svg", "--labels, --output"),
        ("--blocks --labels", "--labels, --output"),
        ("--partition --blocks", "--partition, --blocks"),
    ],
)
def test_what_does_not_go_together_is_refused(
    flags: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("spec", "show", "quickstart", *flags.split()) == 2
    assert capsys.readouterr().err.startswith(named)


def listed(kind: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert call("list", kind, "--json") == 0
    return list(json.loads(capsys.readouterr().out))


def test_specs_are_listed_before_sweeps_which_are_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = specs.shipped_sweeps()
    monkeypatch.setattr(specs, "shipped_sweeps", lambda: read)
    found = listed("specs", capsys)
    assert [one["name"] for one in found if not one["sweep"]] == [*spec_files()]
    assert [one["name"] for one in found if one["sweep"]] == [*sweep_files()]
    assert [one["sweep"] for one in found] == [False] * len(spec_files()) + [True] * len(
        sweep_files()
    )
    assert all({*one} == {"name", "title", "description", "sweep"} for one in found)
    assert call("list", "specs") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = [row[0] for row in rows if row]
    # Each sweep stands in the list of its own folder.
    titles = [first.index(word) for word in ("tables", "comparisons")]
    for name in sweep_files():
        later = name.startswith("replication")
        assert (first.index(name) > titles[1]) == later
        assert first.index(name) > titles[0]


def test_algorithms_are_listed_by_unit_and_models_and_data_with_their_sources(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    units = [one["privacy unit"].split(", ")[0] for one in listed("algorithms", capsys)]
    order = ["record", "client", "none"]
    assert units == sorted(units, key=order.index)
    assert {*units} == {*order}
    monkeypatch.setattr(
        type(MODELS), "origin", lambda _, name: "a-wheel 1.0" if name == "mlp" else ""
    )
    models = {one["name"]: one for one in listed("models", capsys)}
    assert list(models) == list(MODELS)
    assert {*models["mlp"]} == {"name", "what it is", "source"}
    assert models["mlp"]["source"].endswith("from a-wheel 1.0")
    assert models["cnn"]["source"] == MODELS["cnn"].source
    data = listed("datasets", capsys)
    assert {*data[0]} == {"name", "licence", "what it is", "from"}
    assert not any("a-wheel" in one["from"] for one in data)
