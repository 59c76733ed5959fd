"""Small convolutional networks without layers that mix records."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dpfedadamw.vectors.parameter_roles import ParameterRoles


class GroupNormCNN(nn.Module):
    """Blocks of 3x3 convolution, GroupNorm, ReLU; halved resolution between them; a linear head.

    BatchNorm would let one record change the gradients of all others in its batch, which no
    per-record clipping can bound; GroupNorm (Wu & He 2018) takes its place.

    Args:
        input_shape: Shape of one record, (channels, height, width).
        channels: Output channels of each block.
        groups: Groups of every GroupNorm; divides each entry of ``channels``.
        classes: Number of classes.
    """

    def __init__(
        self, input_shape: Sequence[int], channels: Sequence[int], groups: int, classes: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = input_shape[0]
        for position, outputs in enumerate(channels):
            stride = 1 if position == 0 else 2
            layers += [
                nn.Conv2d(width, outputs, kernel_size=3, stride=stride, padding=1),
                nn.GroupNorm(groups, outputs),
                nn.ReLU(),
            ]
            width = outputs
        self.body = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(4 * width, classes)
        self.parameter_roles = ParameterRoles({}, row_wise=frozenset({"head.weight", "head.bias"}))

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores [b, classes] of images [b, channels, height, width]."""
        scores: Tensor = self.head(self.pool(self.body(inputs)).flatten(1))
        return scores


class TwoPlusTwoCNN(nn.Module):
    """Two 5x5 convolutions, each with ReLU and 2x2 max-pooling, and two linear layers.

    The small network of DP-FedSAM (EMNIST) and ALI-DPFL, with the widths of McMahan et al. 2017 by
    default: the two papers give none.

    Args:
        input_shape: Shape of one record, (channels, height, width), at least 4 pixels a side.
        channels: Output channels of the two convolutions.
        hidden: Width of the first linear layer.
        classes: Number of classes.
    """

    def __init__(
        self, input_shape: Sequence[int], channels: Sequence[int], hidden: int, classes: int
    ) -> None:
        super().__init__()
        inputs, height, width = input_shape
        first, second = channels
        self.body = nn.Sequential(
            nn.Conv2d(inputs, first, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)
        self.parameter_roles = ParameterRoles({}, row_wise=frozenset({"head.weight", "head.bias"}))

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores [b, classes] of images [b, channels, height, width]."""
        scores: Tensor = self.head(self.body(inputs))
        return scores
