"""The house's messages as Flower's records, and back: arrays and plain values, nothing else.

A broadcast and an upload are named arrays; what a client is asked beside them is plain numbers.
"""

from __future__ import annotations

from dataclasses import asdict

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord

from dpfedadamw.federation.stations import Asked
from dpfedadamw.vectors.packing import packed, views


def arrays_of(message: bytes) -> ArrayRecord:
    """A serialised broadcast or upload as arrays by name."""
    return ArrayRecord({name: Array(value.numpy()) for name, value in views(message).items()})


def message_of(record: ArrayRecord) -> bytes:
    """The very bytes that `arrays_of` was given."""
    # Flower's arrays are read without pickles; a copy, for they cannot be written to.
    return packed({name: torch.from_numpy(one.numpy()) for name, one in record.items()})


def config_of(asked: Asked) -> ConfigRecord:
    """What a client is asked, as plain values."""
    return ConfigRecord(asdict(asked))


def asked_of(record: ConfigRecord) -> Asked:
    """What `config_of` wrote down."""
    return Asked(**{name: record[name] for name in Asked.__dataclass_fields__})
