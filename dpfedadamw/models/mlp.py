"""The multi-layer perceptron, the smallest model: its keys and its registration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from dpfedadamw.models.registry import ModelEntry, any_shape, register
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.section import key

if TYPE_CHECKING:
    from torch import nn

_Neurons = Annotated[
    int,
    key(..., "Width of one layer.", title="Width", unit="neurons", ge=1, le=65_536, examples=(32,)),
]


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


def _build(keys: MLPSpec, input_shape: Sequence[int], classes: int) -> nn.Module:
    from dpfedadamw.models.networks.mlp import MultiLayerPerceptron

    return MultiLayerPerceptron(input_shape, keys.hidden, classes)


register(
    ModelEntry(
        name="mlp",
        keys=MLPSpec,
        summary="multi-layer perceptron with ReLU; hidden: [] is softmax regression",
        source="Rumelhart, Hinton & Williams 1986",
        build=_build,
        reads=any_shape,
        place=0,
    )
)
