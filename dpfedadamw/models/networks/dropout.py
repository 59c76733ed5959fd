"""Dropout whose mask for a record depends on that record and on the model's weights alone.

Ordinary dropout draws one mask for a whole batch, from a generator that goes on from batch to
batch. Put one record in, and the masks of all records behind it move: the clipped sum of all others
changes, and clipping no longer bounds what one record does. Here a record's mask follows from a
digest of its contents and of the weights of the moment. Its gradient is then a function of weights
and record alone, as the analysis of every clipped sum assumes. It does not depend on the other
records of the batch, on how the batch is split, or on who knows the digest. Masks change with every
step, because the weights do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dpfedadamw.errors import DpfedadamwError

_SEED_BYTES = 8


class DropoutError(DpfedadamwError):
    """Masks cannot be made where the model runs."""


class RecordDropout(nn.Module):
    """Zeroes entries with a probability and scales up the others, with one mask a record.

    Works inside `dropping` only, which tells it whose records are in the batch.

    Args:
        p: Probability of an entry to be zeroed, in [0, 1); named as torch's dropout names it, so
            that what asks any dropout for its rate finds it.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.number = 0
        self.seeds: list[int] | None = None
        self.places: list[int] | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Drop entries of values [b, …]; all of them stay in evaluation mode."""
        if not self.training or not self.p:
            return values
        if self.seeds is None or len(self.seeds) != len(values):
            raise DropoutError(
                "dropout by record needs the records as the first dimension, and a model that "
                "passes them on to it"
            )
        dropped = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
        generator = torch.Generator(values.device)
        for record, seed in zip(self._drawn(dropped), self.seeds, strict=True):
            generator.manual_seed((seed + self.number) % 2**63)
            # Always drawn in float32: masks are the same for a model in float64.
            drawn = torch.rand(
                record.shape, generator=generator, device=values.device, dtype=torch.float32
            )
            torch.lt(drawn, self.p, out=record)
        return values.masked_fill(dropped, 0.0) * (1.0 / (1.0 - self.p))

    def _drawn(self, dropped: Tensor) -> Iterable[Tensor]:
        """Each record's part of a mask [b, …] that is drawn.

        Of a text its own places alone. How many others the batch makes room for is up to who shares
        it, and must not move the numbers that this record draws; nothing reads what stands there.
        """
        if self.places is None or dropped.dim() < 3 or dropped.shape[1] != max(self.places):
            return dropped
        return (record[:count] for record, count in zip(dropped, self.places, strict=True))

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"p={self.p}"


def drops(model: nn.Module) -> bool:
    """Whether a model drops entries while it trains."""
    return any(layer.p for layer in _layers(model))


def number_layers(model: nn.Module) -> None:
    """Give every `RecordDropout` of a model a number, so that no two draw the same masks."""
    for number, layer in enumerate(_layers(model), start=1):
        # Far apart: seeds are sums of a digest and this.
        layer.number = number * 0x9E3779B97F4A7C15 % 2**63


@contextmanager
def dropping(
    model: nn.Module, records: Tensor, weights: Tensor, places: list[int] | None = None
) -> Iterator[None]:
    """Tell a model's `RecordDropout` layers which records a forward pass is on.

    Args:
        model: Does nothing where it has no such layer, or is in evaluation mode.
        records: The batch [b, …] as the model gets it.
        weights: A small trained tensor; masks change whenever it does.
        places: Of texts that are cut to the longest of them: how many places of each are its own.

    Raises:
        DropoutError: If the records are hidden by a transformation of functions (vmap).
    """
    layers = [layer for layer in _layers(model) if layer.training and layer.p]
    if not layers:
        yield
        return
    if torch._C._functorch.is_functorch_wrapped_tensor(records):
        raise DropoutError(
            "dropout cannot run under the clipping engine vmap, which hides the records; use "
            "engine auto, book-keeping or loop, or a dropout of 0"
        )
    seeds = _seeds(records, weights)
    for layer in layers:
        layer.seeds, layer.places = seeds, places
    try:
        yield
    finally:
        for layer in layers:
            layer.seeds = layer.places = None


def _layers(model: nn.Module) -> list[RecordDropout]:
    return [layer for layer in model.modules() if isinstance(layer, RecordDropout)]


def _seeds(records: Tensor, weights: Tensor) -> list[int]:
    # Weights have one copy a record where a clipped sum is formed, and none elsewhere; floats of
    # one value have one digest in float32 and in float64.
    key = weights.detach().to("cpu", torch.float64).numpy().tobytes()
    rows = records.detach().cpu()
    rows = rows.double() if rows.is_floating_point() else rows.long()
    digests = (
        hashlib.blake2b(row.numpy().tobytes(), digest_size=_SEED_BYTES, key=_short(key)).digest()
        for row in rows.contiguous()
    )
    return [int.from_bytes(digest, "big") for digest in digests]


def _short(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=32).digest()
