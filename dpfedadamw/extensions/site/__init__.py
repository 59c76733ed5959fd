"""The command that writes a web page over many runs; `reports.extensions.site` makes it."""

from __future__ import annotations

COMMANDS = {
    "site": (
        "Write a static web page over a folder of runs: a table that sorts and filters, and a "
        "figure."
    ),
}
