"""Alarms that cluster: audits that did not pass, of cells which share their noise.

In reproducible mode all noise follows from the run's seed, so that cells of one seed have the same
draws, however their settings differ. A check that errs by chance errs in several of them at once:
these alarms are one, and more seeds are what tells chance from a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def shared_noise(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Which cells that did not pass share their noise, in one line; None where none do.

    Args:
        rows: The results of a sweep.
    """
    from reports import run_rows

    groups: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["randomness"] == "reproducible" and row["unit"] != "none":
            # Results of an earlier version lack the run's seed; that of the sweep mostly is it.
            seed = row.get(run_rows.RUN_SEED)
            groups.setdefault(row[run_rows.SEED] if seed is None else seed, []).append(row)
    found = []
    for seed, cells in groups.items():
        alarms = [str(row[run_rows.CELL]) for row in cells if row["audit"] not in run_rows.PASSED]
        if len(alarms) > 1:
            of = "" if seed is None else f" of seed {seed}"
            found.append(f"{len(alarms)} of {len(cells)} cells{of} ({', '.join(alarms)})")
    if not found:
        return None
    return (
        f"{'; '.join(found)} did not pass and share their noise: a chance alarm then occurs in all "
        "of them at once, so count each seed once"
    )
