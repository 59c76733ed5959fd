"""Swin's attention with the records as the first dimension throughout.

The published code folds the windows of all images into one batch. That is correct, but per-record
gradients need to know which window belongs to which record. Here windows have a dimension of their
own, [b, windows, tokens, width]; the parameters, their names and what is computed stay the same.
Imported on use only, because it needs transformers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.swin.modeling_swin import (
    SwinAttention,
    SwinLayer,
    SwinRelativePositionBias,
)


class RecordFirstBias(SwinRelativePositionBias):
    """Relative position biases from one table, or from one copy of it a record."""

    # Tells the clipping engine that it may hand in a table with one copy a record.
    accepts_copies: ClassVar[bool] = True

    def forward(self) -> Tensor:
        """Biases [1 or b, heads, tokens, tokens]."""
        area = self.window_area
        chosen: Tensor = self.relative_position_bias_table[..., self.relative_position_index, :]
        return chosen.view(-1, area, area, chosen.shape[-1]).permute(0, 3, 1, 2)


class RecordFirstAttention(SwinAttention):
    """Attention inside each window of each record."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """Mix tokens [b, windows, tokens, width]; the mask is [windows, tokens, tokens]."""
        batch, windows, tokens, width = hidden_states.shape
        shape = (batch, windows, tokens, -1, self.head_dim)
        query, key, value = (
            layer(hidden_states).view(shape).transpose(2, 3)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        bias = self.relative_position_bias()[:, None]
        if attention_mask is not None:
            bias = bias + attention_mask[None, :, None]
        mixed = F.scaled_dot_product_attention(
            query, key, value, attn_mask=bias, scale=self.scaling
        )
        return self.o_proj(mixed.transpose(2, 3).reshape(batch, windows, tokens, width)), None


class RecordFirstLayer(SwinLayer):
    """A Swin layer whose windows keep their record."""

    def forward(
        self,
        hidden_states: Tensor,
        input_dimensions: tuple[int, int],
        always_partition: bool = False,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Transform tokens [b, height · width, channels]."""
        if not always_partition:
            self.set_shift_and_window_size(input_dimensions)
        height, width = input_dimensions
        batch, _places, channels = hidden_states.shape
        side = self.window_size
        images = self.layernorm_before(hidden_states).view(batch, height, width, channels)
        padded, _pads = self.maybe_pad(images, height, width)
        down, right = padded.shape[1] // side, padded.shape[2] // side
        windows = (
            self.cyclic_shift(padded)
            .view(batch, down, side, right, side, channels)
            .transpose(2, 3)
            .reshape(batch, down * right, side * side, channels)
        )
        mask = self.get_attn_mask(
            padded.shape[1], padded.shape[2], dtype=windows.dtype, device=windows.device
        )
        mixed = self.dropout(self.attention(windows, mask)[0])
        mixed = (
            mixed.view(batch, down, right, side, side, channels)
            .transpose(2, 3)
            .reshape(padded.shape)
        )
        mixed = self.cyclic_shift(mixed, reverse=True)[:, :height, :width]
        hidden = hidden_states + self.drop_path(mixed.reshape(batch, height * width, channels))
        grown = self.dropout(self.mlp(self.layernorm_after(hidden)))
        return hidden + grown, None


_KINDS: dict[type[nn.Module], type[nn.Module]] = {
    SwinRelativePositionBias: RecordFirstBias,
    SwinAttention: RecordFirstAttention,
    SwinLayer: RecordFirstLayer,
}


def keep_records_first(model: nn.Module) -> None:
    """Let every Swin layer of a model work on [b, windows, …]; other models stay as they are."""
    for module in model.modules():
        kind = _KINDS.get(type(module))
        if kind is not None:
            module.__class__ = kind
