"""The JSON Schemas that travel with the package, and how those of reports are made.

``python -m reports.schema`` writes the files of reports, comparisons and sites anew, from models.
"""

from __future__ import annotations

import json
from typing import Any

from reports.comparison.data import comparison_schema
from reports.content.schema import report_schema
from reports.site import site_schema


def files() -> dict[str, str]:
    """Return the text of each file that is made from models, by its name."""
    made = {"report": report_schema(), "comparison": comparison_schema(), "site": site_schema()}
    return {f"{name}.schema.json": _text(schema) for name, schema in made.items()}


def _text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
