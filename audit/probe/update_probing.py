"""The active probe at client level: pokes the real sum of clipped updates with synthetic clients.

`probing` does the same to a step on records. Here one neighbour more is one client's whole update,
so the updates themselves are made up: ordinary ones, huge ones, ones that are no numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from audit.errors import ProbeError
from audit.probe.probe_tally import REPEAT, ProbeTally

CLIENT_COUNTS = (0, 1, 7, 31)
NONFINITE_KINDS = ("plus infinity", "not a number", "one coordinate infinite")
UPDATE_KINDS = (
    "ordinary",
    "long in one half",
    "scaled by 1e3",
    "scaled by 1e30",
    *NONFINITE_KINDS,
    "minus 1e38",
    "all zero",
    "duplicate",
    "opposite update",
)
_SEED = 20210731
_MOST_COORDINATES = 1 << 27


@runtime_checkable
class UpdateProbe(Protocol):
    """The sum of clipped client updates of a round before its noise, as the engine computes it.

    Attributes:
        unit: "client".
        clipping_norm: C > 0, of one client's whole update.
        parameters: d, length of an update.
    """

    unit: str
    clipping_norm: float
    parameters: int

    def clipped_sum_of_updates(self, updates: NDArray[np.float32]) -> NDArray[np.float64]:
        """Clip every update over the whole vector and sum them, before noise.

        Args:
            updates: float32 [n, d], any values; n may be 0.

        Returns:
            float64 [d]; the zero vector for n = 0.
        """
        ...


def run_update_probe(probe: UpdateProbe) -> Mapping[str, NDArray[Any]]:
    """Call the sum with and without one adversarial update, in rounds of several sizes.

    Args:
        probe: the sum of updates.

    Returns:
        The same arrays as a probe on records leaves; batch_size counts updates.

    Raises:
        ProbeError: the sum raised an exception or broke the protocol.
    """
    counts = [
        count
        for count in CLIENT_COUNTS
        if count <= 1 or (count + 1) * probe.parameters <= _MOST_COORDINATES
    ]
    rows = len(counts) * (len(UPDATE_KINDS) + 1)
    tally = ProbeTally(float(probe.clipping_norm), probe.parameters, rows)
    for count in counts:
        updates = _updates(probe, count)
        without = _call(probe, updates[:count])
        for kind in (REPEAT, *UPDATE_KINDS):
            if kind == REPEAT:
                cohort = updates[:count]
            else:
                middle = count // 2
                extra = _update(probe, updates, kind, count)[None]
                cohort = np.concatenate([updates[:middle], extra, updates[middle:count]])
            name = f"{kind}, round of {count}"
            tally.add(name, kind, count, _call(probe, cohort), without)
    return tally.arrays()


def _updates(probe: UpdateProbe, count: int) -> NDArray[np.float32]:
    """At least one ordinary update, the same on every machine: norms from C/4 to 4C."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED, count]))
    rows = generator.standard_normal((max(1, count), probe.parameters))
    norms = probe.clipping_norm * 4.0 ** generator.uniform(-1.0, 1.0, max(1, count))
    rows *= (norms / np.linalg.norm(rows, axis=1))[:, None]
    return rows.astype(np.float32)


def _update(
    probe: UpdateProbe, updates: NDArray[np.float32], kind: str, count: int
) -> NDArray[np.float32]:
    """One more client's update of this kind."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED + 1, count]))
    fresh = generator.standard_normal(probe.parameters)
    fresh *= 0.9 * probe.clipping_norm / np.linalg.norm(fresh)
    # Clipping tensor by tensor lets through a multiple of C as soon as all tensors are long.
    update = fresh.astype(np.float32)
    if kind == "long in one half":
        update[: probe.parameters // 2] *= np.float32(50.0)
    elif kind == "scaled by 1e3":
        update *= np.float32(1e3)
    elif kind == "scaled by 1e30":
        update = (fresh / np.abs(fresh).max() * 1e30).astype(np.float32)
    elif kind == "plus infinity":
        update = np.full_like(update, np.inf)
    elif kind == "not a number":
        update = np.full_like(update, np.nan)
    elif kind == "one coordinate infinite":
        update[probe.parameters // 2] = np.inf
    elif kind == "minus 1e38":
        update = np.full_like(update, -1e38)
    elif kind == "all zero":
        update = np.zeros_like(update)
    elif kind in ("duplicate", "opposite update"):
        update = updates[0] if kind == "duplicate" else -updates[0]
    return update


def _call(probe: UpdateProbe, updates: NDArray[np.float32]) -> NDArray[np.float64]:
    try:
        # The sum gets a copy, so that it cannot alter the updates of the other side of a pair.
        total = np.asarray(probe.clipped_sum_of_updates(updates.copy()), dtype=np.float64)
    except Exception as error:
        raise ProbeError(
            f"the probed sum failed on a round of {len(updates)}: {type(error).__name__}"
        ) from error
    if total.shape != (probe.parameters,):
        raise ProbeError(f"the probed sum returned shape {total.shape}, not ({probe.parameters},)")
    return total.copy()
