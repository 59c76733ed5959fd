"""Normal numbers drawn on the device that trains are those of ChaCha20, to the last bit.

An accelerator computes a clipped sum of a large model in less time than a processor draws its noise
by AES and carries it over. ChaCha20 (RFC 8439) is made of 32-bit additions, exclusive ors and
rotations, which torch does elementwise on every device, and has the 256-bit key that AES-256 has.
Philox, which accelerators use elsewhere, has a 64-bit key and was never meant to keep a secret.

The same key, nonce and counter give the same numbers on every device, to the last bit: the key
stream is integer arithmetic, and the transform (`rounded_alike`) takes no logarithm or cosine of a
library's, which differ from device to device, but what IEEE 754 rounds alike everywhere. A device
without float64 is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from functools import lru_cache

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise.rounded_alike import cosine_and_sine, minus_log

_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")
_DOMAIN = b"dpfedadamw chacha20 1\x00"
_BLOCK_BYTES, _BLOCK_WORDS = 64, 16
# The counter of RFC 8439 has 32 bits: no draw may need more blocks.
_MOST_BLOCKS = 2**32
_PAIRS_A_BLOCK = _BLOCK_BYTES // 16
# What a pass keeps at once, measured on a processor.
_BYTES_A_BLOCK = 324
# Below a million numbers to compile takes longer than it saves.
_WORTH_FUSING = 2**17

DoubleRound = Callable[[torch.Tensor], torch.Tensor]


def stream_key(key: bytes) -> bytes:
    """The key of a stream's ChaCha20, which AES under the stream's own key never meets."""
    return hmac.new(key, _DOMAIN, hashlib.sha256).digest()


def key_stream(
    key: bytes, nonce: bytes, start: int, blocks: int, device: torch.device
) -> torch.Tensor:
    """ChaCha20's key stream (RFC 8439, section 2.3) as 32-bit words.

    Args:
        key: 32 bytes.
        nonce: 12 bytes, used with this key once.
        start: the counter of the first block.
        blocks: how many blocks of 64 bytes.
        device: where to compute it; on a CPU OpenSSL does.

    Returns:
        [blocks, 16] int32, each word in two's complement.

    Raises:
        PrivacyError: the counter would run over its 32 bits.
    """
    if start < 0 or start + blocks > _MOST_BLOCKS:
        raise PrivacyError(
            f"one draw of ChaCha20 has {_MOST_BLOCKS:,} blocks of {_BLOCK_BYTES} bytes at most"
        )
    if device.type == "cpu":
        return _by_openssl(key, nonce, start, blocks)
    fused = _fused(device) if device.type == "cuda" and blocks >= _WORTH_FUSING else None
    return by_torch(key, nonce, start, blocks, device, fused)


@lru_cache(maxsize=8)
def _fused(device: torch.device) -> DoubleRound | None:
    """A double round compiled to one launch; None where torch cannot, or makes other words.

    Only integers are compiled: a compiler may join a multiplication and an addition of float64,
    which would change the last bits of what is drawn.
    """
    key, nonce, blocks = bytes(range(32)), bytes(range(12)), 64
    try:
        compiled: DoubleRound = torch.compile(_of_words, dynamic=True, fullgraph=True)
        words = by_torch(key, nonce, 1, blocks, device, compiled).cpu()
    # Compilers are missing or fail in many ways, whose errors have no common base.
    except Exception:
        return None
    return compiled if torch.equal(words, _by_openssl(key, nonce, 1, blocks)) else None


def _by_openssl(key: bytes, nonce: bytes, start: int, blocks: int) -> torch.Tensor:
    whole = struct.pack("<I", start) + nonce
    encryptor = Cipher(algorithms.ChaCha20(key, whole), mode=None).encryptor()
    raw = bytearray(encryptor.update(bytes(_BLOCK_BYTES * blocks)))
    return torch.frombuffer(raw, dtype=torch.int32).view(blocks, _BLOCK_WORDS)


def by_torch(
    key: bytes,
    nonce: bytes,
    start: int,
    blocks: int,
    device: torch.device,
    double_round: DoubleRound | None = None,
) -> torch.Tensor:
    """The same out of torch's operations, as an accelerator computes it.

    Args:
        key: As for `key_stream`, and so are the next four.
        nonce: See there.
        start: See there.
        blocks: See there.
        device: See there.
        double_round: One of the ten; None for torch's own operations, one after another.
    """
    double_round = double_round or _double_round
    fixed = (*_CONSTANTS, *struct.unpack("<8I", key), 0, *struct.unpack("<3I", nonce))
    first = torch.empty((_BLOCK_WORDS, blocks), dtype=torch.int32, device=device)
    # Word by word, because copying a tensor over would wait for all that the device has to do.
    for place, word in enumerate(fixed):
        first[place].fill_(_signed(word))
    counters = torch.arange(start, start + blocks, dtype=torch.int64, device=device)
    # Narrowing keeps the low 32 bits, which is the word in two's complement.
    first[12] = counters.to(torch.int32)
    mixed = first
    for _ in range(10):
        mixed = double_round(mixed)
    return mixed.add_(first).t().contiguous()


def _double_round(words: torch.Tensor) -> torch.Tensor:
    """Two rounds of words [16, blocks]: quarter rounds of columns, then of diagonals."""
    a, b, c, d = _quarter_rounds(*words.view(4, 4, -1))
    diagonals = torch.cat([a, b[1:], b[:1], c[2:], c[:2], d[3:], d[:3]])
    a, b, c, d = _quarter_rounds(*diagonals.view(4, 4, -1))
    return torch.cat([a, b[3:], b[:3], c[2:], c[:2], d[1:], d[:1]])


def _of_words(words: torch.Tensor) -> torch.Tensor:
    """`_double_round` word by word, of which a compiler makes one launch."""
    each = list(words.unbind(0))
    for turned in (0, 1):
        for a in range(4):
            b, c, d = (4 * row + (a + turned * row) % 4 for row in (1, 2, 3))
            each[a], each[b], each[c], each[d] = _quarter_rounds(each[a], each[b], each[c], each[d])
    return torch.stack(each)


def _quarter_rounds(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A quarter round (RFC 8439, section 2.1), or four at once, one a row."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    return a, _rotated(b ^ c, 7), c, d


def _rotated(words: torch.Tensor, by: int) -> torch.Tensor:
    # The shift to the right carries the sign along, which the mask takes off. A multiple of the
    # words is added in one pass; where it has ones the lower bits have none.
    low = (words >> (32 - by)).bitwise_and_((1 << by) - 1)
    return low.add_(words, alpha=1 << by)


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def normals(key: bytes, draw: int, n: int, device: torch.device) -> torch.Tensor:
    """Draw n standard normal numbers, [n] float64 on the device.

    Box & Muller (1958) on 53-bit uniforms, as in `Stream.normal_blocks`: none is above 8.65.

    Args:
        key: a stream's ChaCha20 key (`stream_key`).
        draw: how many draws the stream was asked for before: the nonce, so that no block of the key
            stream is used twice.
        n: how many numbers.
        device: where they are drawn.

    Raises:
        PrivacyError: n is negative, or too large for one draw, or the device has no float64.
    """
    if device.type == "mps":
        raise PrivacyError("noise is float64, which a device of type 'mps' does not have")
    if n < 0:
        raise PrivacyError(f"cannot draw {n} numbers: the count must be at least 0")
    nonce = draw.to_bytes(12, "little")
    blocks = -(-n // (2 * _PAIRS_A_BLOCK))
    found = torch.empty(n, dtype=torch.float64, device=device)
    piece = _piece(device)
    for start in range(0, blocks, piece):
        count = min(piece, blocks - start)
        words = key_stream(key, nonce, start, count, device).view(-1, 4).long()
        uniform, turn = _bits(words[:, 0], words[:, 1]), _bits(words[:, 2], words[:, 3])
        del words  # A third of what a pass needs.
        radius = minus_log(uniform).mul_(2.0).sqrt_()
        turned = cosine_and_sine(turn)
        pair = torch.stack(turned, dim=1).mul_(radius[:, None]).view(-1)
        offset = 2 * _PAIRS_A_BLOCK * start
        part = found[offset : offset + 2 * _PAIRS_A_BLOCK * count]
        part.copy_(pair[: len(part)])
    return found


def _bits(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """The upper 53 of 64 bits, which are given in two halves: int64 below 2^53."""
    whole = high.bitwise_left_shift(32).bitwise_or_(low.bitwise_and(0xFFFFFFFF))
    return whole.bitwise_right_shift_(11).bitwise_and_(2**53 - 1)


def _piece(device: torch.device) -> int:
    """Blocks of one pass: a core's cache holds half a MiB; a device needs much work at once.

    There a pass takes a sixteenth of the memory in addition to the numbers, so that few launches
    draw all: 1.3 GiB at the least, which is that of a device of 20 GiB.
    """
    if device.type == "cpu":
        return 2**13
    return max(2**22, _memory(device) // 16 // _BYTES_A_BLOCK)


def _memory(device: torch.device) -> int:
    """Bytes that a device has, in use or not; 0 where torch cannot tell."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
