"""The schema of comparison.json; `reports.schema` writes it to its file."""

from __future__ import annotations

from typing import Any

from reports.content.parts import FOR_THE_PUBLIC
from reports.extensions.comparison.data import FORMAT, ComparisonData
from reports.schema import closed, definitions, nested
from reports.source import PUBLIC_FILES


def schema() -> dict[str, Any]:
    """Return the schema of comparison.json."""
    found = definitions([ComparisonData])
    whole = found.pop("ComparisonData")
    run = "groups[].entries[].runs[]"
    # Comparisons of earlier versions have the spec's.
    public: dict[str, dict[str, Any]] = {
        f"{run}.privacy[].key": {"not": {"const": "server"}},
        f"{run}.hashes": {"propertyNames": {"enum": ["spec.yaml", *PUBLIC_FILES]}},
    }
    return closed(
        "comparison",
        FORMAT,
        "Privacy report on several runs",
        whole["description"],
        whole["properties"],
        **{"$defs": found, "allOf": [{"if": nested(FOR_THE_PUBLIC), "then": nested(public)}]},
    )
