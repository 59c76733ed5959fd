"""The house's messages as Flower's records, and back: arrays and plain values, nothing else.

A broadcast and an upload are named arrays; the rest of a request to a client is plain numbers.
"""

from __future__ import annotations

from dataclasses import asdict

from flwr.app import Array, ArrayRecord, ConfigRecord

from dpfedadamw.federation.arrivals import ArrivalError
from dpfedadamw.federation.flower.arrays import fits, message_of_wires, wires_of
from dpfedadamw.federation.stations import Asked


def arrays_of(message: bytes) -> ArrayRecord:
    """A serialised broadcast or upload as arrays by name."""
    return ArrayRecord({name: Array(*wire) for name, wire in wires_of(message).items()})


def message_of(record: ArrayRecord, most: int | None = None) -> bytes:
    """The very bytes that `arrays_of` was given.

    Args:
        record: The arrays.
        most: Bytes that a message may have; None for any number.

    Raises:
        ArrivalError: If it is longer, or holds what is no array of numbers.
    """
    wires = {
        name: (one.dtype, tuple(one.shape), one.stype, one.data) for name, one in record.items()
    }
    if most is not None and not fits(wires, most):
        raise ArrivalError(f"a client: its upload is longer than the {most} bytes that it may have")
    try:
        return message_of_wires(wires)
    except ValueError as error:
        raise ArrivalError(f"a client: its upload holds {error}") from None


def config_of(asked: Asked) -> ConfigRecord:
    """What a client is asked, as plain values."""
    return ConfigRecord(asdict(asked))


def asked_of(record: ConfigRecord) -> Asked:
    """What `config_of` wrote down."""
    return Asked(**{name: record[name] for name in Asked.__dataclass_fields__})
