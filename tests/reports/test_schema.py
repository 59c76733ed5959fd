"""The schemas that are made from models are the files that travel with the package."""

from __future__ import annotations

from pathlib import Path

import pytest

import reports
from reports import schema
from reports.content.parts import Part
from reports.schema import definitions, nested

FOLDER = Path(reports.__file__).parent / "schema"


def test_there_is_a_file_for_reports_and_for_each_extension_that_has_a_model() -> None:
    models = FOLDER.parent.glob("extensions/*/schema.py")
    names = {"report", *(path.parent.name for path in models)}
    assert set(schema.files()) == {f"{name}.schema.json" for name in names}


@pytest.mark.parametrize("name", sorted(schema.files()))
def test_file_and_models_say_the_same(name: str) -> None:
    """After a change of the models: python -m reports.schema."""
    assert (FOLDER / name).read_text("utf-8") == schema.files()[name]


def test_a_field_is_described_by_its_class() -> None:
    class Described(Part):
        """Something.

        Attributes:
            first: In one line.
            second: In more than
                one.
        """

        first: int | None
        second_: str

    found = definitions([Described])["Described"]
    assert found["description"] == "Something."
    assert found["properties"] == {
        "first": {"type": ["integer", "null"], "description": "In one line."},
        "second": {"type": "string", "description": "In more than one."},
    }
    assert found["required"] == ["first", "second"]
    assert found["additionalProperties"] is False


def test_a_field_that_no_docstring_describes_makes_no_schema() -> None:
    class Silent(Part):
        """Something."""

        first: int

    with pytest.raises(KeyError, match="first"):
        definitions([Silent])


def test_a_place_is_asked_for_at_every_item() -> None:
    found = nested({"rows[].key": {"const": 1}, "rows[].other": {"const": 2}})
    items = found["properties"]["rows"]["items"]["properties"]
    assert items == {"key": {"const": 1}, "other": {"const": 2}}
