"""Texts as tokens without a tokeniser's files: by constants alone, nothing learned from records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.preprocessing import TextPreprocessing

PADDING = 0
_WORD = re.compile(r"\w+|[^\w\s]")


def plain_tokens(kind: str, vocabulary: int, length: int) -> TextPreprocessing:
    """How texts become records int32 [2, length] for a model without a tokeniser of its own.

    Args:
        kind: "words" (lower case; a word's token follows from its digest, so two may share one) or
            "bytes" (of UTF-8, each plus 1).
        vocabulary: How many tokens there are, padding included.
        length: Tokens of a record.
    """

    def words(text: str) -> Iterator[int]:
        for word in _WORD.findall(text.lower()):
            digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
            yield 1 + int.from_bytes(digest, "big") % (vocabulary - 1)

    def of_bytes(text: str) -> Iterator[int]:
        return (1 + byte for byte in text.encode())

    tokens: Callable[[str], Iterator[int]] = words if kind == "words" else of_bytes

    def encode(first: Sequence[str], second: Sequence[str] | None) -> NDArray[np.int32]:
        records = np.full((len(first), 2, length), PADDING, dtype=np.int32)
        records[:, 1] = 0
        for row, text in enumerate(first):
            found = [*tokens(text), *(tokens(second[row]) if second is not None else ())][:length]
            records[row, 0, : len(found)] = found
        return records

    fingerprint = hashlib.sha256(f"plain tokens 1 {kind} {vocabulary}".encode()).hexdigest()
    return TextPreprocessing(encode, length, PADDING, fingerprint, vocabulary)
