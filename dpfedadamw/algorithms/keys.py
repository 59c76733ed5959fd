"""Keys that several algorithms have, or that others read, each defined once."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

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
        "Plain L2: this factor times the weights is added to each gradient before the moments.",
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
        "counts about s to this power. 0 is the plain mean, and at 8 the last rounds count most. "
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


class FloorSpec(Section, title="Floor"):
    """Lower limit of the debiased second moment; exactly one of relative and absolute.

    The debiased moment is an estimate that is negative for about half of all coordinates.
    """

    exactly_one: ClassVar[bool] = True

    relative: float | None = key(
        None,
        "Floor of the debiased second moment as a multiple of Φ, the variance that the noise "
        "adds to a coordinate of the averaged gradient. Without noise Φ is 0, and so is the "
        "floor.",
        title="Relative floor",
        unit="Φ",
        ge=0,
        le=1_000_000,
        examples=(1.0, 0.1),
    )
    absolute: float | None = key(
        None,
        "Floor of the debiased second moment as a number in the gradient's units squared; "
        "has to be tuned to the noise.",
        title="Absolute floor",
        ge=0,
        le=1_000_000,
        examples=(1e-08,),
    )


class SecondMomentSpec(Section, title="Second moment"):
    """How the second moment is shared, corrected and bounded."""

    aggregation: Literal["heads", "hessian", "tensor", "layer", "full", "none"] = key(
        "heads",
        "Blocks whose mean of the second moment is shared: heads, hessian, tensor, layer, full "
        "(every coordinate) or none (restarts at 0 every round). With heads, each head of query, "
        "key and value is a block, and every other layer is one. Blocks of hessian are finer: by "
        "token, head or output neuron.",
        examples=("heads", "tensor"),
    )
    debias: bool = key(True, "Subtract Φ, the noise's part, from the second moment.")
    counter: Literal["global", "local"] = key(
        "global",
        "Steps that the bias correction counts: global (of the whole run) or local (of the "
        "round; as printed in the paper, biased from the second round on, an ablation).",
    )
    floor: FloorSpec = FloorSpec(relative=1.0)
    denominator: Literal["coordinate", "block"] = key(
        "coordinate",
        "coordinate: one denominator a coordinate; block: one a block, from the block's "
        "mean, which has less noise.",
    )


class SparsificationSpec(Section, title="Sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: str
    fraction: float = key(
        0.4,
        "Share k/d of the coordinates that survives, the same in every round; 1 keeps all.",
        gt=0,
        le=1,
        examples=(0.4, 1),
    )


class TopSparsification(SparsificationSpec, title="Top-k sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: Literal["local-top", "released-top"] = key(
        "local-top",
        "local-top: each client's own largest, which stay private: noise on every "
        "coordinate. released-top: public coordinates too, half of them those that the last "
        "release moved most, the rest drawn.",
    )
