"""A sum is released with Gaussian noise of standard deviation σC, added in float64 on a grid.

The oracle hands in the sum of clipped per-record gradients; what leaves here may be published. The
noise is drawn and added in float64 and the noisy sum is put on a fixed grid before anything is
narrowed to float32.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise.streams import Stream
from dpfedadamw.profiling import part
from dpfedadamw.vectors.memory import recycled

__all__ = ["Method", "NoiseAhead", "Stream", "add_gaussian_noise", "grid_spacing", "normal_numbers"]

Method = Literal["box-muller", "four-draw", "on-device"]
_ON_DEVICE: Method = "on-device"
_DRAWS: dict[str, int] = {"box-muller": 1, "four-draw": 4}
_GRID_BITS = 20
_TOO_LARGE = (
    "the clipped sum is not finite, or so large relative to the noise that float64 rounding would "
    "reveal it; nothing is released"
)
# From 2^32 standard deviations on, a float64 sum would have no bits left below the grid.
_LARGEST_RATIO = 2.0**32


def grid_spacing(standard_deviation: float) -> float:
    """Return the power of two at or below 2^-20 times the standard deviation.

    A power of two makes both the division by the spacing and the multiplication back exact in
    floating point, so that the rounding to the grid is the only rounding that happens. The grid
    adds at most a relative 2^-42 to the variance.

    Raises:
        PrivacyError: if the standard deviation is not in [1e-100, 1e100].
    """
    if not 1e-100 <= standard_deviation <= 1e100:
        raise PrivacyError(
            "the noise's standard deviation must be a positive number of ordinary size, not "
            f"{standard_deviation}"
        )
    _, exponent = math.frexp(standard_deviation)
    return math.ldexp(1.0, exponent - 1 - _GRID_BITS)


def normal_numbers(stream: Stream, n: int, method: Method) -> NDArray[np.float64]:
    """The standard normal numbers that a method draws from a stream, [n], for a replay.

    Raises:
        PrivacyError: if the method is unknown.
    """
    if method == _ON_DEVICE:
        drawn: NDArray[np.float64] = stream.normal_on(torch.device("cpu"), n).numpy()
        return drawn
    _check_method(method)
    return stream.normal(n, _DRAWS[method])


@part("noise")
def add_gaussian_noise(
    clipped_sum: torch.Tensor,
    standard_deviation: float,
    stream: Stream,
    method: Method = "box-muller",
    threads: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Add N(0, standard_deviation² I) to a clipped sum and round the result to a grid.

    What the rounding covers: a float Gaussian sampler has gaps, and which float64 values a noisy
    sum can take depends on the sum itself (Mironov 2012); the precision of the addition depends on
    it too (Haney, Desfontaines, Hartman, Shrestha & Hay 2022). Both show in the low-order bits.
    Here they are removed: the output is a multiple of 2^-20 standard deviations (`grid_spacing`),
    while float64 noise of the usual magnitude is 2^32 times finer, so that each grid point is
    reached from very many noise values whatever the sum. Rounding to a grid fixed in advance, and
    the later cast to float32, are post-processing. The method "four-draw" also hinders the
    inversion of a Box-Muller pair (Holohan & Braghin 2021), at four times the cost.

    What it does not cover, so that no immunity is claimed: the sampler is an approximation of the
    real Gaussian (no magnitude above 8.65 standard deviations, 53-bit uniforms), running time is
    not constant, and the sum of clipped gradients was rounded in float32 before it came here, which
    can raise its sensitivity by a relative error of the order of 10^-7.

    Args:
        clipped_sum: the sum of clipped gradients, float32 of shape [d], finite.
        standard_deviation: of the noise on the sum, noise multiplier times clipping norm, above 0.
        stream: the stream of this client's noise; it is advanced.
        method: "box-muller" (one draw a coordinate), "four-draw", or "on-device" (one draw, by
            ChaCha20 where the sum lies).
        threads: workers; None takes torch's setting. The result does not depend on it.
        dtype: of the result, torch.float64 or torch.float32. Narrowing comes after the grid.

    Returns:
        The noisy sum, of shape [d], on the device of `clipped_sum`.

    Raises:
        PrivacyError: if an argument is out of range or the sum is not finite.
    """
    spacing = _check(clipped_sum, standard_deviation, method)
    if method == _ON_DEVICE:
        drawn = stream.normal_on(clipped_sum.device, len(clipped_sum))
        return _added(drawn, clipped_sum.detach(), standard_deviation, spacing, dtype)
    values: NDArray[np.floating[Any]] = clipped_sum.detach().cpu().numpy()
    narrow = np.float32 if dtype == torch.float32 else np.float64
    noisy = recycled(values.size, narrow)
    limit = _LARGEST_RATIO * standard_deviation
    refused: list[int] = []

    def add(offset: int, noise: NDArray[np.float64]) -> None:
        part = values[offset : offset + noise.size]
        # The comparison is also false for NaN.
        if not (part.min() > -limit and part.max() < limit):
            refused.append(offset)
            return
        np.multiply(noise, standard_deviation, out=noise)
        np.add(noise, part, out=noise)
        np.multiply(noise, 1.0 / spacing, out=noise)
        np.rint(noise, out=noise)
        into = noisy[offset : offset + noise.size]
        np.multiply(noise, spacing, out=into, casting="same_kind")

    workers = torch.get_num_threads() if threads is None else threads
    stream.normal_blocks(values.size, add, draws=_DRAWS[method], threads=workers)
    if refused:
        raise PrivacyError(_TOO_LARGE)
    return torch.from_numpy(noisy).to(clipped_sum.device)


class NoiseAhead:
    """Noise that is drawn while the clipped sum is still being computed.

    It pays where an accelerator computes the sum; on a CPU both would share the same cores. What
    comes out is the same to the last bit as of `add_gaussian_noise` with the same stream.

    Args:
        size: d.
        stream: as there; it must not be used by anyone else until `add` has returned.
        method: as there.
    """

    def __init__(self, size: int, stream: Stream, method: Method = "box-muller") -> None:
        if method == _ON_DEVICE:
            raise PrivacyError("noise that is drawn on the device is not drawn ahead of its sum")
        _check_method(method)
        self._method = method
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="noise")
        threads = torch.get_num_threads()
        self._drawn = self._pool.submit(stream.normal, size, _DRAWS[method], threads)
        self._pool.shutdown(wait=False)

    def add(
        self,
        clipped_sum: torch.Tensor,
        standard_deviation: float,
        dtype: torch.dtype = torch.float64,
    ) -> torch.Tensor:
        """As `add_gaussian_noise`, on the sum's own device."""
        spacing = _check(clipped_sum, standard_deviation, self._method)
        noise = torch.from_numpy(self._drawn.result()).to(clipped_sum.device)
        return _added(noise, clipped_sum, standard_deviation, spacing, dtype)


def _added(
    noise: torch.Tensor,
    clipped_sum: torch.Tensor,
    standard_deviation: float,
    spacing: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The sum with standard normal noise [d], which is overwritten, on the grid."""
    # The comparison is also false for NaN.
    if not bool((clipped_sum.abs() < _LARGEST_RATIO * standard_deviation).all()):
        raise PrivacyError(_TOO_LARGE)
    # One rounding an operation, as on every other path: no fused multiplication and addition.
    noisy = noise.mul_(standard_deviation).add_(clipped_sum).mul_(1.0 / spacing)
    return noisy.round_().mul_(spacing).to(dtype)


def _check(clipped_sum: torch.Tensor, standard_deviation: float, method: Method) -> float:
    """The grid's spacing, once the arguments are in range."""
    _check_method(method)
    if clipped_sum.dim() != 1:
        raise PrivacyError(
            f"noise is added to one flat vector, not to shape {tuple(clipped_sum.shape)}"
        )
    return grid_spacing(standard_deviation)


def _check_method(method: str) -> None:
    if method not in (*_DRAWS, _ON_DEVICE):
        raise PrivacyError(
            f"unknown noise method '{method}'; it is 'box-muller', 'four-draw' or 'on-device'"
        )
