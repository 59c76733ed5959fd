"""What is done to records once, before they are stored: shrinking, tokenising, plain types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.images import shrink
from dpfedadamw.data.source import Images, Numbers, Texts
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import Preprocessing, TextPreprocessing


def fingerprint(preprocessing: Preprocessing) -> str:
    """The part of a preprocessing that determines the stored records; each batch does the rest."""
    if isinstance(preprocessing, TextPreprocessing):
        known = f"{preprocessing.vocabulary} {preprocessing.types}"
        return f"text {preprocessing.length} {known} {preprocessing.fingerprint}"
    if preprocessing.size is None:
        return "images"
    return f"images {preprocessing.size} {preprocessing.interpolation}"


def prepare(content: Images | Texts | Numbers, preprocessing: Preprocessing) -> NDArray[Any]:
    """Records as they are stored: uint8, float32 or int32, [b, …].

    Images that are larger than the model's are shrunk here; smaller ones stay as they are and are
    enlarged in each batch, which takes fifty times less space for 32 → 224.

    Raises:
        DataError: If the model reads another kind of records.
    """
    match content:
        case Images():
            if isinstance(preprocessing, TextPreprocessing):
                raise DataError(
                    "data.dataset: holds images, but the model reads texts; use mlp, cnn or vit"
                )
            pixels, size = content.pixels, preprocessing.size
            if size is not None and max(pixels.shape[2:]) > size:
                return shrink(pixels, size, preprocessing.interpolation)
            return pixels
        case Texts():
            if not isinstance(preprocessing, TextPreprocessing):
                raise DataError(
                    "data.dataset: holds texts, but the model reads numbers; use roberta-base or "
                    "transformers"
                )
            tokens = preprocessing.encode(content.first, content.second)
            wanted = (len(content.first), 2, preprocessing.length)
            if tokens.shape != wanted or tokens.dtype != np.int32:
                raise DataError(
                    f"model: its tokeniser returned {tokens.dtype} {tokens.shape}, not int32 "
                    f"{wanted}"
                )
            _check_known(tokens, preprocessing, "model: its tokeniser made")
            return tokens
        case Numbers():
            if isinstance(preprocessing, TextPreprocessing):
                return _tokens(content.values, preprocessing)
            return _plain(content.values)


def _plain(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype == np.uint8:
        return values
    with np.errstate(over="ignore"):
        plain = values.astype(np.float32)
    if not np.isfinite(plain).all():
        raise DataError("data.path: holds numbers beyond the range of float32; scale them first")
    return plain


def _tokens(values: NDArray[Any], form: TextPreprocessing) -> NDArray[np.int32]:
    length = form.length
    if values.ndim == 2 and values.dtype.kind in "iu":
        if values.shape[1] != length:
            raise DataError(
                f"data.path: records hold {values.shape[1]} whole numbers, but the model reads "
                f"{length}; set model.length: {values.shape[1]}"
            )
        # Tokens alone, all of type 0.
        values = np.stack([values, np.zeros_like(values)], axis=1)
    fits = values.dtype.kind in "iu" and values.shape[1:] == (2, length)
    if not fits or values.min() < 0 or values.max() > np.iinfo(np.int32).max:
        raise DataError(
            f"data.path: records have type {values.dtype} and shape {values.shape[1:]}; for this "
            f"model give texts, or its tokens as whole numbers of shape (2, {length})"
        )
    _check_known(values, form, "data.path: holds")
    return values.astype(np.int32)


def _check_known(tokens: NDArray[Any], form: TextPreprocessing, found: str) -> None:
    """Check that a model knows all tokens and types of records [b, 2, length]."""
    for row, kind, known in ((0, "token", form.vocabulary), (1, "token type", form.types)):
        largest = int(tokens[:, row].max(initial=0))
        if known is not None and largest >= known:
            raise DataError(
                f"{found} {kind} {largest}, but the model accepts 0 to {known - 1}; use the "
                "tokeniser that belongs to it"
            )


def content_bytes(content: Images | Texts | Numbers) -> Iterator[bytes]:
    """The records themselves, for their digest."""
    match content:
        case Images():
            yield np.ascontiguousarray(content.pixels).tobytes()
        case Numbers():
            yield np.ascontiguousarray(content.values).tobytes()
        case Texts():
            yield json.dumps([content.first, content.second]).encode()
