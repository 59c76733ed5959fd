"""The section `algorithm` of a spec: the local rule, its parts and its server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FirstMomentSpec:
    """What the server does with the first moment.

    Attributes:
        aggregation: "none" (restarts at 0 every round) or "full" (averaged, coordinate by
            coordinate).
    """

    aggregation: str


@dataclass(frozen=True)
class FloorSpec:
    """Lower limit of the debiased second moment; exactly one of the two is a number.

    Attributes:
        relative: The limit as a multiple of Φ, the noise variance of a coordinate.
        absolute: The limit itself.
    """

    relative: float | None
    absolute: float | None


@dataclass(frozen=True)
class SecondMomentSpec:
    """How DP-FedAdamW (Algorithm 1) shares and debiases the second moment.

    Attributes:
        aggregation: The blocks whose means are shared: "heads", "hessian", "tensor", "layer",
            "full" (every coordinate) or "none" (restarts at 0 every round).
        debias: Whether Φ is subtracted.
        counter: Steps counted by the bias correction: "global" (of the run) or "local" (of the
            round, as printed in the paper).
        floor: Lower limit of the debiased value.
        denominator: "coordinate" or "block" (one denominator a block, from the block's mean).
    """

    aggregation: str
    debias: bool
    counter: str
    floor: FloorSpec
    denominator: str


@dataclass(frozen=True)
class SamSpec:
    """Sharpness-aware minimisation.

    Attributes:
        radius: Length ρ of the perturbation, ≥ 0.
    """

    radius: float


@dataclass(frozen=True)
class SparsificationSpec:
    """How much of a client's update survives.

    Attributes:
        kind: "random" (k public coordinates, drawn anew each round), "released-top" (k public ones,
            half of them those that the last release moved most) or "local-top" (each client's own k
            largest, under noise on all coordinates).
        fraction: k/d, in (0, 1].
    """

    kind: str
    fraction: float


@dataclass(frozen=True)
class BlurSpec:
    """Bounded local update regularisation.

    Attributes:
        weight: λ of the penalty, ≥ 0.
        bound: Distance S from the start of a round within which there is none, ≥ 0; None takes the
            clipping norm.
    """

    weight: float
    bound: float | None = None


@dataclass(frozen=True)
class SmoothingSpec:
    """Laplacian smoothing of noised gradients.

    Attributes:
        strength: s of (I − s·L)⁻¹, ≥ 0.
        scope: "vector" (all parameters end to end) or "tensor" (each by itself).
    """

    strength: float
    scope: str


@dataclass(frozen=True)
class ServerSpec:
    """What the server does with the mean update. A key that the rule does not have is None.

    Attributes:
        learning_rate: Step size of the server, > 0; 1 is the plain average where nothing else
            is given.
        rule: "adam" or "yogi"; dp-fedopt only.
        beta1: Decay of the server's first moment, in [0, 1); adaptive servers only.
        beta2: Decay of its second moment, in [0, 1); adaptive servers only.
        epsilon: Added to its denominator, > 0; adaptive servers only.
    """

    learning_rate: float
    rule: str | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None


@dataclass(frozen=True)
class LocalIterationsSpec:
    """Local steps that adapt from round to round (ALI-DPFL).

    Attributes:
        minimum: Fewest local steps of a round, ≥ 1.
        maximum: Most local steps of a round.
        heterogeneity: Γ ≥ 0, how unlike the clients are.
        strong_convexity: μ > 0 before the first estimate, or throughout.
        estimate: Whether μ is estimated from released values.
    """

    minimum: int
    maximum: int
    heterogeneity: float
    strong_convexity: float
    estimate: bool


@dataclass(frozen=True)
class NoiseDecaySpec:
    """Noise that falls while the model learns (Adap DP-FL).

    Attributes:
        factor: What one decay multiplies the noise multiplier by, in (0, 1].
        patience: Rounds in a row that must speak for it, ≥ 1.
        floor: Least noise multiplier over the first round's, in (0, 1].
    """

    factor: float
    patience: int
    floor: float


@dataclass(frozen=True)
class AlgorithmSpec:
    """The local rule and its server. A key that the rule does not have is None.

    Attributes:
        name: One of the names in the schema, which says under which privacy units each runs.
        learning_rate: Step size of the first round, > 0.
        schedule: "cosine" or "constant", over rounds.
        weight_decay: Weight decay λ, ≥ 0; all but fedadamw-theory.
        decay: "decoupled" or "coupled" (plain L2); AdamW rules only.
        beta1: Decay of the first moment, in [0, 1); local adaptive rules only.
        beta2: Decay of the second moment, in [0, 1); local adaptive rules only.
        epsilon: Added to the denominator, > 0; local adaptive rules only.
        alignment: Weight γ of the global update in each local step, ≥ 0; (dp-)fedadamw only.
        local_weight: Weight α of the local direction, in (0, 1], against 1 − α of the global
            update; fedcm, (dp-)fedlada and fedadamw-theory only.
        first_moment: (dp-)fedadamw only.
        second_moment: (dp-)fedadamw and fedadamw-theory only.
        sam: dp-fedsam and its sparse forms only.
        blur: blur and blurs only.
        sparsification: fed-smp, blurs and the sparse forms of dp-fedsam only.
        smoothing: dp-fedavg-ls only.
        server: Rules whose server does more than average only.
        proximal_weight: Weight ρ of the pull towards the broadcast model, ≥ 0; pe-dpfl only.
        noise_decay: adap-dpfl only.
        local_iterations: ali-dpfl only.
    """

    name: str
    learning_rate: float
    schedule: str
    weight_decay: float | None = None
    decay: str | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    alignment: float | None = None
    local_weight: float | None = None
    first_moment: FirstMomentSpec | None = None
    second_moment: SecondMomentSpec | None = None
    sam: SamSpec | None = None
    blur: BlurSpec | None = None
    sparsification: SparsificationSpec | None = None
    smoothing: SmoothingSpec | None = None
    server: ServerSpec | None = None
    proximal_weight: float | None = None
    noise_decay: NoiseDecaySpec | None = None
    local_iterations: LocalIterationsSpec | None = None
