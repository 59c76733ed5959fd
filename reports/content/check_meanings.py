"""What each of the auditor's checks would mean if it failed, in one sentence for a reader.

The sentences stand with the checks themselves, in the package `audit`, which reports do not import;
and an auditor's file could word them as it liked, also with a private number. So they are copied
into ``check_meanings.json`` by `tests.reports.check_meanings`, and a test holds the copy to them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources


@functools.cache
def of_unit(unit: str) -> Mapping[str, str]:
    """Return the sentences by the name of the check.

    Args:
        unit: "record", "person", "client", "none", or "loop" for a recorded loop.
    """
    text = resources.files("reports.content").joinpath("check_meanings.json").read_text("utf-8")
    meanings: dict[str, dict[str, str]] = json.loads(text)
    return meanings[unit]
