"""The private evidence of single participations, and which of them must be there.

How much is kept follows from public sizes, and which participations follow from a keyed digest of
what they uploaded; both are worked out anew here, so that a trainer cannot leave out what it likes.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import numpy as np

from audit.untrusted.arrays import Arrays, Floats, Integers, bytes_of, floats

CAPACITY_BYTES = 1 << 26
MOST_FILES = 500
FEWEST_WHOLE = 16
_OTHER_VECTORS = 8
_FLOAT_BYTES = 4
_MARGIN = 0.75


@dataclass(frozen=True)
class Extent:
    """How much of a run is kept.

    Attributes:
        share: chance of a participation to be kept; the first and the last always are.
        coordinates: coordinates kept of whole vectors; None for all.
    """

    share: float
    coordinates: int | None


@dataclass(frozen=True)
class Exchange:
    """One participation: Q queries, d' recorded coordinates, B blocks, m sampled coordinates.

    Attributes:
        broadcast: the serialised broadcast.
        upload: the serialised upload.
        memory_before: what the client had kept, serialised.
        memory_after: what it keeps, serialised.
        points: [Q, d'] where gradients were asked for.
        gradients: [Q, d'] what was handed out.
        square_sums: [Q, B] block sums of squares of the whole gradients; None where all
            coordinates are recorded.
        clean_sample: [Q, m] clipped sums before noise at the coordinates of the sampled noise.
    """

    broadcast: bytes
    upload: bytes
    memory_before: bytes
    memory_after: bytes
    points: Floats
    gradients: Floats
    square_sums: Floats | None
    clean_sample: Floats


@dataclass(frozen=True)
class Release:
    """One round at client level: broadcasts before and after, and the noised mean in between."""

    broadcast: bytes
    combined: bytes
    released: Floats


def extent(parameters: int, queries: int, participations: int) -> Extent:
    """How much of a run must be kept: everything, a share, or a share and a sample of coordinates.

    Args:
        parameters: d.
        queries: gradients of one participation; 0 for a round's release at client level.
        participations: of the whole run.
    """
    row = _FLOAT_BYTES * (2 * queries + _OTHER_VECTORS)
    whole = CAPACITY_BYTES // (row * parameters)
    fewest = min(participations, FEWEST_WHOLE)
    if whole < fewest:
        count = max(1, CAPACITY_BYTES // (row * fewest))
        return Extent(min(1.0, _MARGIN * FEWEST_WHOLE / participations), count)
    fitting = min(whole, MOST_FILES)
    return Extent(1.0 if fitting >= participations else _MARGIN * fitting / participations, None)


def is_kept(salt: bytes, round_index: int, client: int, digest: bytes, share: float) -> bool:
    """Whether the keyed digest of an upload falls into the share that is kept."""
    message = b"kept for replay %d %d " % (round_index, client) + digest
    drawn = hmac.digest(salt, message, "sha256")
    return int.from_bytes(drawn[:8], "big") < share * 2.0**64


def kept_coordinates(salt: bytes, parameters: int, count: int, sample: Integers) -> Integers:
    """One coordinate of each of ``count`` equal stretches, drawn with the salt; and the sampled."""
    stream = hashlib.shake_256(b"kept coordinates " + salt).digest(8 * count)
    numbers = [int.from_bytes(stream[8 * k : 8 * k + 8], "big") for k in range(count)]
    starts = [k * parameters // count for k in range(count + 1)]
    chosen = [
        start + number % (stop - start)
        for start, stop, number in zip(starts[:-1], starts[1:], numbers, strict=True)
    ]
    return np.union1d(np.asarray(chosen, dtype=np.int64), sample)


def read_exchange(arrays: Arrays, recorded: int, blocks: int, sample: int) -> Exchange:
    """One participation's archive.

    Args:
        arrays: the archive.
        recorded: d'.
        blocks: B.
        sample: m.

    Raises:
        FieldError: an array is missing, or has another type, shape or range.
    """
    points = floats(arrays, "points", (None, recorded), finite=False)
    queries = len(points)
    sums = None
    if "square_sums" in arrays:
        sums = floats(arrays, "square_sums", (queries, blocks), finite=False)
    return Exchange(
        broadcast=bytes_of(arrays, "broadcast"),
        upload=bytes_of(arrays, "upload"),
        memory_before=bytes_of(arrays, "memory_before"),
        memory_after=bytes_of(arrays, "memory_after"),
        points=points,
        gradients=floats(arrays, "gradients", (queries, recorded), finite=False),
        square_sums=sums,
        clean_sample=floats(arrays, "clean_sample", (queries, sample), finite=False),
    )


def read_release(arrays: Arrays, recorded: int) -> Release:
    """One client-level round's archive.

    Raises:
        FieldError: an array is missing, or has another type, shape or range.
    """
    return Release(
        broadcast=bytes_of(arrays, "broadcast"),
        combined=bytes_of(arrays, "combined"),
        released=floats(arrays, "released", (recorded,), finite=False),
    )
