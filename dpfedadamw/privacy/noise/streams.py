"""A stream is an endless sequence of cryptographic bits, read as numbers of exact laws.

Every batch, every choice of clients and every noise vector of a run is read from a `Stream`; which
streams a run has, and where their keys come from, is the matter of `randomness`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise import on_device
from dpfedadamw.vectors.workers import share_out

__all__ = ["Stream"]

_KEY_BYTES = 32
_CIPHER_BLOCK = 16
# Large enough that workers seldom wait for the interpreter, small enough for a core's cache.
_PAIRS = 32768
_ZEROS = bytes(_PAIRS * 16)
# Normal numbers that are drawn together at most, of short vectors: half a megabyte of them.
_TOGETHER = 65_536

Visit = Callable[[int, NDArray[np.float64]], None]


class Stream:
    """An endless sequence of random bits from one 256-bit key, read as numbers.

    The bits are the AES-256-CTR key stream with the counter starting at zero. Each call consumes
    fresh counter values, so no bit is ever used twice within a stream. A stream belongs to one
    client's work and is not meant to be shared between threads.
    """

    def __init__(self, key: bytes) -> None:
        """Start a stream.

        Args:
            key: 32 bytes that no other stream uses.

        Raises:
            PrivacyError: if the key does not have 32 bytes.
        """
        if len(key) != _KEY_BYTES:
            raise PrivacyError(f"a stream's key has {_KEY_BYTES} bytes, not {len(key)}")
        self._key = key
        self._position = 0
        self._draws_on_device = 0
        self._expected = _Expected()
        self._cipher: _Cipher | None = None

    def __repr__(self) -> str:
        """Show how much was drawn, and never the key."""
        return f"Stream(blocks_drawn={self._position})"

    def bytes(self, count: int) -> bytes:
        """Draw `count` raw bytes."""
        start = self._reserve(_blocks(count))
        buffer = bytearray(count + _CIPHER_BLOCK)
        if self._cipher is None:
            self._cipher = _Cipher(self._key)
        self._cipher.expand(start, count, buffer)
        return bytes(memoryview(buffer)[:count])

    def words(self, count: int) -> NDArray[np.uint64]:
        """Draw `count` independent uniform 64-bit integers."""
        if count < 0:
            raise PrivacyError(f"cannot draw {count} numbers: the count must be at least 0")
        return np.frombuffer(self.bytes(8 * count), dtype="<u8").astype(np.uint64, copy=False)

    def normal(self, n: int, draws: int = 1, threads: int = 1) -> NDArray[np.float64]:
        """Draw n standard normal numbers in float64.

        Args:
            n: how many.
            draws: how many Box-Muller normals make one number, 1 or 4 (see `normal_blocks`).
            threads: workers to use; the numbers do not depend on it.
        """
        out = np.empty(max(0, n), dtype=np.float64)

        def keep(offset: int, block: NDArray[np.float64]) -> None:
            out[offset : offset + block.size] = block

        self.normal_blocks(n, keep, draws=draws, threads=threads)
        return out

    def normal_blocks(self, n: int, visit: Visit, draws: int = 1, threads: int = 1) -> None:
        """Draw n standard normal numbers and hand them over block by block.

        Box & Muller (1958) in float64 on 53-bit uniforms: the largest magnitude is
        sqrt(2·54·ln 2) = 8.65. With `draws=4` each number is half the sum of four of them
        (Holohan & Braghin 2021), so that one output can no longer be inverted to its uniforms.

        Args:
            n: how many numbers in all.
            visit: called once a block with (offset, block); blocks may come in any order and from
                several threads, and a block's memory is reused after the call returns.
            draws: 1 or 4.
            threads: workers to use. Every block has its own fixed counter range, so neither the
                numbers nor their places depend on it.

        Raises:
            PrivacyError: if n is negative or draws is neither 1 nor 4.
        """
        if n < 0:
            raise PrivacyError(f"cannot draw {n} numbers: the count must be at least 0")
        if draws not in (1, 4):
            raise PrivacyError(f"a normal number is made of 1 or 4 draws, not {draws}")
        blocks = -(-n // (2 * _PAIRS))
        start = self._reserve(blocks * draws * _PAIRS)
        if (blocks, draws) == (1, 1) and (row := self._drawn_together(start, n)) is not None:
            visit(0, row)
            return

        def work(indices: range) -> None:
            space = _Workspace(min(_PAIRS, -(-n // 2)))
            cipher = _Cipher(self._key)
            for index in indices:
                offset = index * 2 * _PAIRS
                pairs = min(_PAIRS, -(-(n - offset) // 2))
                total = space.total[: 2 * pairs]
                for draw in range(draws):
                    counter = start + (index * draws + draw) * _PAIRS
                    cipher.expand(counter, 16 * pairs, space.raw)
                    into = total if draw == 0 else space.spare[: 2 * pairs]
                    space.box_muller(pairs, into)
                    if draw > 0:
                        np.add(total, into, out=total)
                if draws == 4:
                    np.multiply(total, 0.5, out=total)
                visit(offset, total[: n - offset])

        share_out(blocks, work, threads)

    def expect(self, n: int, times: int) -> None:
        """Say that n normal numbers will be drawn so many times, as a rule one after another.

        Short vectors are drawn together then, with the same numbers at the same counters: most of
        their time is calls. Who draws something else, or less, gets what he would have got.

        Args:
            n: How many numbers each time.
            times: How often.
        """
        self._expected = _Expected(n, times)

    def _drawn_together(self, start: int, n: int) -> NDArray[np.float64] | None:
        """The normal numbers [n] of a counter, drawn with those that are expected to follow."""
        wanted = self._expected
        if wanted.n != n:
            return None
        if start not in wanted.rows:
            times = min(wanted.times, max(1, _TOGETHER // n))
            if times < 2:
                return None
            wanted.times -= times
            wanted.rows = self._several(start, n, times)
        return wanted.rows.pop(start)

    def _several(self, start: int, n: int, times: int) -> dict[int, NDArray[np.float64]]:
        """Rows of normal numbers [n], by the counters at which single draws would begin."""
        pairs = -(-n // 2)
        space = _Workspace(pairs * times)
        counters = range(start, start + times * _PAIRS, _PAIRS)
        cipher = _Cipher(self._key)
        whole = memoryview(space.raw)
        for row, counter in enumerate(counters):
            cipher.expand(counter, 16 * pairs, whole[16 * pairs * row :])
        numbers = space.total.reshape(times, 2 * pairs)
        space.box_muller_rows(pairs, numbers)
        return {counter: numbers[row, :n] for row, counter in enumerate(counters)}

    def normal_on(self, device: torch.device, n: int) -> torch.Tensor:
        """Draw n standard normal numbers on a device, by ChaCha20 (`on_device`), [n] float64.

        Each call is a draw of its own: its nonce says how many there were before, and its key is
        one that AES does not use.
        """
        draw = self._draws_on_device
        self._draws_on_device += 1
        return on_device.normals(on_device.stream_key(self._key), draw, n, device)

    def integers(self, high: int, n: int) -> NDArray[np.int64]:
        """Draw n integers, exactly uniform on 0 … high-1 (by rejection, no modulo bias).

        Raises:
            PrivacyError: if high is not in 1 … 2^63.
        """
        if not 1 <= high <= 2**63:
            raise PrivacyError(f"cannot draw integers below {high}: the bound must be in 1 … 2^63")
        limit = 2**64 - 2**64 % high
        out = np.empty(n, dtype=np.int64)
        filled = 0
        while filled < n:
            words = self.words(n - filled)
            if limit < 2**64:
                words = words[words < np.uint64(limit)]
            out[filled : filled + words.size] = (words % np.uint64(high)).astype(np.int64)
            filled += words.size
        return out

    def bernoulli(self, rate: float, n: int) -> NDArray[np.bool_]:
        """Draw n independent trials that succeed with probability `rate`, to 2^-64.

        Raises:
            PrivacyError: if the rate is not in [0, 1].
        """
        if not 0.0 <= rate <= 1.0:
            raise PrivacyError(f"a rate lies in [0, 1], not at {rate}")
        words = self.words(n)
        # A float64 rate times 2^64 is exact; rounding down can only make inclusion rarer.
        threshold = int(rate * 2.0**64)
        if threshold >= 2**64:
            return np.ones(n, dtype=np.bool_)
        return words < np.uint64(threshold)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Draw a uniformly random order of 0 … n-1.

        Sorting independent 64-bit words is exactly uniform given that they are distinct, so a set
        with a tie is thrown away as a whole.
        """
        while True:
            words = self.words(n)
            order = np.argsort(words)
            ranked = words[order]
            if not np.any(ranked[1:] == ranked[:-1]):
                return order.astype(np.int64, copy=False)

    def choice(self, n: int, size: int) -> NDArray[np.int64]:
        """Draw `size` of 0 … n-1 without replacement, every ordered choice equally likely.

        Raises:
            PrivacyError: if size is not in 0 … n.
        """
        if not 0 <= size <= n:
            raise PrivacyError(f"cannot choose {size} of {n} without replacement")
        return self.permutation(n)[:size].copy()

    def _reserve(self, blocks: int) -> int:
        start = self._position
        self._position += blocks
        return start


@dataclass
class _Expected:
    """What normal numbers are expected to be drawn.

    Attributes:
        n: How many each time; 0 where none are.
        times: How often, in addition to those in ``rows``.
        rows: What is drawn and not yet asked for, by its counter.
    """

    n: int = 0
    times: int = 0
    rows: dict[int, NDArray[np.float64]] = field(default_factory=dict)


class _Cipher:
    """AES-256 in counter mode, of one thread; to set it up takes longer than a short stretch."""

    def __init__(self, key: bytes) -> None:
        nothing = modes.CTR(bytes(_CIPHER_BLOCK))
        self._encryptor = Cipher(algorithms.AES(key), nothing).encryptor()

    def expand(self, start: int, count: int, buffer: bytearray | memoryview) -> None:
        """Write a stretch of the key stream, from a counter on."""
        self._encryptor.reset_nonce(start.to_bytes(_CIPHER_BLOCK, "big"))
        zeros = _ZEROS if count <= len(_ZEROS) else bytes(count)
        self._encryptor.update_into(memoryview(zeros)[:count], buffer)


class _Workspace:
    """The buffers one worker reuses for every block of normals.

    Args:
        pairs: Pairs of the largest block.
    """

    def __init__(self, pairs: int) -> None:
        # To map memory for a whole block takes longer than to draw a few hundred numbers.
        self.raw = bytearray(16 * pairs + _CIPHER_BLOCK)
        self.total = np.empty(2 * pairs, dtype=np.float64)
        self.spare = np.empty(2 * pairs, dtype=np.float64)
        self._radius = np.empty(pairs, dtype=np.float64)
        self._angle = np.empty(pairs, dtype=np.float64)
        # A temporary of this size would be mapped again at each block, and workers can only do that
        # in turn.
        self._shifted = np.empty(pairs, dtype=np.uint64)

    def box_muller(self, pairs: int, out: NDArray[np.float64]) -> None:
        """Turn the 2·pairs words in `raw` into normals, written to `out` [2·pairs]."""
        self.box_muller_rows(pairs, out[np.newaxis])

    def box_muller_rows(self, pairs: int, out: NDArray[np.float64]) -> None:
        """Turn the words in `raw` into normals, written to `out` [rows, 2·pairs], row by row."""
        shape = (len(out), pairs)
        words = np.frombuffer(self.raw, dtype="<u8", count=out.size).reshape(out.shape)
        radius = self._radius[: len(out) * pairs].reshape(shape)
        angle = self._angle[: len(out) * pairs].reshape(shape)
        shifted = self._shifted[: len(out) * pairs].reshape(shape)
        _uniform(words[:, :pairs], radius, shifted)
        np.log(radius, out=radius)
        np.multiply(radius, -2.0, out=radius)
        np.sqrt(radius, out=radius)
        np.right_shift(words[:, pairs:], np.uint64(11), out=shifted)
        np.copyto(angle, shifted.view(np.int64))
        np.multiply(angle, np.pi * 2.0**-53, out=angle)
        # With t the tangent of half the angle, its cosine is (1 - t²)/(1 + t²) and its sine
        # 2t/(1 + t²): one transcendental function instead of two. Where t is huge, both are right.
        tangent = _tangent(angle)
        cosine, sine = out[:, :pairs], out[:, pairs:]
        twice = np.square(tangent, out=sine)
        np.add(twice, 1.0, out=twice)
        np.divide(radius, twice, out=twice)
        np.multiply(twice, 2.0, out=twice)
        np.subtract(twice, radius, out=cosine)
        np.multiply(twice, tangent, out=sine)


def _numpy_has_vectors() -> bool:
    """Whether numpy has a float64 tangent in vector registers, which only its Linux builds have."""
    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", ())
    return sys.platform == "linux" and not {"AVX512_SKX", "X86_V4"}.isdisjoint(found)


_NUMPY_HAS_VECTORS = _numpy_has_vectors()


def _tangent(angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """The tangent, in place, by the library that is fast at it on this machine."""
    if _NUMPY_HAS_VECTORS:
        return np.tan(angle, out=angle)
    inside = torch.from_numpy(angle)
    torch.tan(inside, out=inside)
    return angle


def _uniform(
    words: NDArray[np.uint64], out: NDArray[np.float64], shifted: NDArray[np.uint64] | None = None
) -> NDArray[np.float64]:
    shifted = np.right_shift(words, np.uint64(11), out=shifted)
    # Seen as signed, the shifted words convert to float64 by one vector instruction.
    np.copyto(out, shifted.view(np.int64))
    # As good as never; to look for it costs less than to make sure.
    if out.size and out.min() == 0.0:
        np.maximum(out, 0.5, out=out)
    return np.multiply(out, 2.0**-53, out=out)


def _blocks(count: int) -> int:
    return -(-count // _CIPHER_BLOCK)
