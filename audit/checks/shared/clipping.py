"""What clipping must look like, in recorded norms and under the active probe.

Used by the check "sensitivity" of both units: one record's gradient and one client's update are
clipped by the same rule.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from audit.probe.probe_tally import (
    ADDED,
    ADDED_PRECISELY,
    ALONE,
    ELSEWHERE,
    REPEAT,
    REPLACED,
    UNEQUAL,
    UNMOVED,
)
from audit.probe.update_probing import CLIENT_KINDS
from audit.reading.evidence import ProbeResults
from audit.untrusted.archives import Floats

TOLERANCE = 1e-4
# What float64 may leave of that: one rounding of it is a billion times smaller than float32's.
PRECISELY = 1e-6
# A record is left out whose gradient is so many times C long: the factor that would clip it is
# below the least normal float32, and rounded up it could leave more than C.
LEFT_OUT = (1.0 - 1e-6) * 2.0**126
# What float32's rounding can make of it where float64 shows that it is nothing else: behind a group
# norm, which divides a constant image by next to nothing, 0.0012 were seen.
ROUNDING = 1e-2
# A round's mean update is published with 16 significant bits, which leave an error of 2^-16 of it.
PUBLISHED = 1e-3


def norm_faults(raw: Floats, clipped: Floats, clip: float) -> list[str]:
    """What is wrong with norms before and after clipping to C; empty if nothing is.

    The clipped norm is the lesser of the raw norm and C, and 0 where the raw one is not finite;
    where it is finite and next to infinite, the record may count 0 as well.
    """
    if not np.isfinite(clipped).all() or np.any(clipped < 0.0):
        return ["a clipped norm is not a finite number from 0"]
    faults = []
    if np.any(clipped > clip * (1.0 + TOLERANCE)):
        faults.append("a clipped norm exceeds C")
    expected = np.where(np.isfinite(raw), np.minimum(raw, clip), 0.0)
    off = np.abs(clipped - expected) > clip * TOLERANCE
    if np.any(off & ~((clipped == 0.0) & (raw >= clip * LEFT_OUT))):
        faults.append("a clipped norm is not the lesser of its raw norm and C")
    return faults


def judge_probe(
    probe: ProbeResults, clip: float, one: str, reasons: list[str]
) -> dict[str, object]:
    """Judge the active probe: nobody moves the sum by more than C, whatever they bring.

    Replacing takes one contribution out and puts another one in, and may move the sum by 2C. Who
    takes no part moves nothing, and whoever does counts for itself, whatever the rest is. Other
    parameters must give another sum, or the step is taken at parameters that are not the model's.

    Args:
        probe: its raw results.
        clip: C of the ledger.
        one: whose data were added, "record" or "client".
        reasons: gets a sentence for everything that is wrong.

    Returns:
        Public numbers: everything here was measured on synthetic data.
    """
    if abs(probe.clipping_norm / clip - 1.0) > 1e-9:
        reasons.append("the probed step clips at another norm than the ledger's C")
    excused = _known_as_rounding(probe, clip)
    unmoved: list[tuple[str, bool]] = []
    for row, (name, kind) in enumerate(zip(probe.names, probe.kinds, strict=True)):
        difference = float(probe.difference_norm[row])
        norms = (float(probe.norm_with[row]), float(probe.norm_without[row]))
        published = kind in CLIENT_KINDS or (one == "client" and kind == REPLACED)
        limit = clip * (1.0 + (PUBLISHED if published else TOLERANCE))
        if not np.isfinite([difference, *norms]).all():
            reasons.append(f"probe, {name}: the clipped sum is not finite")
        elif kind == ELSEWHERE:
            unmoved.append((name, difference == 0.0 and max(norms) > 0.0))
        elif kind in (ADDED, UNEQUAL, ADDED_PRECISELY):
            allowed = PRECISELY if kind == ADDED_PRECISELY else excused.get(name, ALONE)
            if difference > clip * allowed:
                reasons.append(
                    f"probe, {name}: beside others one {one} moves the sum by other "
                    f"{difference / clip:.4g} C than alone"
                    f"{', in float64' if kind == ADDED_PRECISELY else ''}"
                )
        elif kind in UNMOVED and kind != REPEAT and difference > clip * TOLERANCE:
            reasons.append(
                f"probe, {name}: one {one} that takes no part moves the sum by "
                f"{difference / clip:.4g} C"
            )
        elif difference > limit * (2.0 if kind == REPLACED else 1.0):
            reasons.append(f"probe, {name}: one {one} moves the sum by {difference / clip:.4g} C")
        # Summing in another order may change the last bits only.
        if kind == REPEAT and difference > clip * TOLERANCE:
            reasons.append(f"probe, {name}: the same batch gives different sums")
        if kind != REPLACED and int(probe.batch_size[row]) == 0 and norms[1] != 0.0:
            reasons.append(f"probe, {name}: an empty batch does not give the zero vector")
        slots = int(probe.batch_size[row]) + 1
        if kind != ELSEWHERE and norms[0] > slots * limit:
            reasons.append(f"probe, {name}: the sum is longer than its {one}s allow")
    if unmoved and all(same for _, same in unmoved):
        names = " and ".join(name for name, _ in unmoved)
        reasons.append(f"probe, {names}: the step does not depend on the model's parameters")
    replaced = np.asarray([kind == REPLACED for kind in probe.kinds], dtype=np.bool_)
    parts = (REPLACED, ADDED, UNEQUAL, ADDED_PRECISELY, ELSEWHERE)
    added = np.asarray([kind not in parts for kind in probe.kinds], dtype=np.bool_)

    def largest(chosen: NDArray[np.bool_]) -> float:
        norms = probe.difference_norm[chosen & np.isfinite(probe.difference_norm)]
        return float(norms.max(initial=0.0)) / clip

    return {
        "pairs": len(probe.names),
        "largest_difference_over_clipping_norm": largest(added),
        "largest_difference_of_a_replaced_one": largest(replaced) if replaced.any() else None,
        "tolerance": TOLERANCE,
        "pairs_judged_in_float64": len(excused),
    }


def _known_as_rounding(probe: ProbeResults, clip: float) -> dict[str, float]:
    """Limits, as shares of C, of the pairs that are the same in float64, by name.

    Nothing is excused that has no second opinion, or one that is not far below the limit of all.
    """
    return {
        name: ROUNDING
        for row, (name, kind) in enumerate(zip(probe.names, probe.kinds, strict=True))
        if kind == ADDED_PRECISELY and float(probe.difference_norm[row]) <= clip * PRECISELY
    }
