"""Copies what each check says of its failure to where reports read it.

python -m tests.reports.check_meanings
"""

from __future__ import annotations

import json
from pathlib import Path

from audit.checks import checks_of
from audit.reading.units import CLIENT, LOOP, NONE, PERSON, RECORD

PATH = Path(__file__).parents[2] / "reports/content/check_meanings.json"


def text() -> str:
    """Return the file as it should be."""
    meanings = {
        unit.name: {check.name: check.meaning for check in checks_of(unit)}
        for unit in (RECORD, PERSON, CLIENT, NONE, LOOP)
    }
    return json.dumps(meanings, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
