"""Models that the timings are taken on beside ResNet-18: ViT-Tiny, an encoder with LoRA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention over tokens [b, t, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query: nn.Module = nn.Linear(width, width)
        self.key: nn.Module = nn.Linear(width, width)
        self.value: nn.Module = nn.Linear(width, width)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        query, key, value = (
            layer(tokens).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """Attention and a perceptron, each behind a LayerNorm and a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.contract(F.gelu(self.expand(self.mlp_norm(tokens))))


class VisionTransformer(nn.Module):
    """ViT-Tiny (Touvron et al. 2021) of some depth for 32x32 images in patches of 4x4."""

    def __init__(
        self, width: int = 192, depth: int = 6, heads: int = 3, image: int = 32, patch: int = 4
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(images), -1, -1)
        tokens = torch.cat([first, tokens], 1) + self.position
        return self.head(self.norm(self.layers(tokens))[:, 0])


class LowRankEncoder(nn.Module):
    """A frozen text encoder (MiniLM's size by default) with LoRA on queries and values."""

    def __init__(
        self,
        vocabulary: int = 8000,
        width: int = 384,
        depth: int = 6,
        heads: int = 12,
        length: int = 128,
        rank: int = 16,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(depth)))
        # Not every environment that collects tests has it.
        from peft import LoraConfig, inject_adapter_in_model

        adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["query", "value"])
        inject_adapter_in_model(adapters, self)
        self.requires_grad_(False)
        for name, parameter in self.layers.named_parameters():
            parameter.requires_grad_("lora_" in name)
            if "lora_B" in name:
                # As after some training: at its usual start of zero B hides A's gradient.
                nn.init.normal_(parameter, std=0.02)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.norm(self.tokens(tokens) + self.positions(positions))
        return self.head(self.layers(hidden).mean(1))
