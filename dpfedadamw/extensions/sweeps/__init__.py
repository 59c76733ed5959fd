"""Sweeps: many runs of one spec, each a process of its own, started, finished and not repeated.

`folder` knows which cells of a sweep are done, `runner` does the rest. The caller reads what a
cell's run reports: this package knows neither the auditor nor the reports.
"""

from __future__ import annotations

GROUPS = {
    "sweep": ("Run every combination of a spec's matrix: dpfedadamw sweep SPEC."),
}
