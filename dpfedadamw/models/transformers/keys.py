"""The keys of published transformers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.section import AbsentInteger, AbsentText, Section, key, one_of

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


class FineTuningSpec(Section, title="Fine-tuning"):
    """Which part of a published model is trained."""

    kind: str = key(
        ...,
        "lora: low-rank pairs added to frozen layers, and the head; all: everything; head: only "
        "the head.",
    )


class LoraSpec(FineTuningSpec, title="Low-rank pairs"):
    """Trains low-rank pairs that are added to frozen layers, and the head (LoRA)."""

    kind: Literal["lora"] = "lora"
    rank: int = key(16, "Rank r of each pair.", ge=1, le=1024)
    alpha: float = key(
        32.0, "A pair's output is multiplied by alpha/rank.", title="Scale", gt=0, le=10_000
    )
    dropout: float = key(
        0.1,
        "Share of a pair's inputs dropped, with a mask for each record.",
        ge=0,
        le=0.9,
        examples=(0.1, 0.0),
    )
    factors: Literal["both", "b"] = key(
        "both",
        "both: A and B. b: only B, with A fixed as drawn (FFA-LoRA): noise then enters the pairs "
        "once and not as a product, and the mean of clients' pairs is exact.",
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
        "A folder with config.json and model.safetensors, a GGUF file, or a repository on the "
        "Hugging Face hub; null for the repository that belongs to the name.",
        max_length=1000,
        examples=(None, "models/vit-base"),
    )
    revision: str | None = key(
        None,
        "The commit of the hub's repository; null for a folder or file, or where nothing is read.",
        pattern=r"^[0-9a-f]{40}$",
        expected="a commit, 40 hexadecimal digits in quotes",
        why="a branch or tag can move, and a run must state which weights it started with",
        examples=(None, "0123456789abcdef0123456789abcdef01234567"),
    )
    length: AbsentInteger = None
    pooling: AbsentText = None
    fine_tuning: _FineTuning = key(
        LoraSpec(),
        "Which part of the published model is trained; the name of a kind alone is a short form.",
        title="Fine-tuning",
        examples=("lora", "all", {"kind": "lora", "rank": 8}),
    )


class ImageTransformerSpec(TransformerSpec, title="Published image transformer"):
    """ViT-Base (patches of 16), Swin-Tiny or Swin-Base (windows of 7), with a fresh head.

    Images are resized to 224 x 224.
    """


def _length(description: str) -> Any:
    return key(128, description, unit="tokens", ge=4, le=8192)


_TOKENS = "Tokens per text; longer texts are cut, shorter ones padded."


class TextTransformerSpec(TransformerSpec, title="Published text transformer"):
    """RoBERTa-Base with a fresh head; for texts."""

    length: int = _length(_TOKENS)


class AnyTransformerSpec(TransformerSpec, title="Any published transformer"):
    """Any classifier of images or texts that the library transformers has, with a fresh head."""

    key_order: ClassVar[tuple[str, ...]] = ("name", "source", "revision", "weights")

    name: Literal["transformers"] = "transformers"
    source: str = key(
        ...,
        "A folder with config.json and model.safetensors, a GGUF file, or a repository on the "
        "Hugging Face hub.",
        min_length=1,
        max_length=1000,
        examples=("models/minilm", "google/vit-base-patch16-224-in21k"),
    )
    length: int = _length(f"{_TOKENS} Not used for images.")
    pooling: Literal["published", "mean"] = key(
        "published",
        "Where a text's class scores come from. published: what the architecture's classifier "
        "reads, mostly the first token. mean: the mean over its tokens, for which sentence "
        "encoders were trained. Not used for images.",
        examples=("published", "mean"),
    )
    gradient_checkpointing: bool = key(
        False,
        "Of a language model: compute each layer a second time on the way back, and keep only its "
        "inputs. It takes less memory and more time, and gives the same gradients.",
        examples=(False, True),
    )
