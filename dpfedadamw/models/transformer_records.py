"""What published transformers need of records: sizes and scales of images, tokens of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.models.errors import ModelError
from dpfedadamw.models.published import IMAGES, PUBLISHED
from dpfedadamw.models.sources import Source, libraries, locate
from dpfedadamw.models.transformer import configure
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing
from dpfedadamw.spec import TransformerSpec

_DEFAULT_SCALE = (0.5, 0.5, 0.5)


def preprocessing_of(spec: TransformerSpec) -> Preprocessing:
    """What a published model needs of its records, by what its publisher says.

    Raises:
        ModelError: If its files are missing.
    """
    libraries()
    source = locate(spec)
    configuration, reads = configure(spec, source, 2, {})
    if reads == IMAGES:
        size = getattr(configuration, "image_size", None)
        mean, deviation = _scale(spec, source)
        return ImagePreprocessing(
            size=size if isinstance(size, int) else None,
            channels=getattr(configuration, "num_channels", 3),
            mean=mean,
            deviation=deviation,
        )
    length = spec.length or 128
    return TextPreprocessing(
        encode=_Encoder(source, length),
        length=length,
        padding=configuration.pad_token_id,
        fingerprint=source.tokeniser_digest(length) if source is not None else "",
    )


def _scale(
    spec: TransformerSpec, source: Source | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation by channel: from the files, else as published."""
    published = PUBLISHED.get(spec.name)
    path = source.folder / "preprocessor_config.json" if source is not None else Path()
    if path.is_file():
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.get("do_normalize", True):
                return (
                    tuple(float(one) for one in content["image_mean"]),
                    tuple(float(one) for one in content["image_std"]),
                )
            return (), ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ModelError(
                f"model.source: {path} gives no image_mean and image_std; correct it"
            ) from None
    if published is not None:
        return published.mean, published.deviation
    return _DEFAULT_SCALE, _DEFAULT_SCALE


class _Encoder:
    """Turns texts into records with the publisher's tokeniser, which is read at the first call."""

    def __init__(self, source: Source | None, length: int) -> None:
        self._source = source
        self._length = length
        self._tokeniser: Any = None

    def __call__(
        self, texts: Sequence[str], second_texts: Sequence[str] | None
    ) -> NDArray[np.int32]:
        """Texts, and second texts or None, to records int32 [n, 2, length].

        Raises:
            ModelError: If the model came without a tokeniser.
        """
        tokeniser = self._tokeniser = self._tokeniser or self._read()
        pairs = list(second_texts) if second_texts is not None else None
        found = tokeniser(
            list(texts),
            pairs,
            padding="max_length",
            truncation=True,
            max_length=self._length,
            return_token_type_ids=True,
        )
        records = np.stack(
            [
                np.asarray(found["input_ids"], dtype=np.int32).reshape(len(texts), -1),
                np.asarray(found["token_type_ids"], dtype=np.int32).reshape(len(texts), -1),
            ],
            axis=1,
        )
        return np.ascontiguousarray(records)

    def _read(self) -> Any:
        if self._source is None:
            raise ModelError(
                "model.source: texts need the publisher's tokeniser, which weights: random does "
                "not come with; give a folder that holds config.json and the tokeniser's files"
            )
        from transformers import AutoTokenizer

        try:
            tokeniser = AutoTokenizer.from_pretrained(
                str(self._source.folder), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(
                f"model.source: {self._source.folder} holds no tokeniser that can be read "
                f"({reason}); put tokenizer.json and tokenizer_config.json there"
            ) from None
        if tokeniser.pad_token_id is None:
            tokeniser.pad_token = tokeniser.eos_token
        tokeniser.padding_side = "right"
        return tokeniser
