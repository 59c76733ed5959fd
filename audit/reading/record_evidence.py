"""What the evidence says of the records: whose they are, and the moments of what the model reads.

`bundle` reads the two archives through this module, for the checks "partition" and
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
    """

    client_of_record: Integers
    held: Integers
    offsets: Integers

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
    """

    numbers: Integers
    mean: Floats
    deviation: Floats
    varying: Integers


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
    return Holdings(integers(arrays, "client_of_record", (None,)), held, offsets)


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
    return Moments(numbers, floats(arrays, "mean", numbers.shape), deviation, varying)
