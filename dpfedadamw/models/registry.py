"""Builds the model that a spec names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.models.cnn import GroupNormCNN
from dpfedadamw.models.mlp import MultiLayerPerceptron
from dpfedadamw.models.vit import VisionTransformer
from dpfedadamw.spec import CNNSpec, MLPSpec, ModelSpec, ViTSpec

DESCRIPTIONS = {
    "mlp": "multi-layer perceptron with ReLU; hidden: [] is softmax regression",
    "cnn": "3x3 convolutions with GroupNorm and a linear head, for images",
    "vit": "small vision transformer with class token, pre-norm, for images",
}


class ModelError(DpfedadamwError):
    """The model that the spec names does not fit the data."""


def build(spec: ModelSpec, input_shape: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Build a model with fresh weights.

    Args:
        spec: The spec's section ``model``.
        input_shape: Shape of one record.
        classes: Number of classes.
        seed: Seed of the weights' initialisation. The initial weights do not depend on any record,
            so this seed is no secret.

    Raises:
        ModelError: If the model cannot read records of this shape.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match spec:
            case MLPSpec():
                return MultiLayerPerceptron(input_shape, spec.hidden, classes)
            case CNNSpec():
                _require_images(spec.name, input_shape)
                return GroupNormCNN(input_shape, spec.channels, spec.groups, classes)
            case ViTSpec():
                _require_images(spec.name, input_shape)
                height, width = input_shape[1:]
                if height % spec.patch or width % spec.patch:
                    raise ModelError(
                        f"model.patch: {spec.patch} does not divide the images' size "
                        f"{height} x {width}; use a divisor of both"
                    )
                return VisionTransformer(
                    input_shape,
                    spec.patch,
                    spec.width,
                    spec.depth,
                    spec.heads,
                    spec.mlp_ratio,
                    classes,
                )


def _require_images(name: str, input_shape: Sequence[int]) -> None:
    if len(input_shape) != 3:
        raise ModelError(
            f"model.name: {name} needs images (channels, height, width), but records have shape "
            f"{tuple(input_shape)}; use mlp"
        )
