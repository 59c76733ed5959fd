"""What publishers say of the models that a spec can call by a short name: constants, no downloads.

A model with random weights is built from these alone. Sources: the configuration files published
with the weights (Dosovitskiy et al. 2021, Liu et al. 2021, Liu et al. 2019); the sizes are those of
DP-FedAdamW, Table 14.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

IMAGES, TEXT = "images", "text"
_HALF = (0.5, 0.5, 0.5)
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Published:
    """A published model.

    Attributes:
        summary: What it is, in one line.
        repository: Where its weights are, on the Hugging Face hub.
        licence: Of the weights, as the hub writes it.
        kind: The name of its architecture in transformers.
        reads: "images" or "text".
        configuration: Arguments of its configuration that are not the architecture's defaults, and
            those that matter most even if they are.
        mean: Subtracted from each channel of an image.
        deviation: Each channel is divided by it.
        interpolation: How images are resized.
    """

    summary: str
    repository: str
    licence: str
    kind: str
    reads: str
    configuration: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    interpolation: str = "bilinear"

    @property
    def source(self) -> str:
        """Paper and publisher."""
        return f"DP-FedAdamW, Table 14; {self.repository}"


def _swin(
    summary: str, name: str, licence: str, width: int, depths: list[int], heads: list[int]
) -> Published:
    configuration = {
        "image_size": 224,
        "num_channels": 3,
        "patch_size": 4,
        "embed_dim": width,
        "depths": depths,
        "num_heads": heads,
        "window_size": 7,
        "mlp_ratio": 4.0,
        "qkv_bias": True,
        "hidden_act": "gelu",
        "use_absolute_embeddings": False,
        "layer_norm_eps": 1e-5,
    }
    return Published(
        summary,
        name,
        licence,
        "swin",
        IMAGES,
        configuration,
        _IMAGENET_MEAN,
        _IMAGENET_DEVIATION,
        "bicubic",
    )


# The same architectures at a size for trial runs, whatever the published one's is.
SMALL: Mapping[str, Mapping[str, Any]] = {
    "vit": {
        "image_size": 32, "patch_size": 16, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8,
    },
    "swin": {
        "image_size": 32, "patch_size": 4, "window_size": 2, "embed_dim": 8, "depths": [1, 1],
        "num_heads": [2, 2], "mlp_ratio": 1.0,
    },
    "roberta": {
        "vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "max_position_embeddings": 514, "type_vocab_size": 1,
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    },
}  # fmt: skip

PUBLISHED = {
    "vit-base": Published(
        "ViT-Base of 224x224 images in patches of 16, published",
        "google/vit-base-patch16-224-in21k",
        "apache-2.0",
        "vit",
        IMAGES,
        {
            "image_size": 224,
            "num_channels": 3,
            "patch_size": 16,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu",
            "qkv_bias": True,
            "layer_norm_eps": 1e-12,
        },
        _HALF,
        _HALF,
    ),
    "swin-tiny": _swin(
        "Swin-Tiny of 224x224 images in windows of 7, published",
        "microsoft/swin-tiny-patch4-window7-224",
        "apache-2.0",
        96,
        [2, 2, 6, 2],
        [3, 6, 12, 24],
    ),
    "swin-base": _swin(
        "Swin-Base of 224x224 images in windows of 7, published",
        "microsoft/swin-base-patch4-window7-224-in22k",
        "apache-2.0",
        128,
        [2, 2, 18, 2],
        [4, 8, 16, 32],
    ),
    "roberta-base": Published(
        "RoBERTa-Base for texts, published",
        "FacebookAI/roberta-base",
        "mit",
        "roberta",
        TEXT,
        {
            "vocab_size": 50265,
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu",
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
            "bos_token_id": 0,
            "eos_token_id": 2,
        },
    ),
}
