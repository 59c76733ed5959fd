"""The JSON Schema of what a file may hold: the spec of one run, or a sweep.

The schema of a run is made of its sections (`vocabulary.schema`). The additional fields of a sweep
are defined here, field by field, with the shapes stated by the modules that read them.
"""

from __future__ import annotations

import copy
from typing import Any

from dpfedadamw.spec.document import TUNE
from dpfedadamw.spec.fields import TYPE_WORDS, Field
from dpfedadamw.spec.matrix.axes import AXES_SCHEMA
from dpfedadamw.spec.matrix.printed import EXPECTED_SCHEMA, READINGS_SCHEMA
from dpfedadamw.spec.matrix.seeds import SEEDS_SCHEMA
from dpfedadamw.spec.vocabulary import schema

_Part = dict[str, Any]
_TOP: dict[str, _Part] = {
    "matrix": {
        "title": "Matrix",
        "description": (
            "The axes of a sweep: each combination of their values is a cell, with its own spec. "
            "An axis is named after the field whose values it lists, or has its own name if it "
            "covers several fields."
        ),
        **AXES_SCHEMA,
        "examples": [{"privacy.target_epsilon": [2, 8]}],
    },
    "seeds": {
        "title": "Seeds",
        "description": (
            "Repeats every cell of a sweep: a number of seeds from 0 on, or a list of seeds, with "
            "what they vary."
        ),
        **SEEDS_SCHEMA,
        "examples": [5, [0, 1], {"numbers": 5, "vary": ["run"]}],
    },
    "expected": {
        "title": "Printed numbers",
        "description": "What a paper prints for the cells of a sweep, a table for each measure.",
        **EXPECTED_SCHEMA,
        "examples": [
            {
                "test_accuracy": {
                    "source": "A paper, Table 2",
                    "rows": "method",
                    "values": {"DP-FedAvg": 66.37},
                }
            }
        ],
    },
    "readings": {
        "title": "Readings",
        "description": "For each field set here, what the paper does not say about its value.",
        **READINGS_SCHEMA,
        "examples": [{"privacy.clipping_norm": "Chosen from a grid that is not stated."}],
    },
}
_SEARCH: dict[str, _Part] = {
    "grid": {
        "title": "Grid",
        "description": "The axes of a search, written like those of a matrix; each combination is "
        "a candidate.",
        **AXES_SCHEMA,
        "examples": [{"algorithm.learning_rate": [0.02, 0.05, 0.1]}],
    },
    "data": {
        "title": "Public data",
        "description": (
            "The data on which candidates of a public search are trained: a section like data."
        ),
        "$ref": "#/properties/data",
    },
    "seeds": {
        "title": "Seeds of the search",
        "description": (
            "Separate seeds for the candidates, written like seeds; a count starts at 1000. None "
            "may also be in seeds. The best candidate is then run again with each of seeds."
        ),
        **SEEDS_SCHEMA,
        "examples": [2, [100, 101]],
    },
}
# By what accounts for a search: the keys that it has of these.
_OF_SELECTION = {
    "private": ("grid",),
    "public": ("grid", "data", "seeds"),
    "unaccounted": ("grid", "seeds"),
}


def file_schema() -> _Part:
    """Return the JSON Schema (draft 2020-12) of a file, as a fresh dictionary.

    A section that a spec must have may be left to an axis of the matrix.
    """
    whole, (top, search) = schema(), copy.deepcopy((_TOP, _SEARCH))
    whole["properties"] |= top
    whole["anyOf"] = [{"required": whole.pop("required")}, {"required": ["matrix"]}]
    for selection, names in _OF_SELECTION.items():
        branch = whole["$defs"][f"{TUNE}_{selection}"]
        branch["properties"] |= {name: {"$ref": f"#/$defs/{TUNE}_{name}"} for name in names}
    whole["$defs"] |= {f"{TUNE}_{name}": part for name, part in search.items()}
    return whole


def describe_sweep() -> list[Field]:
    """Return a row for each field that only a sweep has, as `describe` does for a spec's."""
    parts = {**_TOP, **{f"{TUNE}.{name}": part for name, part in _SEARCH.items()}}
    return [
        Field(path, _kinds(part), "none", "", "", part["description"])
        for path, part in parts.items()
    ]


def _kinds(part: _Part) -> str:
    """The types of a field in words; what refers to a section is one."""
    kinds = [each.get("type", "object") for each in part.get("oneOf", [part])]
    return " or ".join(TYPE_WORDS.get(kind, kind) for kind in kinds)
