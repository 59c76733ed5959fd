"""Builds the model that a spec names, and says what it needs of its records."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpfedadamw.models.cnn import GroupNormCNN, TwoPlusTwoCNN
from dpfedadamw.models.errors import ModelError
from dpfedadamw.models.mlp import MultiLayerPerceptron
from dpfedadamw.models.resnet import ResNet18
from dpfedadamw.models.vit import VisionTransformer
from dpfedadamw.preprocessing import ImagePreprocessing, Preprocessing
from dpfedadamw.spec import (
    CNNSpec,
    MLPSpec,
    ModelSpec,
    ResNetSpec,
    SimpleCNNSpec,
    TransformerSpec,
    ViTSpec,
    ViTTinySpec,
)

DESCRIPTIONS = {
    "mlp": "multi-layer perceptron with ReLU; hidden: [] is softmax regression",
    "cnn": "3x3 convolutions with GroupNorm and a linear head, for images",
    "simple-cnn": "two 5x5 convolutions with max-pooling, two linear layers, for images",
    "resnet18": "ResNet-18 with GroupNorm and a 3x3 stem, for small images",
    "vit": "small vision transformer with class token, pre-norm, for images",
    "vit-tiny": "ViT-Tiny from scratch: patches of 4, width 192, 6 layers, 3 heads, for images",
    "vit-base": "ViT-Base of 224x224 images in patches of 16, published",
    "swin-tiny": "Swin-Tiny of 224x224 images in windows of 7, published",
    "swin-base": "Swin-Base of 224x224 images in windows of 7, published",
    "roberta-base": "RoBERTa-Base for texts, published",
    "transformers": "any classifier of images or texts in transformers, by folder or hub name",
}
_VIT_TINY = {"patch": 4, "width": 192, "depth": 6, "heads": 3, "mlp_ratio": 4}


def preprocessing(spec: ModelSpec) -> Preprocessing:
    """What a model needs of its records before they are tensors.

    Raises:
        ModelError: If files that say so are missing.
    """
    if isinstance(spec, TransformerSpec):
        from dpfedadamw.models.transformer_records import preprocessing_of

        return preprocessing_of(spec)
    return ImagePreprocessing()


def build(spec: ModelSpec, input_shape: Sequence[int], classes: int, seed: int) -> nn.Module:
    """Build a model with fresh weights, or a published one with a fresh head.

    Args:
        spec: The spec's section ``model``.
        input_shape: Shape of one record.
        classes: Number of classes.
        seed: Seed of the weights' initialisation. The initial weights do not depend on any record,
            so this seed is no secret.

    Raises:
        ModelError: If the model cannot read records of this shape, or its files are missing.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        match spec:
            case MLPSpec():
                return MultiLayerPerceptron(input_shape, spec.hidden, classes)
            case CNNSpec():
                _require_images(spec.name, input_shape)
                return GroupNormCNN(input_shape, spec.channels, spec.groups, classes)
            case SimpleCNNSpec():
                _require_images(spec.name, input_shape, least=4)
                return TwoPlusTwoCNN(input_shape, spec.channels, spec.hidden, classes)
            case ResNetSpec():
                _require_images(spec.name, input_shape)
                return ResNet18(input_shape, classes)
            case ViTSpec():
                _require_patches(spec.name, input_shape, spec.patch, "model.patch")
                sizes = {key: getattr(spec, key) for key in _VIT_TINY}
                return VisionTransformer(input_shape, **sizes, classes=classes)
            case ViTTinySpec():
                _require_patches(spec.name, input_shape, _VIT_TINY["patch"], "model.name")
                return VisionTransformer(
                    input_shape,
                    **_VIT_TINY,
                    classes=classes,
                    dropout=spec.dropout,
                    from_scratch=True,
                )
            case TransformerSpec():
                from dpfedadamw.models import transformer

                return transformer.build(spec, input_shape, classes)
    raise TypeError(f"no model is built from {type(spec).__name__}")


def synthetic_records(model: nn.Module, values: Tensor) -> Tensor:
    """Records that a model can read, made of arbitrary numbers record by record.

    Args:
        model: As `build` returns it.
        values: float32 [b, *input_shape], anything.

    Returns:
        The values themselves where the model reads numbers. Where it reads tokens, token numbers
        that follow from the values' bits, and types of 0.
    """
    vocabulary = getattr(model, "vocabulary", 0)
    if not vocabulary:
        return values
    bits = values.contiguous().view(torch.int32).long() & 0x7FFFFFFF
    tokens = (bits * 2654435761 % 2**31 % vocabulary).to(torch.int32)
    tokens[:, 1] = 0
    return tokens


def _require_images(name: str, input_shape: Sequence[int], least: int = 1) -> None:
    if len(input_shape) != 3:
        raise ModelError(
            f"model.name: {name} needs images (channels, height, width), but records have shape "
            f"{tuple(input_shape)}; use mlp"
        )
    if min(input_shape[1:]) < least:
        raise ModelError(
            f"model.name: {name} needs images of at least {least} pixels a side, but records have "
            f"shape {tuple(input_shape)}; use cnn"
        )


def _require_patches(name: str, input_shape: Sequence[int], patch: int, where: str) -> None:
    _require_images(name, input_shape)
    height, width = input_shape[1:]
    if height % patch or width % patch:
        raise ModelError(
            f"{where}: {patch} does not divide the images' size {height} x {width}; use "
            f"{'a divisor of both' if where == 'model.patch' else 'vit, with a patch that does'}"
        )
