"""What several runs on the same data may have revealed together: sums, which hold for any runs.

Basic composition (Dwork & Roth 2014, Theorem 3.16): mechanisms that are (ε_i, δ_i)-private are
together (Σ ε_i, Σ δ_i)-private for the same unit and adjacency, also where each was chosen by what
the ones before it released. A tighter number needs the runs' events; `dpfedadamw budget` has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from reports.extensions.site import Spent
from reports.extensions.site.reading import SeenRun


def spent(seen: Sequence[SeenRun]) -> tuple[Spent, ...]:
    """Return what was spent of each data set, for each unit and adjacency apart.

    Args:
        seen: All runs, with the letters of their data sets.
    """
    planted = [one for one in seen if one.planted]
    seen = [one for one in seen if not one.planted]
    private = [one for one in seen if one.finished and one.row.unit != "none"]
    kinds = dict.fromkeys((one.row.data, one.row.unit, one.row.adjacency) for one in private)
    found = []
    for letter, unit, adjacency in sorted(kinds):
        on_data = [one for one in seen if one.row.data == letter]
        added = [
            one.row
            for one in private
            if (one.row.data, one.row.unit, one.row.adjacency) == (letter, unit, adjacency)
        ]
        found.append(
            Spent(
                data=letter,
                dataset=", ".join(sorted({row.dataset for row in added})),
                unit=unit,
                adjacency=adjacency,
                runs=len(added),
                epsilon=_sum(row.epsilon for row in added),
                epsilon_server=_sum(row.epsilon_server for row in added),
                delta=_sum(row.delta for row in added),
                without_pass=sum(row.audit != "PASS" for row in added),
                without_privacy=sum(one.finished and one.row.unit == "none" for one in on_data),
                unfinished=sum(not one.finished for one in on_data),
                canaries=sum(one.row.data == letter for one in planted),
            )
        )
    return tuple(found)


def _sum(values: Iterable[float | None]) -> float | None:
    """Add up; None where one is not known."""
    known = list(values)
    return None if None in known else math.fsum(value for value in known if value is not None)
