"""Published architectures at a size for tests: the published configuration with these changes."""

from __future__ import annotations

import torch
from torch import Tensor

from dpfedadamw.models import registry
from dpfedadamw.models.transformers import classifier
from dpfedadamw.models.transformers.classifier import TransformerClassifier
from dpfedadamw.models.transformers.keys import FineTuningSpec, TransformerSpec

_SWIN = {"image_size": 32, "patch_size": 2, "window_size": 4}
CHANGES = {
    "vit-base": {
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
    },
    "swin-tiny": {**_SWIN, "embed_dim": 12, "depths": [2, 2], "num_heads": [3, 6]},
    # 30 pixels make 15 x 15 patches: windows of 4 need padding, and so does merging.
    "swin-base": {
        **_SWIN,
        "image_size": 30,
        "embed_dim": 8,
        "depths": [2, 1, 2],
        "num_heads": [2, 4, 8],
        "window_size": 3,
    },
    "roberta-base": {
        "vocab_size": 60,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 32,
        "max_position_embeddings": 20,
    },
}
SHAPES = {
    "vit-base": (3, 32, 32),
    "swin-tiny": (3, 32, 32),
    "swin-base": (3, 30, 30),
    "roberta-base": (2, 12),
}
CLASSES, BATCH = 5, 4


def spec_of(name: str, tuning: FineTuningSpec) -> TransformerSpec:
    length = 12 if name == "roberta-base" else None
    return TransformerSpec(
        name=name, weights="random", source=None, revision=None, fine_tuning=tuning, length=length
    )


def small(name: str, tuning: FineTuningSpec) -> TransformerClassifier:
    torch.manual_seed(0)
    changes = CHANGES[name]
    model = classifier.build(spec_of(name, tuning), SHAPES[name], CLASSES, **changes).train()
    # As after some training: a factor at zero would hide the gradient of its partner.
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def records_for(model: TransformerClassifier, name: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    records = registry.synthetic_records(model, torch.randn(BATCH, *SHAPES[name]))
    if model.vocabulary:
        records[records == model.padding] = 5
        records[:, 1] = 0
        records[0, 0, 7:] = model.padding
        records[2, 0, 4:] = model.padding
    return records, torch.arange(BATCH) % 2
