"""The active probe: pokes the real private step with synthetic neighbouring data.

Records of norms can look right while the step clips the wrong thing, or while something before it
lets one record change how another is read. So the auditor asks for the step itself, through the
protocol `StepProbe` that the engine implements (`UpdateProbe` at client level), and measures how
far one record moves its answer. The step is asked for as a whole, from the rows of the clients to
the answer: what divides the rows among clients, looks a batch up, augments and collates it lies in
between. Only synthetic records are used, so the results are free to print. They are written to the
evidence and can be judged later where the engine is not installed.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from audit.errors import ProbeError, RunDirectoryError
from audit.probe.probe_tally import (
    ABSENT,
    ADDED,
    ELSEWHERE,
    NOT_DRAWN,
    REPEAT,
    REPLACED,
    Numbers,
    ProbeTally,
)
from audit.probe.update_probing import UpdateProbe, run_update_probe
from audit.reading.files import write_atomically

BATCH_SIZE, LARGE_BATCH = 3, 7
# Each is added to a batch, and replaced by the one that follows it.
KINDS = (
    "all zero",
    "ordinary",
    "opposite label",
    "scaled by 1e3",
    "scaled by -1e3",
    "scaled by 1e30",
    "plus infinity",
    "not a number",
    "minus 1e38",
    "duplicate",
)
# What is added to a large batch, leads one, or lies beside it.
BESIDE = ("ordinary", "scaled by 1e3")
# Of records that are stored as grey levels.
LEVELS = ("all zero", "ordinary", "full scale")
PATH_KINDS = (ADDED, NOT_DRAWN, ABSENT, ELSEWHERE)
_SEED = 20200229
# Records of each client that no batch draws: what is computed over all of a client's records, or
# over all clients', would carry them into the step.
_IDLE, _OTHERS = 3, 2


class StepProbe(Protocol):
    """One private local step, as the engine really computes it, without its noise.

    Attributes:
        clipping_norm: C > 0.
        parameters: d, length of the sum.
        input_shape: shape of one record as it is stored.
        classes: number of labels, from 1.
        grey_levels: whether records are stored as whole numbers from 0 to 255.
    """

    clipping_norm: float
    parameters: int
    input_shape: tuple[int, ...]
    classes: int
    grey_levels: bool

    def sum_of_step(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
        elsewhere: bool = False,
    ) -> Numbers:
        """Divide records among clients, let client 0 take a step, and tell its answer.

        Args:
            inputs: float32 [n, *input_shape], any values; uint8 where `grey_levels`.
            labels: int64 [n], each from 0 to classes - 1.
            clients: int64 [n], whose each record is, from 0.
            drawn: int64 [b], which of client 0's records the step draws, by their place among them.
            elsewhere: whether the gradients are taken at other parameters than else.

        Returns:
            float64 or float32 [d]: the answer to the step's query without noise, times the fixed
            public number that it was divided by, which is the sum of the clipped gradients.
        """
        ...


Probe = StepProbe | UpdateProbe


@dataclass(frozen=True)
class _Step:
    """A step that is asked for: the batch, and what lies beside it.

    Attributes:
        inputs: the batch, [b, ...].
        labels: its labels, [b].
        idle: records of the same client that are not drawn, as a pair of inputs and labels.
        others: records of other clients, as a pair of inputs and labels.
    """

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    idle: tuple[NDArray[Any], NDArray[np.int64]]
    others: tuple[NDArray[Any], NDArray[np.int64]]

    def of(self, probe: StepProbe, elsewhere: bool = False) -> Numbers:
        """The probe's answer, [d]."""
        size, others = len(self.labels), len(self.others[1])
        labels = np.concatenate([self.labels, self.idle[1], self.others[1]])
        # Two further clients, of at least as many records each as may matter to anybody.
        clients = np.concatenate([np.zeros(size + len(self.idle[1]), np.int64), _turns(others)])
        inputs = np.concatenate([self.inputs, self.idle[0], self.others[0]])
        return _call(probe, inputs, labels, clients, np.arange(size), elsewhere)

    def empty(self) -> _Step:
        """The step that draws nobody."""
        return replace(self, inputs=self.inputs[:0], labels=self.labels[:0])

    def with_last(self, record: NDArray[Any], label: int) -> _Step:
        """The step whose batch has one record more."""
        return replace(
            self,
            inputs=np.concatenate([self.inputs, record[None]]),
            labels=np.concatenate([self.labels, [label]]),
        )

    def with_first(self, record: NDArray[Any], label: int) -> _Step:
        """The step whose batch begins with another record."""
        return replace(
            self,
            inputs=np.concatenate([record[None], self.inputs[1:]]),
            labels=np.concatenate([[label], self.labels[1:]]),
        )

    def beside(self, kind: str, record: NDArray[Any], label: int) -> _Step:
        """The step of a client that has one record more which is not drawn, or whose peers have."""
        held = self.idle if kind == NOT_DRAWN else self.others
        more = (np.concatenate([held[0], record[None]]), np.concatenate([held[1], [label]]))
        return replace(self, idle=more) if kind == NOT_DRAWN else replace(self, others=more)


def _turns(records: int) -> NDArray[np.int64]:
    """Clients 1, 2, 1, 2, … of so many records."""
    return 1 + np.arange(records, dtype=np.int64) % _OTHERS


def run_probe(probe: Probe) -> Mapping[str, NDArray[Any]]:
    """Ask for the step with, without and with another adversarial record (or update).

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
    tally = ProbeTally(float(probe.clipping_norm), probe.parameters, _rows(probe))
    # What one step leaves behind for the next shows when the first is asked for again at the end.
    large = _ordinary(probe, LARGE_BATCH)
    first = large.of(probe)
    _beside(probe, tally, large, first)
    if probe.grey_levels:
        _grey_levels(probe, tally)
    _each_kind(probe, tally)
    name = f"{REPEAT}, batch of {LARGE_BATCH}"
    tally.add(name, REPEAT, LARGE_BATCH, large.of(probe), first)
    return tally.arrays()


def _rows(probe: StepProbe) -> int:
    """How many pairs there will be."""
    each, levels = 5 * len(KINDS) - 2, (2 * len(LEVELS) - 1) * probe.grey_levels
    return each + 2 + 5 * len(BESIDE) + levels


def _each_kind(probe: StepProbe, tally: ProbeTally) -> None:
    """Each kind joins a batch, or makes one by itself, and is replaced by the next kind."""
    step = _ordinary(probe, BATCH_SIZE)
    steps = (step, step.empty())
    without, before = [one.of(probe) for one in steps], None
    for kind in KINDS:
        record = _record(probe, step, kind)
        answers = [one.with_last(*record).of(probe) for one in steps]
        for place, size in enumerate((BATCH_SIZE, 0)):
            name = f"{kind}, batch of {size}"
            tally.add(name, kind, size, answers[place], without[place])
            if before is not None:
                name = f"{before[0]} replaced by {kind}, beside a batch of {size}"
                tally.add(name, REPLACED, size, answers[place], before[1][place])
        _added(tally, kind, BATCH_SIZE, answers[0], without[0], answers[1])
        before = (kind, answers)


def _added(
    tally: ProbeTally,
    kind: str,
    size: int,
    together: Numbers,
    others: Numbers,
    alone: Numbers,
) -> None:
    """Compare what a record adds to others with what it is alone."""
    name = f"{kind}, {ADDED}, batch of {size}"
    tally.add_parts(name, ADDED, size, together, (others, alone))


def _beside(probe: StepProbe, tally: ProbeTally, step: _Step, without: Numbers) -> None:
    """A large batch at other parameters, with one more, led by another, with others beside it."""
    size = len(step.labels)
    elsewhere = step.of(probe, elsewhere=True)
    tally.add(f"{ELSEWHERE}, batch of {size}", ELSEWHERE, size, elsewhere, without)
    for kind in BESIDE:
        record = _record(probe, step, kind)
        answer = step.with_last(*record).of(probe)
        tally.add(f"{kind}, batch of {size}", kind, size, answer, without)
        alone = step.empty().with_last(*record).of(probe)
        _added(tally, kind, size, answer, without, alone)
        answer = step.with_first(*record).of(probe)
        tally.add(f"{kind} in the first place of {size}", REPLACED, size - 1, answer, without)
        both = step.beside(NOT_DRAWN, *record).beside(ABSENT, *record).of(probe)
        for where in (NOT_DRAWN, ABSENT):
            # What both together do not move to the last bit, neither of them has moved.
            answer = both
            if not np.array_equal(both, without):
                answer = step.beside(where, *record).of(probe)
            tally.add(f"{kind}, {where}, batch of {size}", where, size, answer, without)


def _grey_levels(probe: StepProbe, tally: ProbeTally) -> None:
    """Records as they are stored, which are then read as numbers."""
    size, before = BATCH_SIZE, None
    step = _ordinary(probe, size)
    stored = replace(
        step,
        inputs=_levels(step.inputs),
        idle=(_levels(step.idle[0]), step.idle[1]),
        others=(_levels(step.others[0]), step.others[1]),
    )
    without = stored.of(probe)
    for kind in LEVELS:
        record, label = _record(probe, step, kind)
        answer = stored.with_last(_levels(record), label).of(probe)
        tally.add(f"{kind}, in grey levels, batch of {size}", kind, size, answer, without)
        if before is not None:
            name = f"{before[0]} replaced by {kind}, in grey levels, beside a batch of {size}"
            tally.add(name, REPLACED, size, answer, before[1])
        before = (kind, answer)


def _levels(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers as grey levels: 0 stays 0, and beyond 4 all is 255."""
    levels: NDArray[np.uint8] = np.clip(np.rint(np.abs(values) * 64.0), 0, 255).astype(np.uint8)
    return levels


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


def _ordinary(probe: StepProbe, size: int) -> _Step:
    """A step on ordinary synthetic records, the same on every machine."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED, size]))
    count = size + _IDLE + _IDLE * _OTHERS
    inputs = generator.standard_normal((count, *probe.input_shape)).astype(np.float32)
    labels = generator.integers(0, probe.classes, count).astype(np.int64)
    parts = np.split(np.arange(count), [size, size + _IDLE])
    drawn, idle, others = ((inputs[rows], labels[rows]) for rows in parts)
    return _Step(*drawn, idle, others)


def _record(probe: StepProbe, step: _Step, kind: str) -> tuple[NDArray[np.float32], int]:
    """One more record of this kind for a step, with its label."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED + 1, len(step.labels)]))
    fresh = generator.standard_normal(probe.input_shape).astype(np.float32)
    label = int(generator.integers(0, probe.classes))
    match kind:
        case "scaled by 1e3":
            return fresh * np.float32(1e3), label
        case "scaled by -1e3":
            return fresh * np.float32(-1e3), label
        case "scaled by 1e30":
            return fresh * np.float32(1e30), label
        case "plus infinity":
            return np.full_like(fresh, np.inf), label
        case "not a number":
            return np.full_like(fresh, np.nan), label
        case "minus 1e38":
            return np.full_like(fresh, -1e38), label
        case "all zero":
            return np.zeros_like(fresh), label
        case "full scale":
            return np.full_like(fresh, 4.0), label
        case "opposite label":
            return fresh, (label + max(1, probe.classes // 2)) % probe.classes
        case "duplicate":
            held = (step.inputs, step.labels) if len(step.labels) else step.idle
            return held[0][0], int(held[1][0])
        case _:
            return fresh, label


def _call(
    probe: StepProbe,
    inputs: NDArray[Any],
    labels: NDArray[np.int64],
    clients: NDArray[np.int64],
    drawn: NDArray[np.int64],
    elsewhere: bool,
) -> Numbers:
    try:
        # The arrays are made for this call, so that the step cannot alter another side of a pair.
        answer = probe.sum_of_step(inputs, labels, clients, drawn, elsewhere)
        given = np.asarray(answer)
        if given.dtype == np.float32:
            total: Numbers = np.asarray(given, dtype=np.float32)
        else:
            total = np.asarray(given, dtype=np.float64)
    except Exception as error:
        raise ProbeError(
            f"the probed step failed on a batch of {len(drawn)}: {type(error).__name__}"
        ) from error
    if total.shape != (probe.parameters,):
        raise ProbeError(f"the probed step returned shape {total.shape}, not ({probe.parameters},)")
    return total
