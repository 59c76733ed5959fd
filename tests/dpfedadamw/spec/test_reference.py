"""The list of fields, and the reference page made from it."""

from __future__ import annotations

from pathlib import Path

import pytest

import specs
from dpfedadamw import spec
from dpfedadamw.models.registry import MODELS
from dpfedadamw.spec import reference
from dpfedadamw.spec.fields import Field, describe

PAGE = Path(__file__).parents[3] / "docs" / "spec.md"


def rows() -> dict[tuple[str, str], Field]:
    return {(row.path, row.when): row for row in describe(spec.schema())}


def test_each_field_is_listed_once_for_each_choice():
    listed = describe(spec.schema())
    assert len(rows()) == len(listed)
    assert len({row.path for row in listed}) > 55


def test_a_row_says_type_default_range_and_unit():
    row = rows()["privacy.noise_multiplier", "privacy.unit is record or person"]
    assert (row.type, row.default, row.range, row.unit) == (
        "number or null",
        "null",
        "≥ 0.001, ≤ 1000000",
        "1",
    )
    row = rows()["model.hidden", "model.name is mlp"]
    assert (row.type, row.default, row.range, row.unit) == (
        "list of 0 to 8 integers",
        "[32]",
        "each ≥ 1, ≤ 65536",
        "neurons",
    )
    assert rows()["model.name", ""].default == "required"
    assert rows()["model.name", ""].range == " | ".join(MODELS)


def test_a_field_of_every_choice_has_no_condition():
    assert rows()["algorithm.learning_rate", ""].default == "0.02"
    assert rows()["data.partition.minimum_records", ""].default == "1"


def test_every_key_of_a_resolved_spec_is_listed():
    listed = {row.path for row in describe(spec.schema())}

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(item, f"{path}.{key}" if path else key)
        else:
            assert path in listed

    for one in spec.shipped():
        walk(spec.load(one.name).to_mapping(), "")


def test_the_reference_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == reference.page(), (
        "run: python -m dpfedadamw.spec.reference docs/spec.md"
    )


def test_the_schema_that_ships_is_up_to_date():
    assert specs.schema_text() == reference.schema_text(), (
        "run: python -m dpfedadamw.spec.reference specs/schema/experiment.schema.json"
    )


def test_the_page_is_written_where_the_argument_says(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path / "page.md")])
    reference.main()
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == reference.page()
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path / "schema.json")])
    reference.main()
    assert (tmp_path / "schema.json").read_text(encoding="utf-8") == reference.schema_text()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--page"], ["page.txt"]])
def test_what_is_neither_a_page_nor_a_schema_writes_no_file(
    arguments, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["reference", *arguments])
    with pytest.raises(SystemExit):
        reference.main()
    assert "usage: python -m dpfedadamw.spec.reference" in "".join(capsys.readouterr())
    assert not list(tmp_path.iterdir())
