"""What a model needs of its records before they are tensors: the agreement between data and models.

Readers of data apply it once, before training; models state it. Its constants belong to a model's
publisher or to a format, never to the private records: a mean taken from them would be a release
that nothing pays for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImagePreprocessing:
    """How images become float32 records [channels, height, width].

    Grey levels are scaled to [0, 1] first, then (x − mean)/deviation.

    Attributes:
        size: Side of the square that images are resized to; None keeps their size.
        channels: Channels the model reads; one grey channel is repeated; None keeps them.
        mean: Subtracted, one number a channel; empty for none.
        deviation: Divided by, one number a channel; empty for none.
        interpolation: "bilinear" or "bicubic": how images are resized, antialiased.
    """

    size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    interpolation: str = "bilinear"


@dataclass(frozen=True)
class TextPreprocessing:
    """How texts, or pairs of texts, become int32 records [2, length].

    Row 0 holds token numbers, padded at the end with ``padding``; row 1 token types.

    Attributes:
        encode: Texts, and second texts or None, to records [n, 2, length].
        length: Tokens of a record.
        padding: The token number that means nothing is there.
        fingerprint: Digest of the tokeniser's files and of ``length``, hexadecimal.
        vocabulary: How many tokens the model knows, 0…vocabulary-1; None for any number.
        types: How many token types it knows; None where it reads none.
    """

    encode: Callable[[Sequence[str], Sequence[str] | None], NDArray[np.int32]]
    length: int
    padding: int
    fingerprint: str
    vocabulary: int | None = None
    types: int | None = None


Preprocessing = ImagePreprocessing | TextPreprocessing
