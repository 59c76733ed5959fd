"""The private evidence as typed arrays: shapes, types and ranges checked before any use.

`bundle` reads the archives; this module turns them into the layout, one round's evidence, the
active probe's raw results, and what is kept of the records: whose they are, which are equal, and
how they are scaled. Every fault is one `FieldError` with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from audit.untrusted import fields
from audit.untrusted.archives import (
    Arrays,
    Floats,
    Integers,
    byte_rows,
    floats,
    integers,
    texts,
)
from audit.untrusted.fields import FieldError


@dataclass(frozen=True)
class Layout:
    """How the parameters are split into measuring blocks.

    Attributes:
        parameters: d, all trainable parameters.
        kind: name of the partition.
        names: one a block.
        sizes: coordinates of each block, summing to d.
        beta2: decay of the second moment; None for rules without one.
        sample_coordinates: coordinates at which the noise itself is recorded.
        round_files: how many rounds left a file.
        unit: whose evidence this is, "record", "person", "client" or "loop".
        tensors: name and length of each parameter tensor, in the vector's order.
        of_coordinate: block of each coordinate, [d].
    """

    parameters: int
    kind: str
    names: tuple[str, ...]
    sizes: Integers
    beta2: float | None
    sample_coordinates: Integers
    round_files: int
    unit: str
    tensors: tuple[tuple[str, int], ...]
    of_coordinate: Integers


@dataclass(frozen=True)
class SecondMoment:
    """A round's second moments, one row a client: block means unless said otherwise."""

    noisy: Floats
    clean: Floats
    corrected: Floats
    subtracted: Floats
    steps: Integers
    floored: Integers


@dataclass(frozen=True)
class RoundEvidence:
    """What one round left behind: S clients, K queries each, B blocks, m sampled coordinates.

    A round without clients, as independent draws may have it, left empty arrays.

    Attributes:
        clients: [S] client numbers.
        attempt: which attempt of the round this is.
        batch_size: [S, K] realised batch sizes.
        raw_norms: [n] per-record gradient norms, in (client, query) order; may be NaN or inf.
        clipped_norms: [n] the same after clipping.
        inclusions: [sum of R over the clients] how many of its client's batches each record was in,
            client after client.
        record_offsets: [S*K+1] start of each query in the norms.
        nonfinite: [S, K] records whose gradient was not finite.
        divisor: [S, K] what the noisy sum was divided by.
        noise_sum_squares: [S, K, B] sums of squared noise of the clipped sum.
        noise_sample: [S, K, m] noise at the sampled coordinates over the clipping norm.
        clean_sum_squares: [S, K, B] sums of the squared clean mean gradient.
        second_moment: None for rules without one.
        upload_sha256: [S, 32] digest of each serialised upload.
        commitment: [S, 32] keyed digest of each whole participation; None in older runs.
        noise_silent: [S, K] coordinates on which the noise is exactly 0; None in older evidence.
        noise_largest: [S, K] largest noise on any coordinate over the clipping norm; None likewise.
        rows_sha256: [S, 32] keyed digest of the data set's rows that each client's batches held,
            each row as often as it was in one; None where rows are not told apart.
        seen: one record of each batch, by content; None in older evidence.
        rows_used: [sum of rows over the clients] in how many batches each record was, where
            `inclusions` are those of people; None elsewhere.
    """

    clients: Integers
    attempt: int
    batch_size: Integers
    inclusions: Integers
    record_offsets: Integers
    raw_norms: Floats
    clipped_norms: Floats
    nonfinite: Integers
    divisor: Floats
    noise_sum_squares: Floats
    noise_sample: Floats
    clean_sum_squares: Floats
    second_moment: SecondMoment | None
    upload_sha256: Integers
    commitment: Integers | None = None
    noise_silent: Integers | None = None
    noise_largest: Floats | None = None
    rows_sha256: Integers | None = None
    seen: Seen | None = None
    rows_used: Integers | None = None


@dataclass(frozen=True)
class ProbeResults:
    """Raw results of the active probe, one row a neighbouring pair of synthetic batches."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    clipping_norm: float
    batch_size: Integers
    difference_norm: Floats
    norm_with: Floats
    norm_without: Floats


def read_layout(source: Any, most: int = 10**11) -> Layout:
    """The parsed layout.json as a Layout; each of up to `most` parameters takes 16 bytes."""
    if fields.integer(source, "format") != 1:
        raise FieldError("format is not 1")
    parameters = fields.integer(source, "parameters", least=1, most=10**11)
    if parameters > most:
        raise FieldError("parameters are more than model.safetensors has bytes")
    blocks = fields.mapping(source, "blocks")
    sizes = fields.integers(blocks, "sizes", least=1, most=parameters)
    names = fields.sequence(blocks, "names")
    if not sizes or len(names) != len(sizes) or not all(isinstance(name, str) for name in names):
        raise FieldError("blocks do not have one name and one size each")
    if sum(sizes) != parameters:
        raise FieldError("block sizes do not sum to the number of parameters")
    beta2 = source.get("beta2")
    if beta2 is not None:
        beta2 = fields.number(source, "beta2", least=0.0, most=1.0)
        if beta2 == 1.0:
            raise FieldError("beta2 is not below 1")
    sample = fields.integers(source, "sample_coordinates", most=parameters - 1)
    if len(set(sample)) != len(sample):
        raise FieldError("sample_coordinates has a coordinate twice")
    tensors, of_coordinate = _runs(blocks, parameters, len(sizes))
    if np.any(np.bincount(of_coordinate, minlength=len(sizes)) != np.asarray(sizes)):
        raise FieldError("the runs of blocks do not have the blocks' sizes")
    return Layout(
        parameters=parameters,
        kind=fields.text(blocks, "kind"),
        names=tuple(str(name) for name in names),
        sizes=np.asarray(sizes, dtype=np.int64),
        beta2=beta2,
        sample_coordinates=np.asarray(sample, dtype=np.int64),
        round_files=fields.integer(source, "per_round_files"),
        unit=fields.choice(source, "unit", ("record", "person", "client", "loop")),
        tensors=tensors,
        of_coordinate=of_coordinate,
    )


def _runs(
    source: Any, parameters: int, blocks: int
) -> tuple[tuple[tuple[str, int], ...], Integers]:
    """The parameter tensors, each cut into equal runs of coordinates of one block."""
    tensors, pieces, start = [], [], 0
    for run in fields.sequence(source, "runs"):
        stop = fields.integer(run, "stop", least=start + 1, most=parameters)
        of_runs = np.asarray(fields.integers(run, "blocks", most=blocks - 1), dtype=np.int64)
        if not len(of_runs) or (stop - start) % len(of_runs):
            raise FieldError("runs of blocks do not divide their tensor")
        pieces.append(np.repeat(of_runs, (stop - start) // len(of_runs)))
        tensors.append((fields.text(run, "name"), stop - start))
        start = stop
    if start != parameters:
        raise FieldError("runs of blocks do not cover the parameters")
    return tuple(tensors), np.concatenate(pieces)


def read_round(arrays: Arrays, layout: Layout) -> RoundEvidence:
    """One round's archive as RoundEvidence; shapes must agree with each other and the layout."""
    clients = integers(arrays, "clients", (None,))
    participants = len(clients)
    batch_size = integers(arrays, "batch_size", (participants, None))
    queries = batch_size.shape[1]
    if (participants == 0) != (queries == 0):
        raise FieldError("batch_size is empty")
    pairs, blocks = (participants, queries), len(layout.sizes)
    attempt = integers(arrays, "attempt", ())
    offsets = integers(arrays, "record_offsets", (participants * queries + 1,))
    raw = floats(arrays, "raw_norms", (None,), finite=False)
    clipped = floats(arrays, "clipped_norms", raw.shape, finite=False)
    if offsets[0] != 0 or offsets[-1] != len(raw) or np.any(np.diff(offsets) < 0):
        raise FieldError("record_offsets do not cover the norms")
    moment = None
    if layout.beta2 is not None:
        shape = (participants, blocks)
        moment = SecondMoment(
            noisy=floats(arrays, "v_noisy", shape),
            clean=floats(arrays, "v_clean", shape),
            corrected=floats(arrays, "v_corrected", shape),
            subtracted=floats(arrays, "subtracted", (participants,)),
            steps=integers(arrays, "tau", (participants,)),
            floored=integers(arrays, "floored", shape),
        )
    return RoundEvidence(
        clients=clients,
        attempt=int(attempt),
        batch_size=batch_size,
        inclusions=integers(arrays, "inclusions", (None,)),
        record_offsets=offsets,
        raw_norms=raw,
        clipped_norms=clipped,
        nonfinite=integers(arrays, "nonfinite", pairs),
        divisor=floats(arrays, "divisor", pairs),
        noise_sum_squares=floats(arrays, "noise_sum_squares", (*pairs, blocks)),
        noise_sample=floats(arrays, "noise_sample", (*pairs, len(layout.sample_coordinates))),
        clean_sum_squares=floats(arrays, "clean_sum_squares", (*pairs, blocks)),
        second_moment=moment,
        upload_sha256=byte_rows(arrays, "upload_sha256", (participants, 32)),
        commitment=byte_rows(arrays, "commitment", (participants, 32))
        if "commitment" in arrays
        else None,
        noise_silent=integers(arrays, "noise_silent", pairs) if "noise_silent" in arrays else None,
        noise_largest=floats(arrays, "noise_largest", pairs) if "noise_largest" in arrays else None,
        rows_sha256=byte_rows(arrays, "rows_sha256", (participants, 32))
        if "rows_sha256" in arrays
        else None,
        seen=read_seen(arrays),
        rows_used=integers(arrays, "rows_used", (None,)) if "rows_used" in arrays else None,
    )


@dataclass(frozen=True)
class CoordinateSums:
    """Sums of squared noise at each coordinate over a whole run.

    Attributes:
        rounds: over how many rounds.
        squares: [d] in units of the variance charged, or [k] where k of them were chosen.
        chosen: whether the coordinates are chosen ones.
        last: what the last round added to them; None where the coordinates are chosen ones.
    """

    rounds: int
    squares: Floats
    chosen: bool = False
    last: Floats | None = None


def read_coordinate_sums(arrays: Arrays, layout: Layout) -> CoordinateSums:
    """The archive of sums by coordinate.

    Raises:
        FieldError: an array is missing, or has another type, shape or range.
    """
    if layout.unit == "loop":
        return _chosen_sums(arrays, layout)
    before = floats(arrays, "before", (layout.parameters,))
    last = floats(arrays, "last", (layout.parameters,))
    if np.any(before < 0.0) or np.any(last < 0.0):
        raise FieldError("a sum of squares is negative")
    return CoordinateSums(int(integers(arrays, "rounds", ())), before + last, last=last)


def _chosen_sums(arrays: Arrays, layout: Layout) -> CoordinateSums:
    chosen = integers(arrays, "chosen", (None,))
    squares = floats(arrays, "squares", chosen.shape)
    if not len(chosen) or np.any(np.diff(chosen) <= 0) or chosen[-1] >= layout.parameters:
        raise FieldError("chosen does not name coordinates in rising order")
    if np.any(squares < 0.0):
        raise FieldError("a sum of squares is negative")
    return CoordinateSums(int(integers(arrays, "rounds", ())), squares, chosen=True)


def read_probe(arrays: Arrays) -> ProbeResults:
    """The probe's archive; norms are recomputed from the sums where these were kept."""
    difference = floats(arrays, "difference_norm", (None,), finite=False)
    pairs = len(difference)
    if pairs == 0:
        raise FieldError("difference_norm is empty")
    batch_size = integers(arrays, "batch_size", (pairs,))
    if "sums_with" in arrays or "sums_without" in arrays:
        with_record = floats(arrays, "sums_with", (pairs, None), finite=False)
        without = floats(arrays, "sums_without", with_record.shape, finite=False)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.linalg.norm(with_record - without, axis=1)
            norm_with = np.linalg.norm(with_record, axis=1)
            norm_without = np.linalg.norm(without, axis=1)
    else:
        norm_with = floats(arrays, "norm_with", (pairs,), finite=False)
        norm_without = floats(arrays, "norm_without", (pairs,), finite=False)
    return ProbeResults(
        names=texts(arrays, "names", pairs),
        kinds=texts(arrays, "kind", pairs),
        clipping_norm=float(floats(arrays, "clipping_norm", ())),
        batch_size=batch_size,
        difference_norm=difference,
        norm_with=norm_with,
        norm_without=norm_without,
    )


@dataclass(frozen=True)
class Holdings:
    """Who was given which record, and who works on which.

    Attributes:
        client_of_record: client of every training record by the partition, [n].
        held: rows of the data set that the clients work on, client after client, [m].
        offsets: where each client's rows begin in them, [N+1].
        contents: keyed digest of what lies under each of them where the client has it, [m, 16];
            None where that is not told.
    """

    client_of_record: Integers
    held: Integers
    offsets: Integers
    contents: Integers | None = None

    def of(self, client: int) -> Integers:
        """Rows that a client works on, in its order."""
        return self.held[self.offsets[client] : self.offsets[client + 1]]

    @property
    def counts(self) -> Integers:
        """How many rows each client works on, [N]."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Moments:
    """Moments of numbers as the model reads them, before images are resized.

    One row a client, and a last one for all together.

    Attributes:
        numbers: [N+1] how many; 0 where they were not taken.
        mean: [N+1].
        deviation: [N+1] standard deviation.
        varying: [N+1] how many of the numbers lie in columns that are not constant.
        reach: how far the numbers reach; None in runs from before.
    """

    numbers: Integers
    mean: Floats
    deviation: Floats
    varying: Integers
    reach: Reach | None = None


@dataclass(frozen=True)
class Reach:
    """How far numbers reach, one row a client, and a last one for all together.

    Attributes:
        least: [N+1].
        greatest: [N+1].
        lowest: [N+1] how often the least is reached.
        highest: [N+1] how often the greatest is.
        continuous: [N+1] of some columns, those of which more than half of the numbers differ.
        spanning: [N+1] those of them that reach from exactly 0 or -1 to exactly 1.
    """

    least: Floats
    greatest: Floats
    lowest: Integers
    highest: Integers
    continuous: Integers
    spanning: Integers


@dataclass(frozen=True)
class Records:
    """Which rows are trained on, and which records hold the same.

    Attributes:
        records: how many records were read, those held out included where they were read with them.
        rows: row of the data set of each training record, [n].
        labels: its label, [n].
        contents: keyed digest of what it holds, [n, 16]; None where there is too much to tell.
        test_contents: the same of the test records, [t, 16]; None as before.
    """

    records: int
    rows: Integers
    labels: Integers
    contents: Integers | None
    test_contents: Integers | None


@dataclass(frozen=True)
class People:
    """Whom records are about, as numbers by which one person is told from another.

    Attributes:
        stored: person of each record that was read, those held out with them included, [m].
        test: person of each record of a test part of its own, [t]; None where there is none.
        digests: what tells them apart in the archive, one after another, [m + t, 16].
    """

    stored: Integers
    test: Integers | None
    digests: Integers


def read_people(arrays: Arrays) -> People:
    """The archive of whom records are about.

    Raises:
        FieldError: an array is missing, or does not fit the others.
    """
    stored = byte_rows(arrays, "stored", (None, 16))
    test = byte_rows(arrays, "test", (None, 16)) if "test" in arrays else None
    both = stored if test is None else np.concatenate([stored, test])
    numbers = np.unique(both, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
    return People(numbers[: len(stored)], None if test is None else numbers[len(stored) :], both)


@dataclass(frozen=True)
class Seen:
    """Each batch of a round whose gradient was asked for, and one record of it as it lay in memory.

    Attributes:
        clients: whose batch it was, [k].
        batches: keyed digest of its rows, [k, 8]; None where not every query is told.
        rows: the record's row in the data set, [k].
        contents: keyed digest of what it held, [k, 16].
    """

    clients: Integers
    batches: Integers | None
    rows: Integers
    contents: Integers


def read_seen(arrays: Arrays) -> Seen | None:
    """What a round's archive says of single records; None where it does not.

    Raises:
        FieldError: an array is missing, or does not fit the others.
    """
    if "seen_rows" not in arrays:
        return None
    rows = integers(arrays, "seen_rows", (None,))
    return Seen(
        clients=integers(arrays, "seen_clients", rows.shape),
        batches=byte_rows(arrays, "seen_batches", (len(rows), 8))
        if "seen_batches" in arrays
        else None,
        rows=rows,
        contents=byte_rows(arrays, "seen_contents", (len(rows), 16)),
    )


def read_records(arrays: Arrays) -> Records:
    """The archive of the data set's records.

    Raises:
        FieldError: an array is missing, or does not fit the others.
    """
    rows = integers(arrays, "rows", (None,))
    has_contents = "contents" in arrays
    return Records(
        records=int(integers(arrays, "records", ())),
        rows=rows,
        labels=integers(arrays, "labels", rows.shape),
        contents=byte_rows(arrays, "contents", (len(rows), 16)) if has_contents else None,
        test_contents=byte_rows(arrays, "test_contents", (None, 16)) if has_contents else None,
    )


def read_holdings(arrays: Arrays) -> Holdings:
    """The partition's archive.

    Raises:
        FieldError: an array is missing, or does not fit the others.
    """
    held = integers(arrays, "held", (None,))
    offsets = integers(arrays, "held_offsets", (None,))
    fits = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(held)
    if not fits or np.any(np.diff(offsets) < 0):
        raise FieldError("held_offsets do not cover the rows held")
    return Holdings(
        client_of_record=integers(arrays, "client_of_record", (None,)),
        held=held,
        offsets=offsets,
        contents=byte_rows(arrays, "held_contents", (len(held), 16))
        if "held_contents" in arrays
        else None,
    )


def read_moments(arrays: Arrays) -> Moments:
    """The archive of the inputs' moments.

    Raises:
        FieldError: an array is missing, or does not fit the others.
    """
    numbers = integers(arrays, "numbers", (None,))
    deviation = floats(arrays, "deviation", numbers.shape)
    varying = integers(arrays, "varying", numbers.shape)
    if np.any(deviation < 0.0) or np.any(varying > numbers):
        raise FieldError("deviation or varying is out of range")
    reach = None
    if "spanning" in arrays:
        shape = numbers.shape
        reach = Reach(
            least=floats(arrays, "least", shape),
            greatest=floats(arrays, "greatest", shape),
            lowest=integers(arrays, "lowest", shape),
            highest=integers(arrays, "highest", shape),
            continuous=integers(arrays, "continuous", shape),
            spanning=integers(arrays, "spanning", shape),
        )
        if np.any(reach.spanning > reach.continuous):
            raise FieldError("spanning is out of range")
    return Moments(numbers, floats(arrays, "mean", numbers.shape), deviation, varying, reach)


def private_numbers(evidence: RoundEvidence) -> Mapping[str, Floats]:
    """Arrays of a round that no other file may repeat."""
    names = ("raw_norms", "noise_sum_squares", "noise_sample", "clean_sum_squares")
    found = {name: getattr(evidence, name) for name in names}
    if evidence.second_moment is not None:
        found["v_clean"] = evidence.second_moment.clean
    return found
