"""Numbers that carry a bound on how far float32 arithmetic may have moved them.

The engine computes in float32, the replay in float64. Rather than guess a tolerance, every replayed
number carries the bound of a running error analysis (Wilkinson 1963; Higham 2002, section 3.3):
each operation hands on the bounds of its operands and adds its own rounding. What the engine
uploaded may differ from the replay by that bound and no more, coordinate by coordinate.

An operation is charged four float32 roundings (2^-22 of its result): its own, that of a constant,
and those by which a fused or reordered form of the same expression may differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from audit.untrusted.archives import Floats

ROUNDING = 2.0**-22
# Below the least normal float32 the error is no longer relative.
UNDERFLOW = 2.0**-126
# Half of the largest float32: where a result is beyond it, that of float32 may be infinite.
OVERFLOW = 2.0**127


@dataclass(frozen=True)
class Rounded:
    """A vector as it should be, and how far float32 may lie from it.

    Attributes:
        value: [n], float64; not a number where float32 cannot hold it, or what it was made of.
        bound: [n], absolute, at least 0; infinite where nothing can be said.
    """

    value: Floats
    bound: Floats

    def __add__(self, other: Rounded | Floats | float) -> Rounded:
        """The sum."""
        right = exact(other)
        return _rounded(self.value + right.value, self.bound + right.bound)

    def __sub__(self, other: Rounded | Floats | float) -> Rounded:
        """The difference."""
        right = exact(other)
        return _rounded(self.value - right.value, self.bound + right.bound)

    def __mul__(self, other: Rounded | Floats | float) -> Rounded:
        """The product, coordinate by coordinate."""
        right = exact(other)
        bound = np.abs(self.value) * right.bound + self.bound * (np.abs(right.value) + right.bound)
        return _rounded(self.value * right.value, bound)

    def __truediv__(self, other: Rounded | Floats | float) -> Rounded:
        """The quotient, coordinate by coordinate."""
        right = exact(other)
        value = self.value / right.value
        room = np.abs(right.value) - right.bound
        bound = (self.bound + np.abs(value) * right.bound) / np.where(room > 0.0, room, np.nan)
        return _rounded(value, np.where(np.isnan(bound), np.inf, bound))

    def square(self) -> Rounded:
        """The square."""
        return self * self

    def root(self) -> Rounded:
        """The square root: |√a − √b| is at most |a − b|/√a, and at most √|a − b|."""
        value = np.sqrt(np.maximum(self.value, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.where(value > 0.0, self.bound / value, np.inf)
        return _rounded(value, np.minimum(far, np.sqrt(self.bound)))

    def at_least(self, floor: Rounded | Floats | float) -> Rounded:
        """The greater of two, coordinate by coordinate; comparing does not round."""
        right = exact(floor)
        return Rounded(
            np.maximum(self.value, right.value),
            np.maximum(self.bound, np.broadcast_to(right.bound, self.bound.shape)),
        )

    def signs(self) -> Rounded:
        """−1, 0 or 1; either is possible where the bound reaches 0."""
        unsure = (np.abs(self.value) <= self.bound) & (self.bound > 0.0)
        return Rounded(np.sign(self.value), np.where(unsure, 2.0, 0.0))

    def at(self, index: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Rounded:
        """The coordinates of an index, which may repeat."""
        return Rounded(self.value[index], self.bound[index])


def exact(value: Rounded | Floats | float) -> Rounded:
    """A number that was recorded as it is, or is a constant."""
    if isinstance(value, Rounded):
        return value
    array = np.asarray(value, dtype=np.float64)
    return Rounded(array, np.zeros_like(array))


def known(values: Floats, relative: float) -> Rounded:
    """Values that the engine may have off by a share of themselves."""
    return Rounded(values, np.abs(values) * relative)


def mean_of(parts: list[Rounded]) -> Rounded:
    """The mean of several vectors, coordinate by coordinate."""
    value = np.mean([part.value for part in parts], axis=0)
    sizes = np.mean([np.abs(part.value) for part in parts], axis=0)
    # float32 divides the sum, which it may not hold although it could hold the mean.
    value = np.where(len(parts) * sizes < OVERFLOW, value, np.nan)
    bound = np.mean([part.bound for part in parts], axis=0)
    # Summing n numbers rounds n times, each time at most a share of the sum of sizes.
    return Rounded(value, bound + ROUNDING * len(parts) * sizes + UNDERFLOW)


def _rounded(value: Floats, bound: Floats) -> Rounded:
    value = np.where(np.abs(value) < OVERFLOW, value, np.nan)
    return Rounded(value, bound + ROUNDING * np.abs(value) + UNDERFLOW)
