"""Prints how long each folder of tests takes: `python -m tests.times RESULTS.xml`.

The file is pytest's own: `pytest -n 2 --junitxml=RESULTS.xml`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from xml.etree import ElementTree


def table(path: str) -> str:
    """The seconds of every folder's tests as a Markdown table, the longest first."""
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for case in ElementTree.parse(path).iter("testcase"):
        parts = case.get("classname", "").split(".")
        folder = "/".join(part for part in parts[:-1] if part)
        seconds[folder] += float(case.get("time", "0"))
        counts[folder] += 1
    lines = ["| folder | tests | seconds |", "|---|---|---|"]
    for folder in sorted(seconds, key=seconds.__getitem__, reverse=True):
        lines.append(f"| `{folder}` | {counts[folder]:,} | {seconds[folder]:.0f} |")
    total = f"{sum(counts.values()):,} | {sum(seconds.values()):.0f}"
    return "\n".join([*lines, f"| together | {total} |"])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tests.times RESULTS.xml")
    print(table(sys.argv[1]))
