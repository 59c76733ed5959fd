"""Writes published transformers, trained here, as transformers and peft read them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dpfedadamw.models.registry import task_of
from dpfedadamw.models.transformers.classifier import TransformerClassifier, build
from dpfedadamw.models.transformers.keys import LoraSpec, PlainTuningSpec, TransformerSpec
from dpfedadamw.models.transformers.language import LanguageModel
from dpfedadamw.models.transformers.language import build as build_language
from dpfedadamw.models.transformers.published import IMAGES
from dpfedadamw.models.transformers.records import FILTERS, preprocessing_of
from dpfedadamw.models.transformers.sources import TOKENISER_FILES, locate, quiet
from dpfedadamw.preprocessing import ImagePreprocessing
from dpfedadamw.spec.task_section import CLASSIFICATION, MULTI_LABEL, REGRESSION

_PREPROCESSOR = "preprocessor_config.json"
# By these names pipelines of transformers turn scores into answers.
_PROBLEMS = {
    CLASSIFICATION: "single_label_classification",
    MULTI_LABEL: "multi_label_classification",
    REGRESSION: "regression",
}


def write(spec: TransformerSpec, model: nn.Module, folder: Path) -> tuple[str, bool]:
    """Write a trained model, with what its records need: its tokeniser where the source has one.

    Of images that is how the run resized and scaled them, which need not be how their publisher
    does: the run crops none.

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
    _tell_answers(network.config, model)
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
            if path.is_file() and path.name.startswith(TOKENISER_FILES):
                shutil.copyfile(path, folder / path.name)
    if model.reads == IMAGES:
        text = json.dumps(_image_settings(spec), indent=2) + "\n"
        (folder / _PREPROCESSOR).write_text(text, encoding="utf-8")
    return ("adapters" if pairs else "whole"), alone


def _tell_answers(configuration: Any, model: nn.Module) -> None:
    """Say in a configuration what the model's scores are: of which task, and their names."""
    problem = _PROBLEMS.get(task_of(model).kind)
    if problem is not None:
        # That of the published model is another task's.
        configuration.problem_type = problem
    names: Sequence[str] = getattr(model, "label_names", ())
    if len(names) == configuration.num_labels:
        configuration.id2label = dict(enumerate(names))
        configuration.label2id = {name: number for number, name in enumerate(names)}


def _image_settings(spec: TransformerSpec) -> dict[str, Any]:
    """What a processor of transformers does to images to give what the run gave its model."""
    form = preprocessing_of(spec)
    assert isinstance(form, ImagePreprocessing)
    sized = form.size is not None
    return {
        # The one that resizes to a square and scales, and does nothing else.
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": form.channels == 3,
        "do_resize": sized,
        **({"size": {"height": form.size, "width": form.size}} if sized else {}),
        "resample": FILTERS[form.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": bool(form.mean),
        **({"image_mean": form.mean, "image_std": form.deviation} if form.mean else {}),
    }


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
    _tell_answers(backbone.config, model)
    backbone.load_state_dict(tensors)
    backbone.save_pretrained(str(folder), safe_serialization=True)


def _plain_classifier(spec: TransformerSpec, configuration: Any) -> TransformerClassifier:
    size = getattr(configuration, "image_size", 0)
    shape = (configuration.num_channels, size, size) if size else (2, spec.length or 4)
    head = PlainTuningSpec(kind="head")
    return build(spec.replace(fine_tuning=head), shape, configuration.num_labels)
