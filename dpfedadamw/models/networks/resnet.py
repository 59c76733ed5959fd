"""ResNet-18 with GroupNorm for small images (He et al. 2016; DP-FedAdamW section 9.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from dpfedadamw.vectors.parameter_roles import ParameterRoles

_GROUPS = 32
_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with GroupNorm and a shortcut.

    Args:
        inputs: Channels that come in, a multiple of 32.
        outputs: Channels that go out, a multiple of 32.
        stride: Of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.GroupNorm(_GROUPS, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.GroupNorm(_GROUPS, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(_GROUPS, outputs)
            )

    def forward(self, inputs: Tensor) -> Tensor:
        """Transform images [b, inputs, h, w]."""
        hidden = F.relu(self.first_norm(self.first(inputs)))
        return F.relu(self.second_norm(self.second(hidden)) + self.shortcut(inputs))


class ResNet18(nn.Module):
    """A 3x3 stem without downsampling, four stages of two residual blocks, the mean, a linear head.

    Args:
        input_shape: Shape of one record, (channels, height, width).
        classes: Number of classes.
    """

    def __init__(self, input_shape: Sequence[int] = (3, 32, 32), classes: int = 10) -> None:
        super().__init__()
        width = _STAGES[0][0]
        self.stem = nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3, 1, 1, bias=False),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
        )
        blocks: list[nn.Module] = []
        for outputs, stride in _STAGES:
            blocks += [ResidualBlock(width, outputs, stride), ResidualBlock(outputs, outputs, 1)]
            width = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)
        self.parameter_roles = ParameterRoles({}, row_wise=frozenset({"head.weight", "head.bias"}))

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores [b, classes] of images [b, channels, height, width]."""
        hidden = self.blocks(self.stem(inputs))
        scores: Tensor = self.head(hidden.mean((2, 3)))
        return scores
