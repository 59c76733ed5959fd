"""Vision transformers that are trained from scratch: their keys, checks and registration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpfedadamw.errors import ModelError
from dpfedadamw.models.registry import ModelEntry, register, require_images
from dpfedadamw.spec.data_section import datasets
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.section import Contradictions, Values, key, multiple_of

if TYPE_CHECKING:
    from torch import nn

_TINY = {"patch": 4, "width": 192, "depth": 6, "heads": 3, "mlp_ratio": 4}


class ViTSpec(ModelSpec, title="Vision transformer"):
    """A small vision transformer with class token; for images."""

    name: Literal["vit"] = "vit"
    patch: int = key(
        2,
        "Side of a square patch; divides the images' height and width.",
        unit="pixels",
        ge=1,
        le=1024,
        examples=(2, 4),
    )
    width: int = key(
        32,
        "Width of a token; must be a multiple of heads.",
        unit="features",
        ge=1,
        le=65_536,
        examples=(32, 64),
    )
    depth: int = key(2, "Number of transformer blocks.", unit="blocks", ge=1, le=64)
    heads: int = key(4, "Attention heads of each transformer block.", unit="heads", ge=1, le=1024)
    mlp_ratio: int = key(
        2,
        "Hidden width of a block's perceptron as a multiple of width.",
        title="Perceptron ratio",
        ge=1,
        le=64,
        examples=(2, 4),
    )


class ViTTinySpec(ModelSpec, title="ViT-Tiny"):
    """The vision transformer that FedAdamW trains from scratch; for images.

    Patches of 4, width 192, 6 blocks, 3 heads.
    """

    name: Literal["vit-tiny"] = "vit-tiny"
    dropout: float = key(
        0.1,
        "Share of entries dropped after attention and after the perceptron, with a mask for "
        "each record.",
        ge=0,
        le=0.9,
        examples=(0.1, 0.0),
    )


def _build(keys: ViTSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.networks.vit import VisionTransformer

    sizes = {key: getattr(keys, key) for key in _TINY}
    return VisionTransformer(input_shape, **sizes, classes=classes)


def _build_tiny(keys: ViTTinySpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.networks.vit import VisionTransformer

    return VisionTransformer(
        input_shape, **_TINY, classes=classes, dropout=keys.dropout, from_scratch=True
    )


def _reads(keys: ViTSpec, input_shape: Sequence[int]) -> None:
    _require_patches(keys.name, input_shape, keys.patch, "model.patch")


def _reads_tiny(keys: ViTTinySpec, input_shape: Sequence[int]) -> None:
    _require_patches(keys.name, input_shape, _TINY["patch"], "model.name")


def _small(keys: ViTTinySpec, folder: Path) -> ViTSpec:
    del folder
    return ViTSpec(name="vit", seed=keys.seed, patch=4, width=8, depth=1, heads=2, mlp_ratio=2)


def _require_patches(name: str, input_shape: Sequence[int], patch: int, where: str) -> None:
    require_images(name, input_shape)
    height, width = input_shape[1:]
    if height % patch or width % patch:
        raise ModelError(
            f"{where}: {patch} does not divide the images' size {height} x {width}; use "
            f"{'a divisor of both' if where == 'model.patch' else 'vit, with a patch that does'}"
        )


def _check_sizes(get: Values) -> Contradictions:
    """Heads divide a token's width, and patches divide images whose size is known beforehand."""
    width, heads = get("model", "width"), get("model", "heads")
    if width and heads and width % heads:
        message = f"{get.found('model', 'width')}, but {get.shown('model', 'heads')}"
        yield ("model", "width"), f"{message}; {multiple_of(heads, width)}"
    patch, name = get("model", "patch"), get("data", "dataset")
    shape = datasets()[name].record_shape if name in datasets() else None
    if patch and shape and len(shape) == 3 and any(side % patch for side in shape[1:]):
        fits = [n for n in range(1, min(shape[1:]) + 1) if not any(side % n for side in shape[1:])]
        yield (
            ("model", "patch"),
            f"found {patch}, but {name} are {shape[1]} x {shape[2]} pixels; must be one of "
            f"{', '.join(map(str, fits))}",
        )


register(
    ModelEntry(
        name="vit",
        keys=ViTSpec,
        summary="small vision transformer with class token, pre-norm, for images",
        source="Dosovitskiy et al. 2021",
        build=_build,
        reads=_reads,
        check=_check_sizes,
        place=4,
    ),
    ModelEntry(
        name="vit-tiny",
        keys=ViTTinySpec,
        summary="ViT-Tiny from scratch: patches of 4, width 192, 6 layers, 3 heads, for images",
        source="FedAdamW, appendix C",
        build=_build_tiny,
        reads=_reads_tiny,
        small=_small,
        place=5,
    ),
)
