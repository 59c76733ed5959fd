"""Published transformers by name, and any other of the library: their registration.

What a name stands for is in the table of `transformers.published`: another one is a line there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedadamw.models.registry import ModelEntry, register
from dpfedadamw.models.transformers.keys import (
    AnyTransformerSpec,
    ImageTransformerSpec,
    LoraSpec,
    TextTransformerSpec,
    TransformerSpec,
)
from dpfedadamw.models.transformers.published import IMAGES, PUBLISHED, SMALL
from dpfedadamw.preprocessing import Preprocessing
from dpfedadamw.spec.task_section import CLASSIFICATION, LANGUAGE, MULTI_LABEL, REGRESSION
from dpfedadamw.tasks import Task

if TYPE_CHECKING:
    from torch import nn


def _build(keys: TransformerSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.transformers import classifier

    return classifier.build(keys, input_shape, classes)


def _build_for(
    keys: TransformerSpec, input_shape: Sequence[int], classes: int, task: Task
) -> nn.Module:
    if task.kind != LANGUAGE:
        return _build(keys, input_shape, classes)
    from dpfedadamw.models.transformers import language

    return language.build(keys, input_shape)


def _preprocessing(keys: TransformerSpec) -> Preprocessing:
    from dpfedadamw.models.transformers.records import preprocessing_of

    return preprocessing_of(keys)


def _preprocessing_for(keys: TransformerSpec, task: Task) -> Preprocessing:
    if task.kind != LANGUAGE:
        return _preprocessing(keys)
    from dpfedadamw.models.transformers.texts import preprocessing_of

    return preprocessing_of(keys, task)


def _without_weights(keys: TransformerSpec) -> TransformerSpec:
    return keys.replace(weights="random")


def _write(keys: TransformerSpec, model: nn.Module, folder: Path) -> tuple[str, bool]:
    from dpfedadamw.models.transformers import export

    return export.write(keys, model, folder)


def _small(keys: TransformerSpec, folder: Path) -> TransformerSpec:
    kind = PUBLISHED[keys.name].kind
    place = folder / kind
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"model_type": kind, **SMALL[kind]}) + "\n")
    tuning = keys.fine_tuning
    if isinstance(tuning, LoraSpec):
        tuning = tuning.replace(rank=2, alpha=4.0)
    return keys.replace(weights="random", source=str(place), revision=None, fine_tuning=tuning)


_entry = partial(
    ModelEntry[TransformerSpec],
    build=_build,
    preprocessing=_preprocessing,
    without_weights=_without_weights,
    write=_write,
)

for _name, _known in PUBLISHED.items():
    register(
        _entry(
            name=_name,
            keys=ImageTransformerSpec if _known.reads == IMAGES else TextTransformerSpec,
            summary=_known.summary,
            source=f"{_known.source}; {_known.licence}",
            small=_small,
            place=6,
        )
    )
register(
    _entry(
        name="transformers",
        keys=AnyTransformerSpec,
        summary="any classifier or causal language model in transformers, by folder or hub name",
        source="yours, or the Hugging Face hub",
        place=7,
        tasks=(CLASSIFICATION, REGRESSION, MULTI_LABEL, LANGUAGE),
        build_for=_build_for,
        preprocessing_for=_preprocessing_for,
    )
)
