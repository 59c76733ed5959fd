"""One hidden layer with tanh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from dpfedadamw.models.registry import ModelEntry, register
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.section import key

if TYPE_CHECKING:
    from torch import nn


class TanhKeys(ModelSpec, title="Tanh network"):
    """One hidden layer with tanh."""

    name: Literal["acme-tanh"] = "acme-tanh"
    width: int = key(8, "Width of the hidden layer.", unit="neurons", ge=1, le=1024)


def _build(keys: TanhKeys, input_shape: Sequence[int], classes: int) -> nn.Module:
    from torch import nn

    from dpfedadamw.vectors.parameter_roles import ParameterRoles

    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), keys.width),
        nn.Tanh(),
        nn.Linear(keys.width, classes),
    )
    model.parameter_roles = ParameterRoles({}, row_wise=frozenset())
    return model


register(
    ModelEntry(
        name="acme-tanh",
        keys=TanhKeys,
        summary="one hidden layer with tanh",
        source="made for this test",
        build=_build,
    )
)
