"""The schema of site.json; `reports.schema` writes it to its file."""

from __future__ import annotations

from typing import Any

from reports.extensions.site import FORMAT, SiteData
from reports.schema import closed, definitions


def schema() -> dict[str, Any]:
    """Return the schema of site.json."""
    found = definitions([SiteData])
    whole = found.pop("SiteData")
    return closed(
        "site",
        FORMAT,
        "Runs of one folder",
        whole["description"],
        whole["properties"],
        **{"$defs": found},
    )
