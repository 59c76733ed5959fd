"""The active probe: pokes the real private step with synthetic neighbouring data.

Records of norms can look right while the step clips the wrong thing, or while something before it
lets one record change how another is read. So the auditor asks for the step itself, through the
protocol `StepProbe` that the engine implements (`UpdateProbe` at client level; `SumProbe` where
others add up), and measures how far one record moves its answer. The step is asked for as a whole,
from the rows of the clients to the answer: what divides the rows among clients, looks a batch up,
augments and collates it lies in between. Only synthetic records are used, so the results are free
to print. They are written to the evidence and can be judged later where the engine is not
installed.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from audit.errors import ProbeError, RunDirectoryError
from audit.probe.updates import (
    ABSENT,
    ADDED,
    ADDED_PRECISELY,
    ALONE,
    ELSEWHERE,
    FAR_OFF,
    MANY,
    NOT_DRAWN,
    REPEAT,
    REPLACED,
    UNEQUAL,
    Numbers,
    ProbeTally,
    SumProbe,
    run_update_probe,
    shortened,
)
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
# What is added to a large batch, leads one, or accompanies it.
BESIDE = ("ordinary", "scaled by 1e3")
# Of records that are stored as grey levels.
LEVELS = ("all zero", "ordinary", "full scale")
PATH_KINDS = (ADDED, NOT_DRAWN, ABSENT, ELSEWHERE)
# What all records of a person are, or one of them together with ordinary ones.
OF_A_PERSON = ("ordinary", "scaled by 1e3", "one of them")
_MORE_THAN_USED = 2
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


@runtime_checkable
class PreciseStepProbe(Protocol):
    """A step that can also be computed in float64, for a second opinion on its rounding."""

    def precise_sum_of_step(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """What `StepProbe.sum_of_step` tells where all is computed in float64, float64 [d]."""
        ...


@runtime_checkable
class FarOffStepProbe(Protocol):
    """A step that can also be taken at parameters of another sign and size than the model's.

    A regression whose records are all clipped follows the signs of its errors alone, which
    parameters nearby may leave as they are.
    """

    def sum_of_step_far_off(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> Numbers:
        """What `StepProbe.sum_of_step` tells at such parameters, [d]."""
        ...


@runtime_checkable
class PeopleStepProbe(Protocol):
    """A step of a run that protects people.

    Attributes:
        records_per_person: most records of one person in a batch; None where records are protected.
    """

    records_per_person: int | None

    def sum_of_step_of_people(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        people: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> Numbers:
        """What `StepProbe.sum_of_step` tells where `drawn` are people, and whom records are about.

        Args:
            inputs: as there.
            labels: as there.
            clients: as there.
            people: int64 [n], whom each record is about, in the order of their first records.
            drawn: int64 [b], which of client 0's people the step draws.
        """
        ...


Probe = StepProbe | SumProbe


_Asked = tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class _Step:
    """A requested step: the batch, and the other records in it.

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
        step = functools.partial(probe.sum_of_step, elsewhere=elsewhere)
        return _call(probe, step, *self._asked())

    def far_off(self, probe: StepProbe) -> Numbers | None:
        """The answer at parameters far from the model's, [d]; None where nobody can ask there."""
        if not isinstance(probe, FarOffStepProbe):
            return None
        return _call(probe, probe.sum_of_step_far_off, *self._asked())

    def precisely(self, probe: StepProbe) -> Numbers | None:
        """The answer in float64, [d]; None where the step cannot be computed in it."""
        if not isinstance(probe, PreciseStepProbe):
            return None
        try:
            return _call(probe, probe.precise_sum_of_step, *self._asked())
        except ProbeError:
            # A module that insists on float32 is no fault of the step's.
            return None

    def _asked(self) -> _Asked:
        """Inputs and labels of everybody, whose they are, and which are drawn."""
        size, others = len(self.labels), len(self.others[1])
        labels = np.concatenate([self.labels, self.idle[1], self.others[1]])
        # Two further clients, of at least as many records each as may matter to anybody.
        clients = np.concatenate([np.zeros(size + len(self.idle[1]), np.int64), _turns(others)])
        inputs = np.concatenate([self.inputs, self.idle[0], self.others[0]])
        return inputs, labels, clients, np.arange(size)

    def empty(self) -> _Step:
        """The step that draws nobody."""
        return replace(self, inputs=self.inputs[:0], labels=self.labels[:0])

    def with_last(self, record: NDArray[Any], label: int) -> _Step:
        """The step whose batch has one record more, after all others."""
        return replace(
            self,
            inputs=np.concatenate([self.inputs, record[None]]),
            labels=np.concatenate([self.labels, [label]]),
        )

    def with_first(self, record: NDArray[Any], label: int) -> _Step:
        """The step whose batch has one record more, before all others."""
        return replace(
            self,
            inputs=np.concatenate([record[None], self.inputs]),
            labels=np.concatenate([[label], self.labels]),
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
    if isinstance(probe, SumProbe):
        return run_update_probe(probe)
    tally = ProbeTally(float(probe.clipping_norm), probe.parameters, _rows(probe))
    # What one step leaves behind for the next shows when the first is asked for again at the end.
    step = _ordinary(probe, BATCH_SIZE)
    first = step.of(probe)
    name = f"batch of {BATCH_SIZE}"
    elsewhere = step.of(probe, elsewhere=True)
    tally.add(f"{ELSEWHERE}, {name}", ELSEWHERE, BATCH_SIZE, elsewhere, first)
    if tally.last_difference == 0.0:
        far_off = step.far_off(probe)
        if far_off is not None:
            tally.add(f"{FAR_OFF}, {name}", ELSEWHERE, BATCH_SIZE, far_off, first)
    del elsewhere
    if probe.grey_levels:
        _grey_levels(probe, tally)
    alone = _large_batch(probe, tally)
    _unequal_lengths(probe, tally, step, alone["ordinary"])
    _each_kind(probe, tally, step, first, alone)
    if isinstance(probe, PeopleStepProbe) and probe.records_per_person is not None:
        _people(probe, probe.records_per_person, tally, step, first)
    tally.add(f"{REPEAT}, {name}", REPEAT, BATCH_SIZE, step.of(probe), first)
    return tally.arrays()


def _rows(probe: StepProbe) -> int:
    """How many pairs there will be."""
    each, levels = 5 * len(KINDS) - 2, (2 * len(LEVELS) - 1) * probe.grey_levels
    people = isinstance(probe, PeopleStepProbe) and probe.records_per_person is not None
    return each + 4 + 5 * len(BESIDE) - 1 + levels + 3 * len(OF_A_PERSON) * people


class _Joined:
    """What a record does to a batch that it joins, one kind after another.

    Args:
        tally: Gets the rows.
        size: of the batch without it.
        without: The batch's sum, [d].
        stored: How records are stored, if that is to be said.
    """

    def __init__(self, tally: ProbeTally, size: int, without: Numbers, stored: str = "") -> None:
        self._tally = tally
        self._clipping_norm = tally.clipping_norm
        self._stored = stored
        self._size = size
        self._without = without
        self._before: tuple[str, Numbers] | None = None

    def add(self, kind: str, answer: Numbers) -> None:
        """Compare a sum [d] with the batch's own, and with that of the kind before."""
        name = f"{kind}{self._stored}, batch of {self._size}"
        self._tally.add(name, kind, self._size, answer, self._without)
        if self._before is not None:
            replaced = f"{self._before[0]} replaced by {kind}{self._stored}"
            name = f"{replaced}, next to a batch of {self._size}"
            self._tally.add(name, REPLACED, self._size, answer, self._before[1])
        self._before = (kind, answer)

    def add_parts(self, kind: str, answer: Numbers, alone: Numbers, added: str = ADDED) -> bool:
        """Compare what a record adds to others with what it is alone.

        Returns:
            Whether they differ by so much that it is to be asked again in float64.
        """
        name = f"{kind}, {added}, batch of {self._size}"
        self._tally.add_parts(name, added, self._size, answer, (self._without, alone))
        return self._tally.last_difference > ALONE * self._clipping_norm

    def add_precise_parts(
        self,
        kind: str,
        answer: Numbers | None,
        without: Numbers | None,
        alone: Numbers | None,
        added: str = ADDED,
    ) -> None:
        """Compare the same in float64, where all of it could be computed."""
        if answer is not None and without is not None and alone is not None:
            name = f"{kind}, {added}, batch of {self._size}"
            self._tally.add_parts(name, ADDED_PRECISELY, self._size, answer, (without, alone))


def _each_kind(
    probe: StepProbe, tally: ProbeTally, step: _Step, without: Numbers, known: dict[str, Numbers]
) -> None:
    """Each kind leads a batch, or makes one by itself, and is replaced by the next kind.

    Args:
        probe: The step.
        tally: Gets the rows.
        step: An ordinary step.
        without: Its sum, [d].
        known: What kinds give by themselves, where that has been asked for; it is emptied, since
            sums may be long.
    """
    empty = step.empty()
    beside = _Joined(tally, len(step.labels), without)
    by_itself = _Joined(tally, 0, empty.of(probe))
    for kind in KINDS:
        record = _record(probe, kind, step)
        answer = step.with_first(*record).of(probe)
        beside.add(kind, answer)
        alone = known.pop(kind) if kind in known else empty.with_first(*record).of(probe)
        by_itself.add(kind, alone)
        if beside.add_parts(kind, answer, alone):
            beside.add_precise_parts(
                kind,
                step.with_first(*record).precisely(probe),
                step.precisely(probe),
                empty.with_first(*record).precisely(probe),
            )


def _large_batch(probe: StepProbe, tally: ProbeTally) -> dict[str, Numbers]:
    """A large batch with others added, and with one more; and these alone."""
    step = _ordinary(probe, LARGE_BATCH)
    without = step.of(probe)
    records = {kind: _record(probe, kind, step) for kind in BESIDE}
    _not_drawn(probe, tally, step, without, records)
    joined, found = _Joined(tally, LARGE_BATCH, without), {}
    for kind, record in records.items():
        answer = step.with_last(*record).of(probe)
        joined.add(kind, answer)
        found[kind] = step.empty().with_last(*record).of(probe)
        if joined.add_parts(kind, answer, found[kind]):
            joined.add_precise_parts(
                kind,
                step.with_last(*record).precisely(probe),
                step.precisely(probe),
                step.empty().with_last(*record).precisely(probe),
            )
    return found


def _unequal_lengths(probe: StepProbe, tally: ProbeTally, step: _Step, alone: Numbers) -> None:
    """An ordinary record leads a batch of shorter ones, whose client holds no longer ones either.

    Args:
        probe: The step.
        tally: Gets the row.
        step: An ordinary step, whose records are shortened.
        alone: What the ordinary record gives by itself, [d].
    """
    short = replace(
        step,
        inputs=shortened(step.inputs),
        idle=(shortened(step.idle[0]), step.idle[1]),
        others=(shortened(step.others[0]), step.others[1]),
    )
    record = _record(probe, "ordinary", step)
    joined = _Joined(tally, BATCH_SIZE, short.of(probe))
    if joined.add_parts("ordinary", short.with_first(*record).of(probe), alone, UNEQUAL):
        joined.add_precise_parts(
            "ordinary",
            short.with_first(*record).precisely(probe),
            short.precisely(probe),
            step.empty().with_first(*record).precisely(probe),
            UNEQUAL,
        )


def _not_drawn(
    probe: StepProbe,
    tally: ProbeTally,
    step: _Step,
    without: Numbers,
    records: Mapping[str, tuple[NDArray[Any], int]],
) -> None:
    """A large batch whose client, or whose client's peers, hold one record more."""
    pairs = [(kind, where) for kind in records for where in (NOT_DRAWN, ABSENT)]
    all_of_them = step
    for kind, where in pairs:
        all_of_them = all_of_them.beside(where, *records[kind])
    answer = all_of_them.of(probe)
    # What all together do not move to the last bit, none of them has moved.
    unmoved = np.array_equal(answer, without)
    for kind, where in pairs:
        if not unmoved:
            answer = step.beside(where, *records[kind]).of(probe)
        name = f"{kind}, {where}, batch of {LARGE_BATCH}"
        tally.add(name, where, LARGE_BATCH, answer, without)


def _people(probe: StepProbe, most: int, tally: ProbeTally, step: _Step, without: Numbers) -> None:
    """Somebody with more records than a batch uses joins others, is alone, and is not drawn.

    Args:
        probe: The step.
        most: Records of one person in a batch.
        tally: Gets the rows.
        step: An ordinary step, each of whose records is about somebody else.
        without: Its sum, [d].
    """
    size, own = len(step.labels), most + _MORE_THAN_USED
    everybody = np.arange(size + 1)
    for kind in OF_A_PERSON:
        records = [_record(probe, one, step) for one in _kinds_of(kind, own)]
        joined = replace(
            step,
            inputs=np.concatenate([step.inputs, np.stack([one for one, _ in records])]),
            labels=np.concatenate([step.labels, [label for _, label in records]]),
        )
        name = f"{kind}, {own} records of one person, batch of {size}"
        # All of the last records in the batch are about one person.
        ask = functools.partial(_of_people, probe, joined, (size, own))
        answer, alone = ask(everybody), ask(everybody[-1:])
        tally.add(name, MANY, size, answer, without)
        tally.add_parts(f"{name}, {ADDED}", ADDED, size, answer, (without, alone))
        tally.add(f"{name}, {NOT_DRAWN}", NOT_DRAWN, size, ask(everybody[:-1]), without)


def _of_people(
    probe: StepProbe, step: _Step, group: tuple[int, int], drawn: NDArray[np.int64]
) -> Numbers:
    """The answer where a group of records, from one on so many, is about one person, [d]."""
    assert isinstance(probe, PeopleStepProbe)
    inputs, labels, clients, _ = step._asked()
    places, (first, own) = np.arange(len(labels)), group
    people = places - np.clip(places - first, 0, own - 1)

    def of(
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        drawn: NDArray[np.int64],
    ) -> object:
        return probe.sum_of_step_of_people(inputs, labels, clients, people, drawn)

    return _call(probe, of, inputs, labels, clients, drawn)


def _kinds_of(kind: str, records: int) -> list[str]:
    """Of what kinds a person's records are."""
    return (
        ["ordinary"] * (records - 1) + ["not a number"]
        if kind == "one of them"
        else ([kind] * records)
    )


def _grey_levels(probe: StepProbe, tally: ProbeTally) -> None:
    """Records as they are stored, which are then read as numbers."""
    step = _ordinary(probe, BATCH_SIZE)
    stored = replace(
        step,
        inputs=_levels(step.inputs),
        idle=(_levels(step.idle[0]), step.idle[1]),
        others=(_levels(step.others[0]), step.others[1]),
    )
    joined = _Joined(tally, BATCH_SIZE, stored.of(probe), ", in grey levels")
    for kind in LEVELS:
        record, label = _record(probe, kind, step)
        answer = stored.with_last(_levels(record), label).of(probe)
        joined.add(kind, answer)


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


def _record(probe: StepProbe, kind: str, step: _Step) -> tuple[NDArray[np.float32], int]:
    """One more record of this kind with its label: the same for all steps, but for a duplicate."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED + 1, BATCH_SIZE]))
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
            return step.inputs[0], int(step.labels[0])
        case _:
            return fresh, label


def _call(
    probe: StepProbe,
    step: Callable[..., object],
    inputs: NDArray[Any],
    labels: NDArray[np.int64],
    clients: NDArray[np.int64],
    drawn: NDArray[np.int64],
) -> Numbers:
    try:
        # The arrays are made for this call, so that the step cannot alter another side of a pair.
        given = np.asarray(step(inputs, labels, clients, drawn))
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
