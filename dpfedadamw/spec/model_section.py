"""The section `model` of a spec: one class a family of models."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from dpfedadamw.spec.section import AbsentInteger, AbsentText, Section, key, one_of

_Neurons = Annotated[
    int,
    key(..., "Width of one layer.", title="Width", unit="neurons", ge=1, le=65_536, examples=(32,)),
]
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
_LayerName = Annotated[
    str,
    key(
        ...,
        "Last part of a layer's name.",
        title="Layer",
        min_length=1,
        max_length=100,
        examples=("query",),
    ),
]


class ModelSpec(Section, title="Model"):
    """The model that is trained."""

    name: str = key(..., "Which model is trained: {names}.", title="Model")


class MLPSpec(ModelSpec, title="Multi-layer perceptron"):
    """Dense layers with ReLU."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[_Neurons, ...] = key(
        (32,),
        "Width of each hidden layer, first to last; an empty list is softmax regression.",
        title="Hidden layers",
        unit="neurons",
        max_length=8,
        examples=((32,), (64, 32), ()),
    )


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


class ResNetSpec(ModelSpec, title="ResNet-18"):
    """ResNet-18 with group normalisation, a 3 x 3 stem and no early downsampling.

    For small images.
    """

    name: Literal["resnet18"] = "resnet18"


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
        "Width of a token; a multiple of heads.",
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
        unit="1",
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
        unit="1",
        ge=0,
        le=0.9,
        examples=(0.1, 0.0),
    )


class FineTuningSpec(Section, title="Fine-tuning"):
    """What of a published model is trained."""

    kind: str = key(
        ...,
        "lora: low-rank pairs beside frozen layers, and the head; all: everything; head: the "
        "head alone.",
    )


class LoraSpec(FineTuningSpec, title="Low-rank pairs"):
    """Trains low-rank pairs beside frozen layers, and the head (LoRA)."""

    kind: Literal["lora"] = "lora"
    rank: int = key(16, "Rank r of each pair.", unit="1", ge=1, le=1024)
    alpha: float = key(
        32.0,
        "A pair's output is multiplied by alpha/rank.",
        title="Scale",
        unit="1",
        gt=0,
        le=10_000,
    )
    dropout: float = key(
        0.1,
        "Share of a pair's inputs dropped, with a mask for each record.",
        unit="1",
        ge=0,
        le=0.9,
        examples=(0.1, 0.0),
    )
    factors: Literal["both", "b"] = key(
        "both",
        "both: A and B; b: B alone, beside an A that stays as it was drawn (FFA-LoRA): noise "
        "then enters the pairs once and not as a product, and the mean of clients' pairs is "
        "exact.",
        title="Trained factors",
        examples=("both", "b"),
    )
    target_modules: tuple[_LayerName, ...] = key(
        (),
        "Layers that get a pair, by the last part of their name; an empty list is queries "
        "and values.",
        title="Layers",
        max_length=32,
        examples=((), ("query", "value")),
    )


class PlainTuningSpec(FineTuningSpec, title="Everything, or the head alone"):
    """Trains every parameter that the output depends on, or the head alone."""

    kind: Literal["all", "head"]


_FineTuning = Annotated[FineTuningSpec, one_of("kind", LoraSpec, PlainTuningSpec, short_form=True)]


class TransformerSpec(ModelSpec, title="Published transformer"):
    """A published transformer with a fresh head."""

    weights: Literal["pretrained", "random"] = key(
        "pretrained",
        "pretrained: as published; random: fresh, from the published configuration, with no "
        "download.",
        examples=("pretrained", "random"),
    )
    source: str | None = key(
        None,
        "A folder with config.json and model.safetensors, or a repository on the Hugging "
        "Face hub; none for the repository that belongs to the name.",
        max_length=1000,
        examples=(None, "models/vit-base"),
    )
    revision: str | None = key(
        None,
        "The commit of the hub's repository; none for a folder, or where nothing is read.",
        pattern=r"^[0-9a-f]{40}$",
        expected="a commit, 40 hexadecimal digits in quotes",
        why="a branch or tag can move, and a run must say which weights it began with",
        examples=(None, "0123456789abcdef0123456789abcdef01234567"),
    )
    length: AbsentInteger = None
    pooling: AbsentText = None
    fine_tuning: _FineTuning = key(
        LoraSpec(),
        "What of the published model is trained; the bare name of a kind is a short form.",
        title="Fine-tuning",
        examples=("lora", "all", {"kind": "lora", "rank": 8}),
    )


class ImageTransformerSpec(TransformerSpec, title="Published image transformer"):
    """ViT-Base (patches of 16), Swin-Tiny or Swin-Base (windows of 7), with a fresh head.

    Images are resized to 224 x 224.
    """

    name: Literal["vit-base", "swin-tiny", "swin-base"]


class TextTransformerSpec(TransformerSpec, title="Published text transformer"):
    """RoBERTa-Base with a fresh head; for texts."""

    name: Literal["roberta-base"] = "roberta-base"
    length: int = key(
        128,
        "Tokens of a text; longer ones are cut, shorter ones padded.",
        unit="tokens",
        ge=4,
        le=8192,
    )


class AnyTransformerSpec(TransformerSpec, title="Any published transformer"):
    """Any classifier of images or texts that the library transformers has, with a fresh head."""

    key_order: ClassVar[tuple[str, ...]] = ("name", "source", "revision", "weights")

    name: Literal["transformers"] = "transformers"
    source: str = key(
        ...,
        "A folder with config.json and model.safetensors, or a repository on the Hugging Face hub.",
        min_length=1,
        max_length=1000,
        examples=("models/minilm", "google/vit-base-patch16-224-in21k"),
    )
    length: int = key(
        128,
        "Tokens of a text; longer ones are cut, shorter ones padded. Not used for images.",
        unit="tokens",
        ge=4,
        le=8192,
    )
    pooling: Literal["published", "mean"] = key(
        "published",
        "What class scores of a text are taken from. published: what the architecture's "
        "classifier looks at, mostly the first token; mean: the mean over its tokens, for "
        "which encoders of sentences were trained. Not used for images.",
        examples=("published", "mean"),
    )


MODEL = one_of(
    "name",
    MLPSpec,
    CNNSpec,
    SimpleCNNSpec,
    ResNetSpec,
    ViTSpec,
    ViTTinySpec,
    ImageTransformerSpec,
    TextTransformerSpec,
    AnyTransformerSpec,
)
