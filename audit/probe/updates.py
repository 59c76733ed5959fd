"""What active probes measure, and the probe at client level: the real sum of clipped updates.

`ProbeTally` collects what a probe measures, row by row, into the arrays that are stored, so that
`probing` (records) and this module (whole clients) leave the same arrays behind.

`probing` pokes a step on records. Here one neighbour more is one client's whole update. It is
probed twice: with updates that are made up (ordinary ones, huge ones, ones that are no numbers),
and through the clients' whole local training on synthetic records, so that what one client leaves
behind in the next one's training is seen too.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from audit.errors import ProbeError

REPEAT = "repeat"
REPLACED = "replaced"
# Each contributes independently: together with others, it lengthens a sum by exactly its own value.
ADDED = "added to others as it is alone"
# The same among records of other lengths: all that shorter ones have in common ends in zeros, which
# is padding to a model that reads texts.
UNEQUAL = "added to shorter ones as it is alone"
# The same where everything is computed in float64: asked for where float32 gives more than ALONE.
ADDED_PRECISELY = "added to others as it is alone, in float64"
# As a share of C. Batches of different sizes are computed in another order, and a unit that is
# nearly at a kink may fall on its other side; a record that really moves another's gradient moves
# it by far more.
ALONE = 1e-3
# One more that takes no part: what the others get must not move at all.
NOT_DRAWN = "held but not drawn"
ABSENT = "of another client"
SILENT = "of a client that is not drawn"
# The same at other parameters, which must move it.
ELSEWHERE = "other parameters"
# How a row of that kind is named where the step is asked again, at parameters further away.
FAR_OFF = "parameters further away"
# Somebody with several records, where people are protected.
MANY = "a person with several records"
UNMOVED = (REPEAT, NOT_DRAWN, ABSENT, SILENT)
_MOST_STORED_BYTES = 1 << 25
_PIECE = 1 << 15

Numbers = NDArray[np.float64] | NDArray[np.float32]
"""A sum [d], in the precision in which it was told."""


class ProbeTally:
    """Rows of neighbouring pairs.

    Args:
        clipping_norm: C of the probed step, which is told again.
        parameters: d, length of a sum.
        rows: how many pairs there will be; decides whether the sums themselves are kept.
    """

    def __init__(self, clipping_norm: float, parameters: int, rows: int) -> None:
        """Start without rows."""
        self.clipping_norm = clipping_norm
        self._keep = 2 * rows * parameters * 8 <= _MOST_STORED_BYTES
        self._names: list[str] = []
        self._kinds: list[str] = []
        self._sizes: list[int] = []
        self._pairs: list[tuple[Numbers, Numbers]] = []
        self._measured: list[tuple[float, float, float]] = []
        self._known: list[tuple[weakref.ref[Numbers], float]] = []

    def add(
        self,
        name: str,
        kind: str,
        size: int,
        with_one: Numbers,
        without: Numbers,
    ) -> None:
        """Add one pair of sums [d]; `size` counts what both batches hold alike."""
        self._note(name, kind, size, with_one, (without,))
        if self._keep:
            self._pairs.append((with_one, without))

    def add_parts(
        self,
        name: str,
        kind: str,
        size: int,
        together: Numbers,
        parts: tuple[Numbers, Numbers],
    ) -> None:
        """Add a pair of a sum [d] and the sum of two others [d], which should be the same."""
        if self._keep:
            with np.errstate(all="ignore"):
                self.add(name, kind, size, together, parts[0] + parts[1])
            return
        # Long sums are not added up as a whole, which memory would be asked for each time.
        self._note(name, kind, size, together, parts)

    @property
    def last_difference(self) -> float:
        """‖difference‖₂ of the pair that was added last."""
        return self._measured[-1][0]

    def _note(
        self, name: str, kind: str, size: int, with_one: Numbers, without: Sequence[Numbers]
    ) -> None:
        """Measure a pair, whose second sum may come in parts, in one pass over both."""
        norm_with = self._known_norm(with_one)
        norm_without = self._known_norm(without[0]) if len(without) == 1 else None
        squares = [0.0, 0.0, 0.0]
        with np.errstate(all="ignore"):
            for start in range(0, len(with_one), _PIECE):
                part = slice(start, start + _PIECE)
                one, other = with_one[part].astype(np.float64), _sum(without, part)
                # Of float32 numbers in float64 no square overflows.
                if norm_with is None:
                    squares[0] += float(one @ one)
                if norm_without is None:
                    squares[1] += float(other @ other)
                other -= one
                squares[2] += float(other @ other)
            found = [float(np.sqrt(value)) for value in squares]
        if norm_with is None:
            norm_with = self._remember(with_one, found[0])
        if norm_without is None:
            norm_without = found[1]
            if len(without) == 1:
                self._remember(without[0], found[1])
        self._measured.append((found[2], norm_with, norm_without))
        self._names.append(name)
        self._kinds.append(kind)
        self._sizes.append(size)

    def _known_norm(self, vector: Numbers) -> float | None:
        """The norm of a sum that an earlier pair has; it may have millions of numbers."""
        self._known = [(seen, norm) for seen, norm in self._known if seen() is not None]
        return next((norm for seen, norm in self._known if seen() is vector), None)

    def _remember(self, vector: Numbers, norm: float) -> float:
        self._known.append((weakref.ref(vector), norm))
        return norm

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of evidence/probe.npz, one row a pair."""
        numbers = np.asarray(self._measured, dtype=np.float64)
        arrays: dict[str, NDArray[Any]] = {
            "names": np.asarray(self._names),
            "kind": np.asarray(self._kinds),
            "clipping_norm": np.asarray(self.clipping_norm),
            "batch_size": np.asarray(self._sizes, dtype=np.int64),
            "difference_norm": numbers[:, 0].copy(),
            "norm_with": numbers[:, 1].copy(),
            "norm_without": numbers[:, 2].copy(),
        }
        if self._keep:
            arrays["sums_with"] = _stored(pair[0] for pair in self._pairs)
            arrays["sums_without"] = _stored(pair[1] for pair in self._pairs)
        return arrays


def shortened(records: NDArray[Any]) -> NDArray[Any]:
    """Records [n, …] of which a quarter, three eighths or half of each axis is left before zeros.

    So they are short whichever axis counts places. Neighbours differ in length.
    """
    short = np.zeros_like(records)
    for row, record in enumerate(records):
        kept = tuple(slice(max(1, side * (row % 3 + 2) // 8)) for side in record.shape)
        short[row][kept] = record[kept]
    return short


def _stored(sums: Iterable[Numbers]) -> NDArray[np.float64]:
    return np.stack([one.astype(np.float64) for one in sums])


def _sum(vectors: Sequence[Numbers], part: slice) -> NDArray[np.float64]:
    total = vectors[0][part].astype(np.float64)
    for vector in vectors[1:]:
        total += vector[part]
    return total


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
# What a client's records are like that joins a round of real local training.
CLIENT_KINDS = (
    "ordinary client",
    "client of huge records",
    "client of records that are no numbers",
)
ROUND_KINDS = (*CLIENT_KINDS, REPLACED, ADDED, SILENT, ELSEWHERE)
_SEED = 20210731
_CLIENTS, _RECORDS = 3, 4
_MOST_COORDINATES = 1 << 27


@runtime_checkable
class SumProbe(Protocol):
    """The sum of clipped updates of a round before its noise, by any party that adds them up.

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


@runtime_checkable
class UpdateProbe(SumProbe, Protocol):
    """The same as the engine computes it, which can be asked for whole rounds of training too.

    Attributes:
        input_shape: shape of one record as it is stored.
        classes: number of labels, from 1.
    """

    input_shape: tuple[int, ...]
    classes: int

    def sum_of_round(
        self,
        inputs: NDArray[np.float32],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        chosen: tuple[int, ...],
        elsewhere: bool = False,
    ) -> NDArray[np.float64]:
        """Divide records among clients, let some train as in a real round, and tell the release.

        Args:
            inputs: float32 [n, *input_shape], any values.
            labels: int64 [n], each from 0 to classes - 1.
            clients: int64 [n], whose each record is, from 0.
            chosen: the clients that take part, in their order.
            elsewhere: whether they begin at other parameters than else.

        Returns:
            float64 [d]: the round's mean update without noise, times the fixed public number that
            it was divided by, which is the sum of the clipped updates.
        """
        ...


def run_update_probe(probe: SumProbe) -> Mapping[str, NDArray[Any]]:
    """Call the sum with and without one adversarial update, in rounds of several sizes.

    Args:
        probe: the sum of updates; where it is an `UpdateProbe`, rounds of training are asked for
            as well.

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
    trains = isinstance(probe, UpdateProbe)
    rows = len(counts) * (len(UPDATE_KINDS) + 1) + (5 * len(CLIENT_KINDS) + 4) * trains
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
    if isinstance(probe, UpdateProbe):
        _rounds(probe, tally)
    return tally.arrays()


def _rounds(probe: UpdateProbe, tally: ProbeTally) -> None:
    """One client more, first or last, in the place of another, or not drawn at all."""
    held = _records(probe)
    usual = tuple(range(_CLIENTS))
    without = _train(probe, held, usual)
    name = f"round of {_CLIENTS} clients"
    elsewhere = _train(probe, held, usual, elsewhere=True)
    tally.add(f"{ELSEWHERE}, {name}", ELSEWHERE, _CLIENTS, elsewhere, without)
    for kind in CLIENT_KINDS:
        more = [*held, _as(kind, held[-1])]
        with np.errstate(all="ignore"):
            parts = without + _train(probe, more, (_CLIENTS,))
        for place, cohort in (("first", (_CLIENTS, *usual)), ("last", (*usual, _CLIENTS))):
            answer = _train(probe, more, cohort)
            tally.add(f"{kind}, {place} in a {name}", kind, _CLIENTS, answer, without)
            tally.add(f"{kind}, {ADDED}, {place} in a {name}", ADDED, _CLIENTS, answer, parts)
        exchanged = [_as(kind, held[-1]), *held[1:]]
        answer = _train(probe, exchanged, usual)
        tally.add(f"client replaced by {kind}, {name}", REPLACED, _CLIENTS - 1, answer, without)
    silent = _train(probe, [*held, _as(CLIENT_KINDS[1], held[-1])], usual)
    tally.add(f"{CLIENT_KINDS[1]}, not drawn, {name}", SILENT, _CLIENTS, silent, without)
    short = [(shortened(inputs), labels) for inputs, labels in held]
    more = [*short, _as(CLIENT_KINDS[0], held[-1])]
    parts = _train(probe, short, usual) + _train(probe, more, (_CLIENTS,))
    answer = _train(probe, more, (*usual, _CLIENTS))
    tally.add(f"{CLIENT_KINDS[0]}, {UNEQUAL}, {name}", UNEQUAL, _CLIENTS, answer, parts)
    # What one round leaves behind for the next shows when the first is asked for again.
    tally.add(f"{REPEAT}, {name}", REPEAT, _CLIENTS, _train(probe, held, usual), without)


_Held = tuple[NDArray[np.float32], NDArray[np.int64]]


def _records(probe: UpdateProbe) -> list[_Held]:
    """Some ordinary records of each client, the same on every machine."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED + 2, _CLIENTS]))
    shape = (_CLIENTS, _RECORDS, *probe.input_shape)
    inputs = generator.standard_normal(shape).astype(np.float32)
    labels = generator.integers(0, probe.classes, (_CLIENTS, _RECORDS)).astype(np.int64)
    return list(zip(inputs, labels, strict=True))


def _as(kind: str, like: _Held) -> _Held:
    """The records of a client of this kind."""
    # In another order and of the other sign, so that they are nobody else's.
    inputs, labels = -like[0][::-1], like[1]
    if kind == CLIENT_KINDS[1]:
        inputs = inputs * np.float32(1e3)
    elif kind == CLIENT_KINDS[2]:
        inputs = np.full_like(inputs, np.nan)
    return inputs, labels


def _train(
    probe: UpdateProbe, held: list[_Held], chosen: tuple[int, ...], elsewhere: bool = False
) -> NDArray[np.float64]:
    inputs = np.concatenate([one[0] for one in held])
    labels = np.concatenate([one[1] for one in held])
    clients = np.repeat(np.arange(len(held)), [len(one[1]) for one in held])
    try:
        answer = probe.sum_of_round(inputs, labels, clients, chosen, elsewhere)
        total = np.asarray(answer, dtype=np.float64)
    except Exception as error:
        raise ProbeError(
            f"the probed round failed with {len(chosen)} clients: {type(error).__name__}"
        ) from error
    if total.shape != (probe.parameters,):
        raise ProbeError(f"the probed round returned shape {total.shape}, not [d]")
    return total.copy()


def _updates(probe: SumProbe, count: int) -> NDArray[np.float32]:
    """At least one ordinary update, the same on every machine: norms from C/4 to 4C."""
    generator = np.random.Generator(np.random.Philox(key=[_SEED, count]))
    rows = generator.standard_normal((max(1, count), probe.parameters))
    norms = probe.clipping_norm * 4.0 ** generator.uniform(-1.0, 1.0, max(1, count))
    rows *= (norms / np.linalg.norm(rows, axis=1))[:, None]
    return rows.astype(np.float32)


def _update(
    probe: SumProbe, updates: NDArray[np.float32], kind: str, count: int
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


def _call(probe: SumProbe, updates: NDArray[np.float32]) -> NDArray[np.float64]:
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
