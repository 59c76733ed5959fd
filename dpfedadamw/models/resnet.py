"""ResNet-18 with group normalisation: its keys and its registration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpfedadamw.models.cnn import CNNSpec
from dpfedadamw.models.registry import ModelEntry, images, register
from dpfedadamw.spec.model_section import ModelSpec

if TYPE_CHECKING:
    from torch import nn


class ResNetSpec(ModelSpec, title="ResNet-18"):
    """ResNet-18 with group normalisation, a 3 x 3 stem and no early downsampling.

    For small images.
    """

    name: Literal["resnet18"] = "resnet18"


def _build(keys: ResNetSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.networks.resnet import ResNet18

    del keys
    return ResNet18(input_shape, classes)


def _small(keys: ResNetSpec, folder: Path) -> ModelSpec:
    del folder
    return CNNSpec(name="cnn", seed=keys.seed, channels=(4,), groups=2)


register(
    ModelEntry(
        name="resnet18",
        keys=ResNetSpec,
        summary="ResNet-18 with GroupNorm and a 3x3 stem, for small images",
        source="He et al. 2016; DP-FedAdamW, section 9.3",
        build=_build,
        reads=images,
        small=_small,
        place=3,
    )
)
