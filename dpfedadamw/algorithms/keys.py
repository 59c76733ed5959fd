"""Keys that several algorithms have, each defined once."""

from __future__ import annotations

from typing import Annotated

from dpfedadamw.spec.algorithm_section import AlgorithmSpec
from dpfedadamw.spec.section import AbsentNumber, Section, key

WeightDecay = Annotated[
    float,
    key(
        0.01,
        "Decoupled weight decay: each step shrinks the weights by learning rate times this.",
        ge=0,
        le=1000,
        examples=(0.01, 0),
    ),
]
CoupledDecay = Annotated[
    float,
    key(
        0.01,
        "Plain L2: this times the weights is added to each gradient before the moments see it.",
        title="Weight decay",
        ge=0,
        le=1000,
        examples=(0.01, 0),
    ),
]
Beta1 = Annotated[
    float, key(0.9, "Decay of the first moment's moving average.", title="First decay", ge=0, lt=1)
]
Beta2 = Annotated[
    float,
    key(
        0.999,
        "Decay of the second moment's moving average.",
        title="Second decay",
        ge=0,
        lt=1,
        examples=(0.999, 0.99),
    ),
]
Epsilon = Annotated[
    float,
    key(
        1e-08,
        "Small number added to AdamW's denominator; not the ε of the privacy claim.",
        title="Denominator's epsilon",
        gt=0,
        le=1,
    ),
]
LocalWeight = Annotated[
    float,
    key(
        0.1,
        "Weight α of the local direction in each local step; the rest, 1 - α, is the last "
        "global update's. At 1 the clients ignore it.",
        gt=0,
        le=1,
        examples=(0.1, 1),
    ),
]


class ServerSpec(Section, title="Server"):
    """What the server does with the mean update, and which model is published."""

    learning_rate: float = key(
        1.0,
        "Factor of the mean update: 1 is the plain average, as the papers print it. Larger than 1 "
        "with a smaller local rate keeps the clients nearer the model that they share.",
        title="Server learning rate",
        gt=0,
        le=1000,
    )
    averaging: float | None = key(
        None,
        "Evaluate and publish a running average of the models after each round, in which round s "
        "counts about s to this power: 0 is the plain mean, and at 8 the last rounds count most. "
        "It costs no privacy and suits a constant schedule; not with privacy.unit client. Without "
        "it the last round's model is published.",
        title="Averaging of models",
        ge=0,
        le=1000,
        examples=(8, 0),
    )


class LastModelServer(ServerSpec, title="Server"):
    """What the server does with the mean update; the last round's model is published."""

    averaging: AbsentNumber = None


class DescentKeys(AlgorithmSpec):
    """Keys of gradient descent, which all rules of that kind have."""

    weight_decay: WeightDecay = 0.001
    server: ServerSpec = ServerSpec()


class MomentKeys(AlgorithmSpec):
    """Keys of rules with a first and a second moment."""

    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    server: ServerSpec = ServerSpec()
