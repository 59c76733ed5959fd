"""The JSON Schemas that travel with the package, and how those of reports are made.

``python -m reports.schema`` writes the files of reports, comparisons and sites anew, from models.
An extension's model is in its module `schema`.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from reports.content.schema import report_schema

_EXTENSIONS = Path(__file__).parents[1] / "extensions"


def files() -> dict[str, str]:
    """Return the text of each file that is made from models, by its name."""
    made = {"report": report_schema()}
    for name in sorted(path.parent.name for path in _EXTENSIONS.glob("*/schema.py")):
        made[name] = import_module(f"reports.extensions.{name}.schema").schema()
    return {f"{name}.schema.json": _text(schema) for name, schema in made.items()}


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
