"""What the evidence says of the records: whose they are, which are equal, and how they are scaled.

`bundle` reads the archives through this module, for the checks "partition" and
"outside-budget".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.untrusted.arrays import Arrays, Floats, Integers, floats, integers
from audit.untrusted.fields import FieldError


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
    """

    stored: Integers
    test: Integers | None


def read_people(arrays: Arrays) -> People:
    """The archive of whom records are about.

    Raises:
        FieldError: an array is missing, or does not fit the others.
    """
    stored = integers(arrays, "stored", (None, 16))
    test = integers(arrays, "test", (None, 16)) if "test" in arrays else None
    both = stored if test is None else np.concatenate([stored, test])
    numbers = np.unique(both, axis=0, return_inverse=True)[1].ravel().astype(np.int64)
    return People(numbers[: len(stored)], None if test is None else numbers[len(stored) :])


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
        batches=integers(arrays, "seen_batches", (len(rows), 8))
        if "seen_batches" in arrays
        else None,
        rows=rows,
        contents=integers(arrays, "seen_contents", (len(rows), 16)),
    )


def read_records(arrays: Arrays) -> Records:
    """The archive of the data set's records.

    Raises:
        FieldError: an array is missing, or does not fit the others.
    """
    rows = integers(arrays, "rows", (None,))
    told = "contents" in arrays
    return Records(
        records=int(integers(arrays, "records", ())),
        rows=rows,
        labels=integers(arrays, "labels", rows.shape),
        contents=integers(arrays, "contents", (len(rows), 16)) if told else None,
        test_contents=integers(arrays, "test_contents", (None, 16)) if told else None,
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
        contents=integers(arrays, "held_contents", (len(held), 16))
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
