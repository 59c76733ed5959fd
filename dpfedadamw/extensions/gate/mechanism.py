"""Sample and aggregate: each shard's update is clipped and their sum noised; no job is trusted.

The released mean is broadcast + (Σ_k clip_C(reply_k - broadcast) + N(0, (2Cσ)² I)) / K.

Why the sum moves by at most 2C. A record (or a person) lies in one shard, chosen by its own content
alone (`sharding`). What a shard answers is a function of that shard, of what was released before,
and of the shard's own coins. So neighbouring data change one term of the sum. That term may change
to any other, because nothing is known of the job's code, but both lie in the ball of radius C. So
their distance is at most 2C.

What neighbours are. A record is added or removed. A person, who is known by one cell, is added or
removed, or has other rows: the shard stays the same. A record or a person exchanged for another may
leave one shard and enter a second. Two terms change then, and the sum moves by up to 4C: that is
two steps of the promise, and costs what σ/2 does. Where the unit is the site there is one term, and
any data are a neighbour of any other. Zero-out adjacency, whose neighbour is a site that sends
zero, would need C alone there; 2C is the stronger promise.

The sum is exact: clipped updates are cut to a grid on which float64 adds without rounding, so that
the argument holds for the computed numbers too. Source of the method: Nissim, Raskhodnikova & Smith
2007 (sample and aggregate).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.gate.settings import Form, size_of

Arrays = Mapping[str, NDArray[Any]]
Vector = NDArray[np.float64]
# How far one unit's data move the sum, in units of C.
SENSITIVITY = 2.0
# K ≤ 2^12 updates of at most 2^40 grid steps a coordinate add up to less than 2^53, exactly.
_GRID_BITS = 40
# The factor and the product with it are rounded; the margin keeps the norm at or below C.
_MARGIN = 1.0 - 2.0**-30


def flat(arrays: object, model: Mapping[str, Form]) -> Vector | None:
    """All coordinates as one float64 vector, in the model's order; None if the form is another.

    Nothing of an array is called: a subclass could do anything.
    """
    if not isinstance(arrays, Mapping) or set(arrays) != set(model):
        return None
    whole = np.empty(sum(size_of(form) for form in model.values()), np.float64)
    start = 0
    for name, form in model.items():
        value = arrays[name]
        if type(value) is not np.ndarray:
            return None
        if value.shape != form.shape or value.dtype != np.dtype(form.dtype):
            return None
        whole[start : start + value.size] = value.reshape(-1)
        start += value.size
    return whole


def shaped(whole: Vector, model: Mapping[str, Form]) -> dict[str, NDArray[Any]]:
    """The inverse of `flat`, narrowed to the model's types."""
    found, start = {}, 0
    for name, form in model.items():
        size = size_of(form)
        part = whole[start : start + size].reshape(form.shape)
        with np.errstate(over="ignore"):  # It is public, and so is what overflows.
            found[name] = part.astype(form.dtype)
        start += size
    return found


def clipped(update: Vector, clip: float) -> Vector:
    """The update shortened to at most C, on the grid; zero if a value is not finite.

    Args:
        update: Any float64 vector.
        clip: C.
    """
    largest = float(np.max(np.abs(update), initial=0.0))
    if largest == 0.0 or not math.isfinite(largest):
        return np.zeros_like(update)
    # Divided first, so that no square overflows.
    direction = update / largest
    norm = float(np.linalg.norm(direction))
    longest = clip * _MARGIN / norm
    scaled = direction * longest if largest > longest else update
    # Rounded toward zero, which lengthens nothing; a power of two is exact to divide by.
    step = _step(clip)
    kept: Vector = np.trunc(scaled / step) * step
    return kept


def clipped_sum(
    broadcast: Vector, shards: Sequence[Arrays | None], model: Mapping[str, Form], clip: float
) -> Vector:
    """Σ_k clip_C(reply_k - broadcast); a reply that is missing or not in the form adds zero.

    Another reply is clipped in its place and multiplied by zero, because the time of a release is
    seen from outside, and must not say how many shards have answered.
    """
    total = np.zeros_like(broadcast)
    instead = {name: np.ones(one.shape, one.dtype) for name, one in model.items()}
    ones = np.ones_like(broadcast)
    for reply in shards:
        values = flat(reply, model)
        missing = values is None
        if values is None:
            values = flat(instead, model)
            assert values is not None
        with np.errstate(all="ignore"):
            update = values - broadcast
            counts = bool(np.isfinite(update).all() and update.any()) and not missing
            total += counts * clipped(update if counts else ones, clip)
    return total


def noised_mean(
    broadcast: Vector, total: Vector, shards: int, deviation: float, history: bytes
) -> Vector:
    """The broadcast moved by the noised sum over K. The noised sum lies on a grid of its own.

    All that follows the noise is arithmetic on the noised sum and on public numbers, so no low bit
    of the result says more than the noised sum does.

    Args:
        broadcast: What the server sent.
        total: The clipped sum.
        shards: K.
        deviation: 2Cσ.
        history: Digest of what the ledger was charged, this release included; the stream's key is
            bound to it, so that this noise cannot exist before its charge.
    """
    import torch

    from dpfedadamw.privacy.noise.key_tree import KEY_BYTES, NO_COIN, SERVER, stream_key
    from dpfedadamw.privacy.noise.noise import add_gaussian_noise
    from dpfedadamw.privacy.noise.streams import Stream

    # Drawn for this release and forgotten with it: no second release can have the same noise.
    leaf = secrets.token_bytes(KEY_BYTES)
    stream = Stream(stream_key(leaf, NO_COIN, "gate", 0, SERVER, 1, history))
    noisy = add_gaussian_noise(torch.from_numpy(total), deviation, stream).numpy()
    moved: Vector = broadcast + noisy / shards
    return moved


def _step(clip: float) -> float:
    """The grid of clipped updates: a power of two, from 2^-40 C to 2^-39 C."""
    _, exponent = math.frexp(clip)
    return math.ldexp(1.0, exponent - _GRID_BITS)
