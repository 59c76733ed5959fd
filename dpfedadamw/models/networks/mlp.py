"""A multi-layer perceptron, the smallest model of the package."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from dpfedadamw.vectors.parameter_roles import ParameterRoles


class MultiLayerPerceptron(nn.Module):
    """Flatten, then linear layers with ReLU between them.

    Args:
        input_shape: Shape of one record.
        hidden: Width of each hidden layer; empty for softmax regression.
        classes: Number of classes.
    """

    def __init__(self, input_shape: Sequence[int], hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        widths = [math.prod(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], classes)
        self.parameter_roles = ParameterRoles({}, row_wise=frozenset({"head.weight", "head.bias"}))

    def applied_modules(self) -> tuple[nn.Module, ...]:
        """The modules that the forward pass applies one after another, and nothing else."""
        return (*self.body, self.head)

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores [b, classes] of records [b, *input_shape]."""
        scores: Tensor = self.head(self.body(inputs))
        return scores
