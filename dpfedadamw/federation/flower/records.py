"""The house's messages as Flower's records, and back: arrays and plain values, nothing else.

A broadcast and an upload are named arrays; what a client is asked beside them is plain numbers.

Flower's arrays have NumPy's format. They are written and read here, where they lie: Flower's own
ways copy each vector three times, which for a model of millions of parameters costs as much as a
tenth of a client's work.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from numpy.lib import format as numpy_format
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.federation.arrivals import ArrivalError
from dpfedadamw.federation.stations import Asked
from dpfedadamw.vectors.packing import packed, views

# How Flower names NumPy's format.
_NUMPY = "numpy.ndarray"
# Bytes of descriptions beside an upload's numbers: there are a few arrays, and NumPy describes each
# in about a hundred.
_HEADS = 1 << 16


def arrays_of(message: bytes) -> ArrayRecord:
    """A serialised broadcast or upload as arrays by name."""
    return ArrayRecord({name: _written(value.numpy()) for name, value in views(message).items()})


def message_of(record: ArrayRecord, most: int | None = None) -> bytes:
    """The very bytes that `arrays_of` was given.

    Args:
        record: The arrays.
        most: Bytes that a message may have; None for any number.

    Raises:
        ArrivalError: If it is longer, or holds what is no array of numbers.
    """
    if most is not None and sum(len(one.data) for one in record.values()) > most + _HEADS:
        raise ArrivalError(f"a client: its upload is longer than the {most} bytes that it may have")
    try:
        return packed({name: _tensor(_read(one)) for name, one in record.items()})
    except (ValueError, TypeError, SyntaxError) as error:
        kind = type(error).__name__
        raise ArrivalError(f"a client: its upload holds what is no array ({kind})") from None


def config_of(asked: Asked) -> ConfigRecord:
    """What a client is asked, as plain values."""
    return ConfigRecord(asdict(asked))


def asked_of(record: ConfigRecord) -> Asked:
    """What `config_of` wrote down."""
    return Asked(**{name: record[name] for name in Asked.__dataclass_fields__})


def _written(values: NDArray[Any]) -> Array:
    """An array as Flower writes it, its numbers copied once."""
    head = BytesIO()
    numpy_format.write_array_header_1_0(head, numpy_format.header_data_from_array_1_0(values))
    data = b"".join([head.getvalue(), np.ascontiguousarray(values).data])
    return Array(str(values.dtype), values.shape, _NUMPY, data)


def _tensor(values: NDArray[Any]) -> Tensor:
    with warnings.catch_warnings():
        # That nobody may write into it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.as_tensor(values)


def _read(array: Array) -> NDArray[Any]:
    """An array whose numbers stay where they lie; nobody may write into it.

    Raises:
        ValueError: If it is no array of numbers, as far as its own words tell.
    """
    if array.stype != _NUMPY:
        raise ValueError("is not in NumPy's format")
    file = BytesIO(array.data)
    if numpy_format.read_magic(file) != (1, 0):
        raise ValueError("is in another version of NumPy's format")
    shape, by_column, kind = numpy_format.read_array_header_1_0(file)
    # What needs a pickle to be read is no number.
    if by_column or kind.hasobject or kind.kind not in "fiu" or not kind.isnative:
        raise ValueError("holds no plain numbers")
    if len(array.data) - file.tell() != math.prod(shape) * kind.itemsize:
        raise ValueError("is not as long as it says")
    return np.frombuffer(array.data, kind, offset=file.tell()).reshape(shape)
