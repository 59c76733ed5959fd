"""Sweeps: many runs of one spec, each a process of its own, started, finished and not repeated.

`folder` knows what of a sweep is done, `runner` does the rest. What a cell's run says of itself is
read by whoever calls this package, which knows neither the auditor nor the reports.
"""

from __future__ import annotations

GROUPS = {
    "sweep": ("Run every combination of a spec's matrix: dpfedadamw sweep SPEC."),
}
