"""The active probe: pokes the real private step with synthetic neighbouring batches.

Records of norms can look right while the step clips the wrong thing. So the auditor asks for the
step itself, through the protocol `StepProbe` that the engine implements (`UpdateProbe` at client
level), and measures how far one record moves its clipped sum. Only synthetic records are used, so
the results are free to print. They are written to the evidence and can be judged later where the
engine is not installed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from audit.errors import ProbeError, RunDirectoryError
from audit.probe.probe_tally import REPEAT, REPLACED, ProbeTally
from audit.probe.update_probing import UpdateProbe, run_update_probe
from audit.reading.files import write_atomically

BATCH_SIZES = (0, 1, 7, 31)
KINDS = (
    "ordinary",
    "scaled by 1e3",
    "scaled by 1e30",
    "plus infinity",
    "not a number",
    "minus 1e38",
    "all zero",
    "duplicate",
    "opposite label",
)
# What stands in the middle of a batch, and what it is replaced by.
REPLACEMENTS = (
    ("ordinary", "opposite label"),
    ("scaled by 1e3", "scaled by -1e3"),
    ("scaled by 1e30", "ordinary"),
    ("plus infinity", "scaled by 1e3"),
    ("not a number", "minus 1e38"),
)
_SEED = 20200229


class StepProbe(Protocol):
    """One private local step before its noise, as the engine really computes it.

    Attributes:
        clipping_norm: C > 0.
        parameters: d, length of the sum.
        input_shape: shape of one record's input.
        classes: number of labels, from 1.
    """

    clipping_norm: float
    parameters: int
    input_shape: tuple[int, ...]
    classes: int

    def clipped_sum(
        self, inputs: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Clip every record's gradient and sum them, before noise.

        Args:
            inputs: float32 [b, *input_shape], any values; b may be 0.
            labels: int64 [b], each from 0 to classes − 1.

        Returns:
            float64 [d]; the zero vector for an empty batch.
        """
        ...


Probe = StepProbe | UpdateProbe


def run_probe(probe: Probe) -> Mapping[str, NDArray[Any]]:
    """Call the step with, without and with another adversarial record (or update).

    Args:
        probe: the step, or the sum of updates of a run at client level.

    Returns:
        Arrays as they are stored in evidence/probe.npz, one row a neighbouring pair: names, kind,
        batch_size (besides the record that is added or replaced), difference_norm, norm_with,
        norm_without, clipping_norm, and the sums themselves where they are small enough to keep.

    Raises:
        ProbeError: the step raised an exception or broke the protocol.
    """
    if isinstance(probe, UpdateProbe):
        return run_update_probe(probe)
    rows = len(BATCH_SIZES) * (len(KINDS) + len(REPLACEMENTS) + 1)
    tally = ProbeTally(float(probe.clipping_norm), probe.parameters, rows)
    for size in BATCH_SIZES:
        inputs, labels = _batch(probe, size)
        without = _call(probe, inputs[:size], labels[:size])
        for kind in (REPEAT, *KINDS):
            if kind == REPEAT:
                batch, targets = inputs[:size], labels[:size]
            else:
                batch, targets = _neighbour(probe, inputs, labels, size, kind)
            name = f"{kind}, batch of {size}"
            tally.add(name, kind, size, _call(probe, batch, targets), without)
        for before, after in REPLACEMENTS:
            pair = [
                _call(probe, *_neighbour(probe, inputs, labels, size, kind))
                for kind in (after, before)
            ]
            name = f"{before} replaced by {after}, beside a batch of {size}"
            tally.add(name, REPLACED, size, *pair)
    return tally.arrays()


def record_probe(run_dir: Path, probe: Probe) -> Path:
    """Run the probe and write its raw results to evidence/probe.npz (atomically, mode 0600).

    Args:
        run_dir: run directory, whose evidence/ must exist.
        probe: the step, or the sum of updates.

    Returns:
        Path of the file.

    Raises:
        ProbeError: the step raised an exception or broke the protocol.
        RunDirectoryError: there is no evidence/ to write into.
    """
    folder = run_dir / "evidence"
    if folder.is_symlink() or not folder.is_dir():
        raise RunDirectoryError(f"{folder}: there is no such folder to write the probe into")
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **run_probe(probe))
    path = folder / "probe.npz"
    write_atomically(path, buffer.getvalue(), 0o600)
    return path


def _batch(probe: StepProbe, size: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """At least one ordinary synthetic record, the same on every machine."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED, size]))
    count = max(1, size)
    inputs = generator.standard_normal((count, *probe.input_shape)).astype(np.float32)
    labels = generator.integers(0, probe.classes, count).astype(np.int64)
    return inputs, labels


def _neighbour(
    probe: StepProbe,
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64],
    size: int,
    kind: str,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The batch with one record of this kind put into its middle."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED + 1, size]))
    fresh = generator.standard_normal(probe.input_shape).astype(np.float32)
    label = int(generator.integers(0, probe.classes))
    if kind == "scaled by 1e3":
        record = fresh * np.float32(1e3)
    elif kind == "scaled by -1e3":
        record = fresh * np.float32(-1e3)
    elif kind == "scaled by 1e30":
        record = fresh * np.float32(1e30)
    elif kind == "plus infinity":
        record = np.full_like(fresh, np.inf)
    elif kind == "not a number":
        record = np.full_like(fresh, np.nan)
    elif kind == "minus 1e38":
        record = np.full_like(fresh, -1e38)
    elif kind == "all zero":
        record = np.zeros_like(fresh)
    elif kind in ("duplicate", "opposite label"):
        record, label = inputs[0], int(labels[0])
        if kind == "opposite label":
            label = (label + max(1, probe.classes // 2)) % probe.classes
    else:
        record = fresh
    middle = size // 2
    batch = np.concatenate([inputs[:middle], record[None], inputs[middle:size]])
    targets = np.concatenate([labels[:middle], [label], labels[middle:size]])
    return np.ascontiguousarray(batch), targets.astype(np.int64)


def _call(
    probe: StepProbe, inputs: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    try:
        # The step gets copies, so that it cannot alter the batch of the other side of a pair.
        total = np.asarray(probe.clipped_sum(inputs.copy(), labels.copy()), dtype=np.float64)
    except Exception as error:
        raise ProbeError(
            f"the probed step failed on a batch of {len(labels)}: {type(error).__name__}"
        ) from error
    if total.shape != (probe.parameters,):
        raise ProbeError(f"the probed step returned shape {total.shape}, not ({probe.parameters},)")
    return total.copy()
