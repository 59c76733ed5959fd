"""Convolutional networks for small images: their keys, checks and registration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from dpfedadamw.models.registry import ModelEntry, images, register, require_images
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.section import Contradictions, Values, key, multiple_of

if TYPE_CHECKING:
    from torch import nn

_Channels = Annotated[
    int,
    key(
        ...,
        "Output channels of one convolution.",
        title="Channels",
        unit="channels",
        ge=1,
        le=65_536,
        examples=(16,),
    ),
]


class CNNSpec(ModelSpec, title="Convolutional network"):
    """Convolutions of 3 x 3 with group normalisation, which mixes no records, and a linear head.

    For images.
    """

    name: Literal["cnn"] = "cnn"
    channels: tuple[_Channels, ...] = key(
        (16, 32),
        "Output channels of each convolution, first to last; each a multiple of groups.",
        unit="channels",
        min_length=1,
        max_length=8,
    )
    groups: int = key(4, "Groups of each group normalisation.", unit="groups", ge=1, le=65_536)


class SimpleCNNSpec(ModelSpec, title="Simple convolutional network"):
    """Two 5 x 5 convolutions with max-pooling and two linear layers; for images.

    As DP-FedSAM and ALI-DPFL use it.
    """

    name: Literal["simple-cnn"] = "simple-cnn"
    channels: tuple[_Channels, ...] = key(
        (32, 64),
        "Output channels of the two convolutions.",
        unit="channels",
        min_length=2,
        max_length=2,
        examples=((32, 64), (16, 32)),
    )
    hidden: int = key(
        512,
        "Width of the first linear layer.",
        title="Hidden layer",
        unit="neurons",
        ge=1,
        le=65_536,
        examples=(512, 32),
    )


def _build_cnn(keys: CNNSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.networks.cnn import GroupNormCNN

    return GroupNormCNN(input_shape, keys.channels, keys.groups, classes)


def _build_simple(keys: SimpleCNNSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.networks.cnn import TwoPlusTwoCNN

    return TwoPlusTwoCNN(input_shape, keys.channels, keys.hidden, classes)


def _reads_simple(keys: SimpleCNNSpec, input_shape: Sequence[int]) -> None:
    require_images(keys.name, input_shape, least=4)


def _small_simple(keys: SimpleCNNSpec, folder: Path) -> SimpleCNNSpec:
    del folder
    return keys.replace(channels=(2, 4), hidden=8)


def _check_groups(get: Values) -> Contradictions:
    """Every layer's channels are divided into the groups of its normalisation."""
    groups = get("model", "groups")
    for index, channels in enumerate(get("model", "channels") or []):
        path = ("model", "channels", index)
        if groups and not get.is_bad(*path) and channels % groups:
            message = f"found {channels}, but {get.shown('model', 'groups')}"
            yield path, f"{message}; {multiple_of(groups, channels)}"


class ResNetSpec(ModelSpec, title="ResNet-18"):
    """ResNet-18 with group normalisation, a 3 x 3 stem and no early downsampling.

    For small images.
    """

    name: Literal["resnet18"] = "resnet18"


def _build_resnet(keys: ResNetSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.networks.resnet import ResNet18

    del keys
    return ResNet18(input_shape, classes)


def _small_resnet(keys: ResNetSpec, folder: Path) -> ModelSpec:
    del folder
    return CNNSpec(name="cnn", seed=keys.seed, channels=(4,), groups=2)


register(
    ModelEntry(
        name="cnn",
        keys=CNNSpec,
        summary="3x3 convolutions with GroupNorm and a linear head, for images",
        source="Wu & He 2018 (GroupNorm)",
        build=_build_cnn,
        reads=images,
        check=_check_groups,
        place=1,
    ),
    ModelEntry(
        name="simple-cnn",
        keys=SimpleCNNSpec,
        summary="two 5x5 convolutions with max-pooling, two linear layers, for images",
        source="DP-FedSAM (EMNIST); ALI-DPFL; McMahan et al. 2017",
        build=_build_simple,
        reads=_reads_simple,
        small=_small_simple,
        place=2,
    ),
    ModelEntry(
        name="resnet18",
        keys=ResNetSpec,
        summary="ResNet-18 with GroupNorm and a 3x3 stem, for small images",
        source="He et al. 2016; DP-FedAdamW, section 9.3",
        build=_build_resnet,
        reads=images,
        small=_small_resnet,
        place=3,
    ),
)
