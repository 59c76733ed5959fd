"""JSON Schemas of what a recorded loop writes down: the lines of its ledger, and the layout.

    python -m audit.evidence

writes them into this folder; docs/evidence-format.md explains the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from audit.reading.ledger_lines import MECHANISM

NAMES = ("ledger", "layout")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_HEX = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_RATE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_SAMPLING = {"enum": ["poisson", "fixed-size"]}
_ADJACENCY = {"enum": ["add-remove", "replace-one"]}
_CHAIN = {"previous": _HEX, "digest": _HEX}


def _line(kind: str, fields: Mapping[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    properties = {"kind": {"const": kind}, **_CHAIN, **fields}
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_PRODUCER = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("name", "version", "mode", "optimizer", "generator"), _TEXT),
        "secure": {"type": "boolean"},
        "mechanism": {"type": "string", "pattern": f"^{MECHANISM}$"},
    },
    "required": ["name", "version", "mode", "optimizer", "generator", "secure"],
    "additionalProperties": False,
}
_VIEW = {
    "type": "object",
    "properties": {
        "accountant": _TEXT,
        "epsilon": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
    },
    "additionalProperties": False,
}
_LINES = {
    "header": _line(
        "header",
        {
            "format": {"const": 1},
            "run": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"},
            "spec_sha256": _HEX,
            "package": _TEXT,
            "created": _TEXT,
            "unit": {"enum": ["record", "client"]},
            "producer": _PRODUCER,
            "adjacency": _ADJACENCY,
            "delta": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "clients": {"const": 1},
            "clients_per_round": {"const": 1},
            "client_sampling": {"const": "fixed-size"},
            "records": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1},
                "minItems": 1,
                "maxItems": 1,
            },
            "sampling": _SAMPLING,
            "expected_batch_size": _POSITIVE,
            "sampling_rate": _RATE,
            "clipping_norm": _POSITIVE,
            "noise_multiplier": _POSITIVE,
            "precision": _TEXT,
            "randomness": {"const": "release"},
            "qualifications": {"type": "array", "items": _TEXT},
            "parameters": {"type": "integer", "minimum": 1},
            "tensors_sha256": _HEX,
        },
        ("package", "created", "precision", "qualifications"),
    ),
    "spend": _line(
        "spend",
        {
            "round": _COUNT,
            "client": {"const": 0},
            "attempt": {"const": 1},
            "records": {"type": "integer", "minimum": 1},
            "sampling": _SAMPLING,
            "sampling_rate": _RATE,
            "rate_stated": {"const": True},
            "expected_batch_size": _POSITIVE,
            "clipping_norm": _POSITIVE,
            "noise_multiplier": _POSITIVE,
            "steps": {"const": 1},
            "queries_per_step": {"const": 1},
        },
    ),
    "round": _line(
        "round",
        {
            "round": _COUNT,
            "clients": {"const": [0]},
            "steps": {"type": "array", "items": _COUNT, "minItems": 1, "maxItems": 1},
            "queries": {"type": "array", "items": _COUNT, "minItems": 1, "maxItems": 1},
            "parameters_sha256": _HEX,
        },
        ("parameters_sha256",),
    ),
    "claim": _line(
        "claim",
        {
            "view_headline": {"const": "server"},
            "delta": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            "adjacency": _ADJACENCY,
            "assumptions": {"type": "array", "items": _TEXT},
            "server": _VIEW,
            "third_party": _VIEW,
            "accountant_history": {
                "type": "array",
                "items": {
                    "type": "array",
                    "prefixItems": [{"type": "number", "minimum": 0}, _RATE, _COUNT],
                    "minItems": 3,
                    "maxItems": 3,
                },
            },
        },
        ("accountant_history", "third_party"),
    ),
}
_LAYOUT = {
    "type": "object",
    "properties": {
        "format": {"const": 1},
        "unit": {"const": "loop"},
        "parameters": {"type": "integer", "minimum": 1},
        "blocks": {
            "type": "object",
            "properties": {
                "kind": {"const": "tensor"},
                "names": {"type": "array", "items": _TEXT, "minItems": 1},
                "sizes": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                "runs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": _TEXT,
                            "stop": {"type": "integer", "minimum": 1},
                            "blocks": {"type": "array", "items": _COUNT, "minItems": 1},
                        },
                        "required": ["name", "stop", "blocks"],
                    },
                },
            },
            "required": ["kind", "names", "sizes", "runs"],
        },
        "beta2": {"type": "null"},
        # Whether one is there twice is for the reader: to compare all pairs takes hours.
        "sample_coordinates": {"type": "array", "items": _COUNT},
        "per_round_files": _COUNT,
    },
    "required": [
        "format", "unit", "parameters", "blocks", "sample_coordinates", "per_round_files",
    ],
    "additionalProperties": False,
}  # fmt: skip


def schema(name: str) -> dict[str, Any]:
    """The schema of a line of the ledger, or of the layout.

    Args:
        name: "ledger" or "layout".
    """
    if name == "layout":
        return {"$schema": _DIALECT, "title": "evidence/layout.json of a recorded loop", **_LAYOUT}
    return {
        "$schema": _DIALECT,
        "title": "A line of the ledger of a recorded loop",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(_LINES)}},
        "$defs": _LINES,
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind}}},
                "then": {"$ref": f"#/$defs/{kind}"},
            }
            for kind in _LINES
        ],
    }


def text(name: str) -> str:
    """The schema's file."""
    return json.dumps(schema(name), indent=2) + "\n"


def path(name: str) -> Path:
    """Where the schema's file lies."""
    return Path(__file__).parent / f"{name}.schema.json"


def breaches(name: str, value: Any) -> Iterator[str]:
    """How a document departs from its schema, one sentence each."""
    for error in _validator(name).iter_errors(value):
        where = ".".join(str(part) for part in error.absolute_path)
        what = error.message if len(error.message) <= 160 else f"{error.message[:157]}..."
        yield f"{where}: {what}" if where else what


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema(name))
