"""Typed reading of arrays from parsed, hostile archives.

What `fields` is to mappings, this is to the arrays of an .npz: a wrong type, shape or range becomes
one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from audit.untrusted.fields import FieldError

Arrays = Mapping[str, NDArray[np.generic]]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def _array(
    arrays: Arrays, name: str, shape: tuple[int | None, ...], kinds: str
) -> NDArray[np.generic]:
    if name not in arrays:
        raise FieldError(f"{name} is missing")
    array = arrays[name]
    if array.dtype.kind not in kinds:
        raise FieldError(f"{name} has type {array.dtype.name}")
    fits = len(array.shape) == len(shape) and all(
        want is None or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise FieldError(f"{name} does not have the shape that the other arrays ask for")
    return array


def integers(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> Integers:
    """The array `name` of whole numbers from 0, of this shape (None: any length)."""
    array = _array(arrays, name, shape, "iu")
    if array.size and (array.max() > np.int64(2**53) or array.min() < np.int64(0)):
        raise FieldError(f"{name} has a number outside 0 to 2^53")
    return array.astype(np.int64)


def floats(
    arrays: Arrays, name: str, shape: tuple[int | None, ...], *, finite: bool = True
) -> Floats:
    """The array `name` of numbers, of this shape (None: any length), all finite if asked for."""
    array = _array(arrays, name, shape, "f").astype(np.float64)
    if finite and not np.isfinite(array).all():
        raise FieldError(f"{name} has a number that is not finite")
    return array


def bytes_of(arrays: Arrays, name: str) -> bytes:
    """The bytes of the array `name`."""
    array = _array(arrays, name, (None,), "u")
    if array.dtype.itemsize != 1:
        raise FieldError(f"{name} has type {array.dtype.name}")
    return array.tobytes()


def texts(arrays: Arrays, name: str, count: int | None) -> tuple[str, ...]:
    """The `count` short texts (None: any number) of the array `name`."""
    array = _array(arrays, name, (count,), "U")
    if array.dtype.itemsize > 4 * 256:
        raise FieldError(f"{name} has texts of more than 256 characters")
    return tuple(str(item) for item in array)
