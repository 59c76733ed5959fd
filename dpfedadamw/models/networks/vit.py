"""A small vision transformer (Dosovitskiy et al. 2021), pre-norm, with a class token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpfedadamw.models.networks.dropout import RecordDropout, dropping, number_layers
from dpfedadamw.vectors.parameter_roles import ParameterRoles


class Attention(nn.Module):
    """Multi-head self-attention with separate query, key and value layers.

    They are separate, not fused, so that each head's slice of each is a plain run of rows.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.projection = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mix tokens [b, t, width] of each record."""
        batch, length, width = tokens.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            layer(tokens).view(shape).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        projected: Tensor = self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class TransformerLayer(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and a residual connection."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, dropout: float) -> None:
        super().__init__()
        inner = round(width * mlp_ratio)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.attention_dropout = RecordDropout(dropout)
        self.mlp_dropout = RecordDropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens [b, t, width]."""
        tokens = tokens + self.attention_dropout(self.attention(self.attention_norm(tokens)))
        inner = F.gelu(self.expand(self.mlp_norm(tokens)))
        mixed: Tensor = tokens + self.mlp_dropout(self.contract(inner))
        return mixed


class VisionTransformer(nn.Module):
    """Patches, a class token, learned positions, transformer layers, a linear head.

    Args:
        input_shape: Shape of one record, (channels, height, width).
        patch: Side of a patch in pixels; divides height and width.
        width: Size of a token; a multiple of ``heads``.
        depth: Number of transformer layers.
        heads: Attention heads a layer.
        mlp_ratio: Inner width of the perceptron over ``width``.
        classes: Number of classes.
        dropout: After attention and after the perceptron, with a mask for each record.
        from_scratch: Linear weights by Glorot & Bengio 2010, and fixed sines for positions
            (FedAdamW appendix C); otherwise torch's weights and learned positions.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp_ratio: float,
        classes: int,
        dropout: float = 0.0,
        from_scratch: bool = False,
    ) -> None:
        super().__init__()
        channels, image_height, image_width = input_shape
        patches = (image_height // patch) * (image_width // patch)
        self.patch = patch
        self.embedding = nn.Linear(channels * patch * patch, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, patches + 1, width) * 0.02)
        self.layers = nn.Sequential(
            *(TransformerLayer(width, heads, mlp_ratio, dropout) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)
        self.parameter_roles = self._roles(depth, heads)
        if from_scratch:
            self.position = nn.Parameter(sines(patches + 1, width), requires_grad=False)
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight)
                    nn.init.zeros_(module.bias)
        number_layers(self)

    @staticmethod
    def _roles(depth: int, heads: int) -> ParameterRoles:
        of_heads = {
            f"layers.{layer}.attention.{name}.{kind}": heads
            for layer in range(depth)
            for name in ("query", "key", "value")
            for kind in ("weight", "bias")
        }
        values = frozenset(name for name in of_heads if ".value." in name)
        return ParameterRoles(
            of_heads, values, frozenset({"head.weight", "head.bias", "position", "class_token"})
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores [b, classes] of images [b, channels, height, width]."""
        with dropping(self, inputs, self.head.bias):
            return self._scores(inputs)

    def _scores(self, inputs: Tensor) -> Tensor:
        batch, channels, height, width = inputs.shape
        side = self.patch
        grid = inputs.reshape(batch, channels, height // side, side, width // side, side)
        patches = grid.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * side * side)
        tokens = self.embedding(patches)
        first = self.class_token.expand(batch, -1, -1)
        tokens = self.layers(torch.cat([first, tokens], dim=1) + self.position)
        scores: Tensor = self.head(self.norm(tokens)[:, 0])
        return scores


def sines(places: int, width: int) -> Tensor:
    """Sines and cosines of falling frequencies, [1, places, width] (Vaswani et al. 2017)."""
    place = torch.arange(places, dtype=torch.float64)[:, None]
    frequency = torch.exp(torch.arange(0, width, 2).double() * (-math.log(10_000.0) / width))
    waves = torch.zeros(1, places, width, dtype=torch.float64)
    waves[0, :, 0::2] = torch.sin(place * frequency)
    waves[0, :, 1::2] = torch.cos(place * frequency)[:, : width // 2]
    return waves.float()
