"""Writes published transformers, trained here, as transformers and peft read them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dpfedadamw.models.transformers.classifier import TransformerClassifier, build
from dpfedadamw.models.transformers.keys import LoraSpec, PlainTuningSpec, TransformerSpec
from dpfedadamw.models.transformers.language import LanguageModel
from dpfedadamw.models.transformers.language import build as build_language
from dpfedadamw.models.transformers.sources import TOKENISER_FILES, locate, quiet

_PREPROCESSOR = "preprocessor_config.json"


def write(spec: TransformerSpec, model: nn.Module, folder: Path) -> tuple[str, bool]:
    """Write a trained model, with its tokeniser or its images' scale where the source has them.

    Args:
        spec: The spec's section ``model``.
        model: The trained model.
        folder: An empty folder.

    Returns:
        "adapters" or "whole", and whether a backbone with random weights was written to ``base/``:
        nobody else has it.
    """
    assert isinstance(model, TransformerClassifier)
    network: Any = model.network
    pairs = isinstance(spec.fine_tuning, LoraSpec)
    names: Sequence[str] = getattr(model, "label_names", ())
    if len(names) == network.config.num_labels:
        network.config.id2label = dict(enumerate(names))
        network.config.label2id = {name: number for number, name in enumerate(names)}
    with quiet():
        network.save_pretrained(str(folder), safe_serialization=True)
        # peft writes a card of its own, of a template; ours says what is known.
        (folder / "README.md").unlink(missing_ok=True)
        alone = pairs and not model.origin
        if alone:
            _save_backbone(spec, model, folder / "base")
    source = locate(spec)
    if source is not None:
        for path in sorted(source.folder.iterdir()):
            if path.is_file() and path.name.startswith((*TOKENISER_FILES, _PREPROCESSOR)):
                shutil.copyfile(path, folder / path.name)
    return ("adapters" if pairs else "whole"), alone


def _save_backbone(spec: TransformerSpec, model: TransformerClassifier, folder: Path) -> None:
    network: Any = model.network
    if isinstance(model, LanguageModel):
        plain: Any = build_language(
            spec.replace(fine_tuning=PlainTuningSpec(kind="all")), (2, model.length)
        )
    else:
        plain = _plain_classifier(spec, network.config)
    tensors = {
        name.removeprefix("network.base_model.model.")
        .replace(".base_layer.", ".")
        .replace(".original_module.", "."): value
        for name, value in model.state_dict().items()
        if ".lora_" not in name and ".modules_to_save." not in name
    }
    backbone: Any = plain.network
    backbone.load_state_dict(tensors)
    backbone.save_pretrained(str(folder), safe_serialization=True)


def _plain_classifier(spec: TransformerSpec, configuration: Any) -> TransformerClassifier:
    size = getattr(configuration, "image_size", 0)
    shape = (configuration.num_channels, size, size) if size else (2, spec.length or 4)
    head = PlainTuningSpec(kind="head")
    return build(spec.replace(fine_tuning=head), shape, configuration.num_labels)
