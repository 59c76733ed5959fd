"""What published transformers need of records: sizes and scales of images, tokens of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import ModelError
from dpfedadamw.models.transformers.classifier import configure
from dpfedadamw.models.transformers.keys import TransformerSpec
from dpfedadamw.models.transformers.published import IMAGES, PUBLISHED
from dpfedadamw.models.transformers.sources import Source, libraries, locate
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing, TextPreprocessing

_DEFAULT_SCALE = (0.5, 0.5, 0.5)
# Filters of Pillow, by the numbers under which publishers name them.
_BILINEAR = 2
_INTERPOLATIONS = {_BILINEAR: "bilinear", 3: "bicubic"}
FILTERS = {name: number for number, name in _INTERPOLATIONS.items()}


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
        return ImagePreprocessing(
            size=size if isinstance(size, int) else None,
            channels=getattr(configuration, "num_channels", 3),
            **_look(spec, source),
        )
    length = spec.length or 128
    types = getattr(configuration, "type_vocab_size", 0)
    return TextPreprocessing(
        encode=_Encoder(source, length),
        length=length,
        padding=configuration.pad_token_id,
        fingerprint=source.tokeniser_digest(length) if source is not None else "",
        vocabulary=configuration.vocab_size,
        # With one type alone, the model does not look at what a tokeniser writes.
        types=types if types > 1 else None,
    )


def _look(spec: TransformerSpec, source: Source | None) -> dict[str, Any]:
    """Mean and deviation by channel, and how images are resized: from the files or as published."""
    path = source.folder / "preprocessor_config.json" if source is not None else Path()
    if path.is_file():
        return _look_of_file(path)
    published = PUBLISHED.get(spec.name)
    if published is None:
        return {"mean": _DEFAULT_SCALE, "deviation": _DEFAULT_SCALE}
    look = {"mean": published.mean, "deviation": published.deviation}
    return {**look, "interpolation": published.interpolation}


def _look_of_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        filter_ = content.get("resample", _BILINEAR)
        keys = ("image_mean", "image_std") if content.get("do_normalize", True) else ()
        scale = [tuple(float(one) for one in content[key]) for key in keys]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(
            f"model.source: {path} gives no image_mean and image_std; correct it"
        ) from None
    if filter_ not in list(_INTERPOLATIONS):
        raise ModelError(
            f"model.source: {path} says resample: {filter_}; give 2 (bilinear) or 3 (bicubic)"
        )
    look = dict(zip(("mean", "deviation"), scale, strict=False))
    return {**look, "interpolation": _INTERPOLATIONS[filter_]}


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
        if self._tokeniser is None:
            self._tokeniser = self._read()
        tokeniser = self._tokeniser
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
        tokeniser = read_tokeniser(self._source)
        if tokeniser.pad_token_id is None:
            tokeniser.pad_token = tokeniser.eos_token
        tokeniser.padding_side = "right"
        return tokeniser


def read_tokeniser(source: Source) -> Any:
    """The publisher's tokeniser.

    Raises:
        ModelError: If the folder holds none that can be read.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(source.folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"model.source: {source.folder} holds no tokeniser that can be read "
            f"({reason}); put tokenizer.json and tokenizer_config.json there"
        ) from None
