"""Named arrays in the form in which Flower carries them, without Flower: NumPy's format.

They are written and read here, where they lie: Flower's own ways copy each vector three times,
which for a model of millions of parameters costs as much as a tenth of a client's work.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.lib import format as numpy_format
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.federation.flower.frames import Wire
from dpfedadamw.vectors.packing import packed, views

# How Flower names NumPy's format.
_NUMPY = "numpy.ndarray"
# Bytes of descriptions next to a message's numbers: there are a few arrays, and NumPy describes
# each in about a hundred.
HEADS = 1 << 16


def fits(wires: Mapping[str, Wire], most: int) -> bool:
    """Whether all arrays together are no longer than those of a message of so many bytes."""
    return sum(len(data) for *_, data in wires.values()) <= most + HEADS


def wires_of(message: bytes) -> dict[str, Wire]:
    """A serialised broadcast or upload as arrays by name."""
    return {name: _written(value.numpy()) for name, value in views(message).items()}


def message_of_wires(wires: Mapping[str, Wire]) -> bytes:
    """The very bytes that `wires_of` was given.

    Raises:
        ValueError: If one holds what is no array of numbers.
    """
    try:
        return packed({name: _tensor(_read(one)) for name, one in wires.items()})
    except Exception as error:
        # NumPy's reader names no errors: a head may raise one of its tokens, or want much memory.
        raise ValueError(f"what is no array ({type(error).__name__})") from None


def _written(values: NDArray[Any]) -> Wire:
    """An array as Flower writes it, its numbers copied once."""
    head = BytesIO()
    numpy_format.write_array_header_1_0(head, numpy_format.header_data_from_array_1_0(values))
    data = b"".join([head.getvalue(), np.ascontiguousarray(values).data])
    return str(values.dtype), values.shape, _NUMPY, data


def _tensor(values: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # That nobody may write into it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.as_tensor(values)


def _read(wire: Wire) -> NDArray[Any]:
    """An array whose numbers stay where they lie; nobody may write into it.

    Raises:
        ValueError: If it is no array of numbers, as far as its own words tell.
    """
    _, _, form, data = wire
    if form != _NUMPY:
        raise ValueError("is not in NumPy's format")
    file = BytesIO(data)
    if numpy_format.read_magic(file) != (1, 0):
        raise ValueError("is in another version of NumPy's format")
    shape, by_column, kind = numpy_format.read_array_header_1_0(file)
    # What needs a pickle to be read is no number.
    if by_column or kind.hasobject or kind.kind not in "fiu" or not kind.isnative:
        raise ValueError("holds no plain numbers")
    if len(data) - file.tell() != math.prod(shape) * kind.itemsize:
        raise ValueError("is not as long as it says")
    return np.frombuffer(data, kind, offset=file.tell()).reshape(shape)
