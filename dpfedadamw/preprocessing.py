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

    Row 0 holds token numbers, padded at the end with ``padding``; row 1 token types. For a language
    model row 1 holds marks: 0 for padding, and 2k - 1 or 2k for a token of the record's sequence
    k = 1, 2, …, where 2k says that it is to be predicted from those before it in that sequence.

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


def next_tokens(records: NDArray[np.int32], ignored: int) -> NDArray[np.int64]:
    """What a language model is to answer at each place: the next token, int64 [n, length].

    Args:
        records: Tokens and marks [n, 2, length]: see `TextPreprocessing`.
        ignored: Stands where nothing is predicted: at the end of a sequence, before a token that is
            not to be predicted, and on padding.
    """
    tokens, marks = records[:, 0], records[:, 1]
    sequences = (marks + 1) // 2
    told = (sequences[:, 1:] == sequences[:, :-1]) & (marks[:, 1:] > 0) & (marks[:, 1:] % 2 == 0)
    found = np.full(tokens.shape, ignored, np.int64)
    found[:, :-1] = np.where(told, tokens[:, 1:], ignored)
    return found


def in_sequences(
    tokens: Sequence[int], told: Sequence[bool], length: int, most: int, padding: int
) -> NDArray[np.int32]:
    """One record of a language model, [2, most · length]: a text in sequences of so many tokens.

    A sequence begins with the last token of the one before, so that every token but the first of
    the text is predicted once. What is beyond the last sequence is cut.

    Args:
        tokens: Of the text.
        told: Whether each is to be predicted.
        length: Tokens of a sequence.
        most: How many sequences a record has room for.
        padding: Fills up the rest.
    """
    record = np.zeros((2, most * length), np.int32)
    record[0] = padding
    place = 0
    for number in range(1, most + 1):
        start = (number - 1) * (length - 1)
        part = tokens[start : start + length]
        # What the sequence before has already, as its last token.
        if number > 1 and len(part) < 2:
            break
        marks = [2 * number if one else 2 * number - 1 for one in told[start : start + length]]
        record[:, place : place + len(part)] = part, marks
        place += len(part)
    return record
