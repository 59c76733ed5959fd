"""Evidence of a training loop that is not the engine's, as a recorder wrote it.

`units` reads the archives of such runs through this module. docs/evidence-format.md is the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.reading.evidence import Layout, RoundEvidence
from audit.untrusted.archives import Arrays, Floats, Integers, floats, integers
from audit.untrusted.fields import FieldError

SETTINGS = (
    "learning_rate", "momentum", "dampening", "weight_decay", "nesterov", "beta1", "beta2", "eps",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LoopEvidence(RoundEvidence):
    """One file of a loop: K steps of its one client, m sampled coordinates, G parameter groups.

    `divisor` is 1 and `clean_sum_squares` that of the sum itself; `clipped_norms` is what clipping
    makes of the norms before it, for a recorder sees norms once.

    Attributes:
        attachment: which stretch of the loop the steps are of; parameters may change between two.
        rows: records of every step's batch, one after another; None where they are not known.
        row_offsets: [K+1] where each batch begins in them.
        measured_divisor: [K] what the noised sum was divided by; 0 where it does not show.
        clean: [K, m] the sum before noise, as the loop has it, at the sampled coordinates.
        expected: [K, m] the same as the recorder clipped and summed it.
        released: [K, m] what the optimiser was handed there.
        before: [K, m] parameters before the update there.
        after: [K, m] parameters after it.
        before_fingerprint: [K] checksums of all parameters before the update.
        after_fingerprint: [K] the same after it.
        settings: [K, G, 8] the update's settings, as `SETTINGS` names them.
        group: [m] parameter group of each sampled coordinate.
        unused: [K] batches put through the model of which no step was made.
        skipped: [K] batches passed over.
    """

    attachment: int
    rows: Integers | None
    row_offsets: Integers
    measured_divisor: Floats
    clean: Floats
    expected: Floats
    released: Floats
    before: Floats
    after: Floats
    before_fingerprint: Integers
    after_fingerprint: Integers
    settings: Floats
    group: Integers
    unused: Integers
    skipped: Integers


@dataclass(frozen=True)
class LoopEnd:
    """What was seen after the last step.

    Attributes:
        fingerprint: checksum of all parameters; None where it was not taken.
        unused: batches put through the model since the last step.
        skipped: batches passed over since.
    """

    fingerprint: int | None
    unused: int
    skipped: int


def read_loop_end(arrays: Arrays) -> LoopEnd:
    """What was seen after the last step."""
    if "fingerprint" not in arrays or arrays["fingerprint"].dtype.kind not in "iu":
        raise FieldError("fingerprint is missing or not a whole number")
    taken = int(arrays["fingerprint"])
    return LoopEnd(
        taken if taken >= 0 else None,
        int(integers(arrays, "unused", ())),
        int(integers(arrays, "skipped", ())),
    )


def read_round(arrays: Arrays, layout: Layout) -> LoopEvidence:
    """One file of a loop; shapes must agree with each other and the layout."""
    clients = integers(arrays, "clients", (1,))
    sizes = integers(arrays, "batch_size", (1, None))
    steps, blocks, sampled = sizes.shape[1], len(layout.sizes), len(layout.sample_coordinates)
    if steps == 0:
        raise FieldError("batch_size is empty")
    offsets = integers(arrays, "record_offsets", (steps + 1,))
    raw = floats(arrays, "raw_norms", (None,), finite=False)
    if offsets[0] != 0 or offsets[-1] != len(raw) or np.any(np.diff(offsets) != sizes[0]):
        raise FieldError("record_offsets do not cover the norms")
    rows, row_offsets = _rows(arrays, steps)
    settings = floats(arrays, "settings", (steps, None, len(SETTINGS)))
    group = integers(arrays, "group", (sampled,))
    if group.max(initial=0) >= settings.shape[1]:
        raise FieldError("group names a parameter group that settings do not have")

    def at_sampled(name: str, finite: bool = True) -> Floats:
        return floats(arrays, name, (steps, sampled), finite=finite)

    infinite = ~np.isfinite(raw)
    found: dict[str, Any] = {
        name: integers(arrays, name, (steps,))
        for name in ("before_fingerprint", "after_fingerprint", "unused", "skipped")
    }
    return LoopEvidence(
        clients=clients,
        attempt=int(integers(arrays, "attempt", ())),
        batch_size=sizes,
        inclusions=np.zeros(0, np.int64),
        record_offsets=offsets,
        raw_norms=raw,
        clipped_norms=raw,
        nonfinite=np.add.reduceat(np.append(infinite, False).astype(np.int64), offsets[:-1])[None]
        * (sizes > 0),
        divisor=np.ones((1, steps)),
        noise_sum_squares=floats(arrays, "noise_sum_squares", (1, steps, blocks)),
        noise_sample=floats(arrays, "noise_sample", (1, steps, sampled)),
        clean_sum_squares=floats(arrays, "clean_sum_squares", (1, steps, blocks)),
        second_moment=None,
        upload_sha256=np.zeros((1, 32), np.int64),
        noise_silent=integers(arrays, "noise_silent", (1, steps)),
        noise_largest=floats(arrays, "noise_largest", (1, steps)),
        attachment=int(integers(arrays, "attachment", ())),
        rows=rows,
        row_offsets=row_offsets,
        measured_divisor=floats(arrays, "divisor", (1, steps))[0],
        clean=at_sampled("clean_sample"),
        expected=at_sampled("expected_sample", finite=False),
        released=at_sampled("released_sample"),
        before=at_sampled("before_sample"),
        after=at_sampled("after_sample"),
        settings=settings,
        group=group,
        **found,
    )


def _rows(arrays: Arrays, steps: int) -> tuple[Integers | None, Integers]:
    if "rows" not in arrays:
        return None, np.zeros(steps + 1, np.int64)
    rows = integers(arrays, "rows", (None,))
    offsets = integers(arrays, "row_offsets", (steps + 1,))
    if offsets[0] != 0 or offsets[-1] != len(rows) or np.any(np.diff(offsets) < 0):
        raise FieldError("row_offsets do not cover the rows")
    return rows, offsets


def private_numbers(evidence: LoopEvidence) -> Mapping[str, Floats]:
    """Arrays of a file that no other file may repeat."""
    names = ("raw_norms", "noise_sum_squares", "noise_sample", "clean_sum_squares")
    return {**{name: getattr(evidence, name) for name in names}, "clean_sample": evidence.clean}
