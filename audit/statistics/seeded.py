"""Noise that anybody can draw again: the usual generators, seeded with the usual numbers.

Statistics of the check "randomness". NumPy's generators and Python's are here anyway. torch's CPU
generator is a Mersenne Twister whose words its `normal_` turns into numbers sixteen at a time, by
Box and Muller's method (aten/src/ATen/native/cpu/DistributionTemplates.h); that is done again here,
as the auditor has no torch. Recorded noise is compared with what these would have given, from each
of their first places on: whatever was drawn before, and however often.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from audit.untrusted.archives import Floats, Integers

SEEDS = (
    *range(24), 42, 99, 100, 101, 123, 314, 666, 777, 999, 1000, 1111, 1234, 1337, 1729, 2020, 2021,
    2022, 2023, 2024, 2025, 2026, 3407, 4242, 12345, 31415, 123456,
)  # fmt: skip
# Places of a generator's sequence at which the noise may begin.
_PLACES = 1 << 12
# Furthest coordinate that is compared, how many are, and how many must be there.
_FURTHEST, _COMPARED, _FEWEST = 1 << 17, 6, 3
# Noise is recorded to a few millionths of its standard deviation, and torch draws in float32.
_CLOSE = 2e-5
_LANES = 16
# Words that may be drawn before a batch, and how unlikely one must be to be recognised.
_AHEAD, _FEWEST_BITS = 16, 48.0


@dataclass(frozen=True)
class Drawn:
    """What a generator gives, by place.

    Attributes:
        name: generator and seed.
        lower: number at each place whose distance from the vector's start is 0 … 7 modulo 16.
        upper: the same for 8 … 15; where a generator goes one by one, both are the same.
    """

    name: str
    lower: NDArray[np.float32]
    upper: NDArray[np.float32]


def find_seed(rows: Iterable[Floats], coordinates: Integers, starts: Sequence[int]) -> str | None:
    """Which generator and seed would have given one of these noise vectors.

    Args:
        rows: noise at the coordinates, in units of its standard deviation, [m] each.
        coordinates: [m] increasing places in the vector.
        starts: where tensors begin that may have been drawn each by itself; 0 is one.

    Returns:
        Their names, such as "torch.manual_seed(0)"; None where none would.
    """
    asked = [
        (row[chosen], coordinates[chosen] - start)
        for row in rows
        for start, chosen in _within(coordinates, starts)
    ]
    if not asked:
        return None
    longest = _PLACES + max(int(places[-1]) for _, places in asked) + _LANES
    for drawn in _generators(1 << longest.bit_length()):
        if any(_matches(drawn, values, places) for values, places in asked):
            return drawn.name
    return None


def seeded_batch(rows: Integers, records: int, rate: float) -> bool:
    """Whether a batch is what torch's generator with a usual seed draws first.

    Opacus' sampler takes the records whose uniform number lies below the rate. A data loader may
    draw a seed for its workers before.

    Args:
        rows: records of the batch, rising.
        records: how many there are.
        rate: q.
    """
    if not 0.0 < rate < 1.0 or not len(rows):
        return False
    asked = np.zeros(records, dtype=bool)
    asked[rows] = True
    # Below that many bits of surprise a batch may be anybody's.
    surprise = len(rows) * -np.log2(rate) + (records - len(rows)) * -np.log2(1.0 - rate)
    if surprise < _FEWEST_BITS:
        return False
    for seed in SEEDS:
        words = np.random.RandomState(seed).randint(0, 1 << 32, records + _AHEAD, dtype=np.uint64)
        uniform = (words & np.uint64((1 << 24) - 1)).astype(np.float32) * np.float32(2.0**-24)
        below = uniform < np.float32(rate)
        if any(np.array_equal(below[ahead : ahead + records], asked) for ahead in range(_AHEAD)):
            return True
    return False


def _within(
    coordinates: Integers, starts: Sequence[int]
) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """For each start the first few coordinates behind it that are near enough."""
    for start in dict.fromkeys(starts):
        behind = (coordinates >= start) & (coordinates < start + _FURTHEST)
        chosen = behind & (np.cumsum(behind) <= _COMPARED)
        if chosen.sum() >= _FEWEST:
            yield start, chosen


def _matches(drawn: Drawn, values: Floats, places: Integers) -> bool:
    """Whether the values stand in a generator's sequence at these distances, anywhere."""
    offsets: NDArray[np.int64] | None = None
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        numbers = drawn.lower if place % _LANES < _LANES // 2 else drawn.upper
        if offsets is None:
            here = numbers[place : place + _PLACES]
            offsets = np.flatnonzero(np.abs(here - np.float32(value)) < _CLOSE)
        else:
            offsets = offsets[offsets + place < len(numbers)]
            offsets = offsets[np.abs(numbers[offsets + place] - value) < _CLOSE]
        if not len(offsets):
            return False
    return True


@lru_cache(maxsize=1)
def _generators(length: int) -> tuple[Drawn, ...]:
    """All generators with all seeds; sequences of so many numbers."""
    return tuple(_all_drawn(length))


def _all_drawn(length: int) -> Iterator[Drawn]:
    for seed in SEEDS:
        yield _one_by_one(
            f"np.random.default_rng({seed})", np.random.default_rng(seed).standard_normal(length)
        )
        legacy = np.random.RandomState(seed)
        yield _one_by_one(f"np.random.seed({seed})", legacy.standard_normal(length))
        words = np.random.RandomState(seed).randint(
            0, 1 << 32, 2 * (length + _LANES), dtype=np.uint64
        )
        narrow = (words[: length + _LANES] & np.uint64((1 << 24) - 1)).astype(np.float32)
        name = f"torch.manual_seed({seed})"
        yield _box_muller(name, narrow * np.float32(2.0**-24), length)
        for parity in (0, 1):
            pairs = words[parity : len(words) - parity].reshape(-1, 2)
            wide = ((pairs[:, 0] << np.uint64(32)) | pairs[:, 1]) & np.uint64((1 << 53) - 1)
            yield _box_muller(name, wide.astype(np.float64) * 2.0**-53, length)
    short = min(length, 2048)
    for seed in SEEDS:
        generator = random.Random(seed)
        numbers = np.array([generator.gauss(0.0, 1.0) for _ in range(short)])
        yield _one_by_one(f"random.seed({seed})", numbers)


def _one_by_one(name: str, numbers: Floats) -> Drawn:
    kept = numbers.astype(np.float32)
    return Drawn(name, kept, kept)


def _box_muller(name: str, uniform: NDArray[np.floating], length: int) -> Drawn:
    """Normal numbers of torch from uniform ones, as if a block of sixteen began anywhere.

    Of a block's sixteen uniform numbers the first eight give radii and the others angles; place j
    and place j + 8 become cosine and sine of the same pair.
    """
    half = _LANES // 2
    radius = np.sqrt(-2.0 * np.log1p(-uniform))
    angle = 2.0 * np.pi * uniform
    lower = radius[:-half] * np.cos(angle[half:])
    upper = np.concatenate([np.full(half, np.inf), radius[:-half] * np.sin(angle[half:])])
    return Drawn(name, lower[:length].astype(np.float32), upper[:length].astype(np.float32))
