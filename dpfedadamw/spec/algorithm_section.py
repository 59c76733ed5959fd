"""The section `algorithm` of a spec: the local rule, its parts and its server."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from dpfedadamw.spec.section import Absent, AbsentNumber, AbsentText, Section, key, one_of

WeightDecay = Annotated[
    float,
    key(
        0.01,
        "Decoupled weight decay: each step shrinks the weights by learning rate times this.",
        unit="1",
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
        unit="1",
        ge=0,
        le=1000,
        examples=(0.01, 0),
    ),
]

Decay = Annotated[
    Literal["decoupled", "coupled"],
    key(
        "decoupled",
        "decoupled: weights shrink beside the step; coupled: plain L2, the decay is added to "
        "the gradient and passes through the moments.",
        examples=("decoupled", "coupled"),
    ),
]

Beta1 = Annotated[
    float,
    key(
        0.9,
        "Decay of the first moment's moving average.",
        title="First decay",
        unit="1",
        ge=0,
        lt=1,
    ),
]

Beta2 = Annotated[
    float,
    key(
        0.999,
        "Decay of the second moment's moving average.",
        title="Second decay",
        unit="1",
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
        unit="1",
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
        unit="1",
        gt=0,
        le=1,
        examples=(0.1, 1),
    ),
]


class FirstMomentSpec(Section, title="First moment"):
    """What the server does with the first moment."""

    aggregation: Literal["none", "full"] = key(
        "none",
        "none: restarts at 0 every round; full: averaged coordinate by coordinate, which "
        "doubles the upload.",
    )


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
        unit="1",
        ge=0,
        le=1_000_000,
        examples=(1e-08,),
    )


class SecondMomentSpec(Section, title="Second moment"):
    """How the second moment is shared, corrected and bounded."""

    aggregation: Literal["heads", "hessian", "tensor", "layer", "full", "none"] = key(
        "heads",
        "Blocks whose mean of the second moment is shared: heads (each head of query, key "
        "and value; every other layer one block), hessian (finer: by token, head or output "
        "neuron), tensor, layer, full (every coordinate) or none (restarts at 0 every round).",
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


class PlainSecondMoment(SecondMomentSpec, title="Second moment"):
    """How the second moment is shared, corrected and bounded."""

    debias: Literal[False] = key(
        False,
        "Subtract Φ, the noise's part, from the second moment.",
        why="without noise there is nothing to subtract",
    )


class SamSpec(Section, title="Sharpness-aware minimisation"):
    """How far the second query of a step looks."""

    radius: float = key(
        0.05,
        "Length ρ of the perturbation along the first noised gradient; at 0 there is none, "
        "and both queries are still made and paid for.",
        unit="1",
        ge=0,
        le=1000,
        examples=(0.05, 0),
    )


class BlurSpec(Section, title="Bounded local update regularisation"):
    """A penalty on local steps that go far: λ/2 · max(0, ‖θ − θ_t‖² − S²).

    θ_t is where the round began.
    """

    weight: float = key(
        0.1, "Weight λ of the penalty; 0 is none.", unit="1", ge=0, le=1_000_000, examples=(0.1, 0)
    )
    bound: float | None = key(
        None,
        "Distance S from the start of the round within which there is no penalty; null takes "
        "the clipping norm.",
        unit="1",
        ge=0,
        le=1_000_000_000,
        examples=(None, 0.5),
    )


class SmoothingSpec(Section, title="Laplacian smoothing"):
    """How noised gradients are smoothed over neighbouring coordinates."""

    strength: float = key(
        1.0,
        "Strength s of the smoothing (I - s L)⁻¹ with the second difference L; 0 is none.",
        unit="1",
        ge=0,
        le=1_000_000,
        examples=(1.0, 0),
    )
    scope: Literal["vector", "tensor"] = key(
        "vector",
        "Coordinates that are smoothed together: vector: all parameters, end to end; tensor: "
        "each parameter tensor by itself.",
        examples=("vector", "tensor"),
    )


class NoiseDecaySpec(Section, title="Noise decay"):
    """How the noise multiplier falls while the model learns."""

    factor: float = key(
        0.9,
        "What one decay multiplies the noise multiplier by; 1 is no decay.",
        unit="1",
        gt=0,
        le=1,
        examples=(0.9, 1),
    )
    patience: int = key(
        4,
        "Rounds in a row in which the released estimate of the loss must fall before one decay.",
        unit="rounds",
        ge=1,
        le=1_000_000,
        examples=(4, 3),
    )
    floor: float = key(
        0.5,
        "Least noise multiplier as a share of privacy.noise_multiplier, the first round's. "
        "What the run can spend is known from it beforehand.",
        unit="1",
        gt=0,
        le=1,
        examples=(0.5, 0.8),
    )


class LocalIterationsSpec(Section, title="Local iterations"):
    """Local steps that adapt from round to round.

    With the privacy budget they give what federation.local_steps and rounds begin from.
    """

    minimum: int = key(
        1,
        "Fewest local steps of a round; the last may take fewer, when less is left of the budget.",
        unit="steps",
        ge=1,
        le=100_000,
        examples=(1, 2),
    )
    maximum: int = key(
        10, "Most local steps of a round.", unit="steps", ge=1, le=100_000, examples=(10, 20)
    )
    heterogeneity: float = key(
        10.0,
        "Γ of ALI-DPFL, how unlike the clients' data are: 0 for alike; a public constant.",
        unit="1",
        ge=0,
        le=1_000_000_000,
        examples=(10.0, 0),
    )
    strong_convexity: float = key(
        0.1,
        "μ of ALI-DPFL: a public constant where estimate is false, otherwise what the first "
        "rounds go by.",
        unit="1",
        gt=0,
        le=1_000_000_000,
        examples=(0.1, 1.0),
    )
    estimate: bool = key(
        True,
        "Whether μ is estimated in every round from noised gradients. The steps then depend "
        "on released values, and ε is that of the most that could have been taken.",
        examples=(True, False),
    )


class SparsificationSpec(Section, title="Sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: str
    fraction: float = key(
        0.4,
        "Share k/d of the coordinates that survives, the same in every round; 1 keeps all.",
        unit="1",
        gt=0,
        le=1,
        examples=(0.4, 1),
    )


class PublicSparsification(SparsificationSpec, title="Public sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: Literal["random", "released-top"] = key(
        "random",
        "random: coordinates drawn from public randomness each round, the same for all "
        "clients, scaled by d/k before clipping; noise on these alone. released-top: public "
        "coordinates too, half of them those that the last release moved most, the rest "
        "drawn.",
    )


class RandomSparsification(SparsificationSpec, title="Random sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: Literal["random"] = key(
        "random",
        "random: coordinates drawn from public randomness each round, the same for all "
        "clients, scaled by d/k before clipping; noise on these alone.",
    )


class TopSparsification(SparsificationSpec, title="Top-k sparsification"):
    """Which coordinates of a client's update survive, before it is clipped."""

    kind: Literal["local-top", "released-top"] = key(
        "local-top",
        "local-top: each client's own largest, which stay private: noise on every "
        "coordinate. released-top: public coordinates too, half of them those that the last "
        "release moved most, the rest drawn.",
    )


class ServerSpec(Section, title="Server"):
    """What the server does with the mean update."""

    rule: AbsentText = None
    learning_rate: float
    beta1: AbsentNumber = None
    beta2: AbsentNumber = None
    epsilon: AbsentNumber = None


class AveragingServer(ServerSpec, title="Server"):
    """What the server does with the mean update."""

    learning_rate: float = key(
        1.0,
        "Factor of the mean update; 1 is the plain average.",
        title="Server learning rate",
        unit="1",
        gt=0,
        le=1000,
    )


class AdamServer(ServerSpec, title="Server"):
    """Adam on the server, applied to the mean update."""

    learning_rate: float = key(
        0.01,
        "Step size of the server's optimiser.",
        title="Server learning rate",
        unit="1",
        gt=0,
        le=1000,
    )
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.99
    epsilon: Epsilon = 0.001


class AdaptiveServer(AdamServer, title="Server"):
    """The optimiser that the server applies to the mean update."""

    rule: Literal["adam", "yogi"] = key(
        "adam", "Optimiser of the server.", examples=("adam", "yogi")
    )


class AlgorithmSpec(Section, title="Algorithm"):
    """The local rule and what the server does with it."""

    name: str = key(
        ...,
        "The local rule and its server. With unit record: dp-fedadamw, dp-localadamw, "
        "dp-fedavg, dp-scaffold, dp-fedavg-ls, dp-fedsam, dp-fedopt, dp-fafed, dp-fedlada, "
        "pe-dpfl, adap-dpfl, ali-dpfl; with unit client: dp-fedavg, dp-fedsam, fed-smp, "
        "dp-fedsam-randk, dp-fedsam-topk, blur, blurs; with unit none: local-adamw, "
        "fedavg, scaffold, fedlada, fedadamw, fedadamw-theory, local-adam, fedcm, "
        "fedadam.",
    )
    learning_rate: float = key(
        0.02, "Step size of the local rule in the first round.", unit="1", gt=0, le=1000
    )
    schedule: Literal["cosine", "constant"] = key(
        "cosine",
        "How the learning rate changes over rounds: cosine falls towards 0, constant stays.",
    )
    beta1: AbsentNumber = None
    beta2: AbsentNumber = None
    epsilon: AbsentNumber = None
    weight_decay: AbsentNumber = None
    decay: AbsentText = None
    alignment: AbsentNumber = None
    local_weight: AbsentNumber = None
    first_moment: Annotated[FirstMomentSpec | None, Absent()] = None
    second_moment: Annotated[SecondMomentSpec | None, Absent()] = None
    server: Annotated[ServerSpec | None, Absent()] = None
    smoothing: Annotated[SmoothingSpec | None, Absent()] = None
    sam: Annotated[SamSpec | None, Absent()] = None
    blur: Annotated[BlurSpec | None, Absent()] = None
    sparsification: Annotated[SparsificationSpec | None, Absent()] = None
    noise_decay: Annotated[NoiseDecaySpec | None, Absent()] = None
    local_iterations: Annotated[LocalIterationsSpec | None, Absent()] = None
    proximal_weight: AbsentNumber = None


class DpFedadamwKeys(AlgorithmSpec, title="DP-FedAdamW"):
    """Local AdamW with block-mean second moment, noise debiasing and global alignment."""

    name: Literal["dp-fedadamw"]
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    decay: Decay = "decoupled"
    alignment: float = key(
        0.5,
        "Weight γ of the last global update in each local step; 0 switches the alignment off.",
        unit="1",
        ge=0,
        le=1000,
        examples=(0.5, 0),
    )
    first_moment: FirstMomentSpec = FirstMomentSpec()
    second_moment: SecondMomentSpec = SecondMomentSpec()


class AdamwKeys(AlgorithmSpec, title="Local AdamW"):
    """Local AdamW whose moments restart every round."""

    name: Literal["dp-localadamw", "local-adamw"]
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    decay: Decay = "decoupled"


class SgdKeys(AlgorithmSpec, title="Federated averaging"):
    """Local stochastic gradient descent."""

    name: Literal["dp-fedavg", "fedavg"]
    weight_decay: WeightDecay = 0.001


class ScaffoldKeys(AlgorithmSpec, title="SCAFFOLD"):
    """Local stochastic gradient descent with control variates; uploads twice as much."""

    name: Literal["dp-scaffold", "scaffold"]
    weight_decay: WeightDecay = 0.001
    server: AveragingServer = AveragingServer()


class SmoothingKeys(AlgorithmSpec, title="DP-FedAvg-LS"):
    """Local stochastic gradient descent by noised gradients that are smoothed."""

    name: Literal["dp-fedavg-ls"]
    weight_decay: WeightDecay = 0.001
    smoothing: SmoothingSpec = SmoothingSpec()


class SamKeys(AlgorithmSpec, title="DP-FedSAM"):
    """Local sharpness-aware steps; two queries each, noised with unit record."""

    name: Literal["dp-fedsam"]
    weight_decay: WeightDecay = 0.001
    sam: SamSpec = SamSpec()


class FedSmpKeys(AlgorithmSpec, title="Fed-SMP"):
    """Local stochastic gradient descent, updates cut to public coordinates."""

    name: Literal["fed-smp"]
    weight_decay: WeightDecay = 0.001
    sparsification: PublicSparsification = PublicSparsification()


class SamRandomKeys(AlgorithmSpec, title="DP-FedSAM, rand-k"):
    """Local sharpness-aware steps, updates cut to public random coordinates."""

    name: Literal["dp-fedsam-randk"]
    weight_decay: WeightDecay = 0.001
    sam: SamSpec = SamSpec()
    sparsification: RandomSparsification = RandomSparsification()


class SamTopKeys(AlgorithmSpec, title="DP-FedSAM, top-k"):
    """Local sharpness-aware steps, updates cut to their largest coordinates."""

    name: Literal["dp-fedsam-topk"]
    weight_decay: WeightDecay = 0.001
    sam: SamSpec = SamSpec()
    sparsification: TopSparsification = TopSparsification()


class BlurKeys(AlgorithmSpec, title="BLUR"):
    """Local stochastic gradient descent, held back beyond a distance from its start."""

    name: Literal["blur"]
    weight_decay: WeightDecay = 0.001
    blur: BlurSpec = BlurSpec()


class BlursKeys(AlgorithmSpec, title="BLURS"):
    """BLUR, updates cut to their largest coordinates."""

    name: Literal["blurs"]
    weight_decay: WeightDecay = 0.001
    blur: BlurSpec = BlurSpec()
    sparsification: TopSparsification = TopSparsification()


class FedoptKeys(AlgorithmSpec, title="DP-FedOpt"):
    """Local stochastic gradient descent, an adaptive optimiser on the server."""

    name: Literal["dp-fedopt"]
    weight_decay: WeightDecay = 0.001
    server: AdaptiveServer = AdaptiveServer()


class FafedKeys(AlgorithmSpec, title="DP-FAFED"):
    """Local variance-reduced momentum under a shared denominator; two noised queries a step."""

    name: Literal["dp-fafed"]
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: CoupledDecay = 0.01


class FedladaKeys(AlgorithmSpec, title="FedLADA"):
    """Local AMSGrad amended by the last global update."""

    name: Literal["dp-fedlada", "fedlada"]
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: CoupledDecay = 0.01
    local_weight: LocalWeight = 0.1


class FedadamwKeys(AlgorithmSpec, title="FedAdamW"):
    """DP-FedAdamW without clipping, noise and debiasing."""

    name: Literal["fedadamw"]
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: WeightDecay = 0.01
    decay: Decay = "decoupled"
    alignment: float = key(
        0.5,
        "Weight γ of the last global update in each local step; 0 switches the alignment off.",
        unit="1",
        ge=0,
        le=1000,
        examples=(0.5, 0),
    )
    first_moment: FirstMomentSpec = FirstMomentSpec()
    second_moment: PlainSecondMoment = PlainSecondMoment()


class FedadamwTheoryKeys(AlgorithmSpec, title="FedAdamW, theory form"):
    """FedAdamW as its convergence proof has it.

    No first moment, no decay, a convex mix with the last global update.
    """

    name: Literal["fedadamw-theory"]
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    local_weight: LocalWeight = 0.5
    second_moment: PlainSecondMoment = PlainSecondMoment()
    server: AveragingServer = AveragingServer()


class AdamKeys(AlgorithmSpec, title="Local Adam"):
    """Local Adam with plain L2 decay, whose moments restart every round."""

    name: Literal["local-adam"]
    beta1: Beta1 = 0.9
    beta2: Beta2 = 0.999
    epsilon: Epsilon = 1e-8
    weight_decay: CoupledDecay = 0.01


class FedcmKeys(AlgorithmSpec, title="FedCM"):
    """Local stochastic gradient descent mixed with the last global update."""

    name: Literal["fedcm"]
    weight_decay: WeightDecay = 0.001
    local_weight: LocalWeight = 0.1


class FedadamKeys(AlgorithmSpec, title="FedAdam"):
    """Local stochastic gradient descent, Adam on the server."""

    name: Literal["fedadam"]
    weight_decay: WeightDecay = 0.001
    server: AdamServer = AdamServer()


class ProximalKeys(AlgorithmSpec, title="PE-DPFL"):
    """Local stochastic gradient descent with a proximal term."""

    name: Literal["pe-dpfl"]
    weight_decay: WeightDecay = 0.001
    proximal_weight: float = key(
        0.1,
        "Weight ρ of the proximal term (ρ/2)·‖θ − θ_start‖² in the local objective; at 0 "
        "there is none.",
        unit="1",
        ge=0,
        le=1_000_000,
        examples=(0.1, 0),
    )


class AdaptiveNoiseKeys(AlgorithmSpec, title="Adap DP-FL"):
    """Local stochastic gradient descent under noise that falls while the model learns."""

    name: Literal["adap-dpfl"]
    weight_decay: WeightDecay = 0.001
    noise_decay: NoiseDecaySpec = NoiseDecaySpec()


class AdaptiveIterationsKeys(AlgorithmSpec, title="ALI-DPFL"):
    """Local stochastic gradient descent with adaptive local iterations.

    privacy.noise_multiplier and privacy.target_epsilon are both needed.
    """

    name: Literal["ali-dpfl"]
    weight_decay: WeightDecay = 0.001
    local_iterations: LocalIterationsSpec = LocalIterationsSpec()


ALGORITHM = one_of(
    "name",
    DpFedadamwKeys,
    AdamwKeys,
    SgdKeys,
    ScaffoldKeys,
    SmoothingKeys,
    SamKeys,
    FedSmpKeys,
    SamRandomKeys,
    SamTopKeys,
    BlurKeys,
    BlursKeys,
    FedoptKeys,
    FafedKeys,
    FedladaKeys,
    FedadamwKeys,
    FedadamwTheoryKeys,
    AdamKeys,
    FedcmKeys,
    FedadamKeys,
    ProximalKeys,
    AdaptiveNoiseKeys,
    AdaptiveIterationsKeys,
)
