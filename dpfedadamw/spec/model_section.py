"""The section `model` of a spec: one dataclass a family of models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MLPSpec:
    """A multi-layer perceptron.

    Attributes:
        name: "mlp".
        hidden: Width of each hidden layer; empty is softmax regression.
    """

    name: str
    hidden: tuple[int, ...]


@dataclass(frozen=True)
class CNNSpec:
    """A convolutional network with group normalisation.

    Attributes:
        name: "cnn".
        channels: Output channels of each convolution, multiples of `groups`.
        groups: Groups of each normalisation layer.
    """

    name: str
    channels: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class ViTSpec:
    """A small vision transformer.

    Attributes:
        name: "vit".
        patch: Side of a square patch in pixels.
        width: Width of a token, a multiple of `heads`.
        depth: Number of transformer blocks.
        heads: Attention heads of each block.
        mlp_ratio: Hidden width of a block's perceptron as a multiple of `width`.
    """

    name: str
    patch: int
    width: int
    depth: int
    heads: int
    mlp_ratio: int


@dataclass(frozen=True)
class SimpleCNNSpec:
    """Two 5 x 5 convolutions with pooling and two linear layers.

    Attributes:
        name: "simple-cnn".
        channels: Output channels of the two convolutions.
        hidden: Width of the first linear layer.
    """

    name: str
    channels: tuple[int, ...]
    hidden: int


@dataclass(frozen=True)
class ResNetSpec:
    """ResNet-18 with group normalisation for small images.

    Attributes:
        name: "resnet18".
    """

    name: str


@dataclass(frozen=True)
class ViTTinySpec:
    """The ViT-Tiny that is trained from scratch in FedAdamW, appendix C.

    Attributes:
        name: "vit-tiny".
        dropout: After attention and perceptron, in [0, 0.9].
    """

    name: str
    dropout: float


@dataclass(frozen=True)
class PlainTuningSpec:
    """All of a published model is trained, or its head alone.

    Attributes:
        kind: "all" or "head".
    """

    kind: str


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank pairs beside a published model's frozen layers are trained, and its head.

    Attributes:
        kind: "lora".
        rank: Rank r of the pairs, ≥ 1.
        alpha: The pairs' output is multiplied by alpha/rank, > 0.
        dropout: On the pairs' inputs, in [0, 0.9].
        factors: "both", or "b": A stays as it was drawn (Sun et al. 2024, FFA-LoRA).
        target_modules: Layers that get a pair, by the last part of their name; empty for queries
            and values.
    """

    kind: str
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.1
    factors: str = "both"
    target_modules: tuple[str, ...] = ()


FineTuningSpec = LoraSpec | PlainTuningSpec


@dataclass(frozen=True)
class TransformerSpec:
    """A published transformer with a fresh head.

    Attributes:
        name: "vit-base", "swin-tiny", "swin-base", "roberta-base", or "transformers" for any other.
        weights: "pretrained" or "random".
        source: A folder, or a repository on the hub; None for the one that belongs to the name.
        revision: The repository's commit, 40 hexadecimal digits; None for a folder.
        fine_tuning: What is trained.
        length: Tokens of a text; None for models of images.
        pooling: "published" or "mean": what class scores of texts are taken from; None for models
            that have no choice.
    """

    name: str
    weights: str
    source: str | None
    revision: str | None
    fine_tuning: FineTuningSpec
    length: int | None = None
    pooling: str | None = None


ModelSpec = MLPSpec | CNNSpec | SimpleCNNSpec | ResNetSpec | ViTSpec | ViTTinySpec | TransformerSpec
