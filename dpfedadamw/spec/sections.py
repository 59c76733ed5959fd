"""The sections of a spec, as frozen dataclasses.

What everything downstream works with. A `Spec` that was loaded is complete, its values are in range
and do not contradict each other; one that was made by hand is only checked when it is loaded again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dpfedadamw.spec.vocabulary import fill_defaults


@dataclass(frozen=True)
class PartitionSpec:
    """How the training records are dealt out to clients.

    Attributes:
        kind: "dirichlet" (label skew), "iid", "shards" or "column".
        alpha: Concentration of the Dirichlet distribution, > 0; None for other kinds.
        minimum_records: Fewest records a client may hold, ≥ 1.
        shards_per_client: Shards that each client gets, ≥ 1; "shards" only.
        column: Column of the table that names each record's client; "column" only.
        file: File that names each training record's client; "column" only.
    """

    kind: str
    alpha: float | None
    minimum_records: int
    shards_per_client: int | None = None
    column: str | None = None
    file: str | None = None


@dataclass(frozen=True)
class ValidationSpec:
    """Which held-out records are a public validation set.

    Attributes:
        fraction: Share of the test records, in [0, 0.9]; 0 for none.
        public: Whether they were declared public; true wherever there are any.
    """

    fraction: float = 0.0
    public: bool = False


@dataclass(frozen=True)
class DataSpec:
    """The records and who holds them. Split and partition are public metadata.

    A key that the data set does not have is None or empty.

    Attributes:
        dataset: One of the names in the schema.
        path: Folder or file that is read; None for "digits" and for the hub.
        clients: Number of clients N, ≥ 1.
        partition: How records are dealt out.
        test_fraction: Share of the records held out for testing, in [0.01, 0.9]; None where the
            data set brings its test records.
        seed: Seed of the split and the partition; not a secret.
        sha256: Digest that the data must have; None for any.
        validation: Which held-out records are a public validation set.
        cache: Folder for prepared records; None for the user's own.
        augmentation: Of "flip" and "crop": random views of training images.
        revision: Commit on the Hugging Face hub; None where a path is read.
        repository: Repository there; None for the usual one.
        split: Split of "emnist".
        size: Side that the images of "image-folder" are resized to, or None.
        channels: Channels of the images of "image-folder", 1 or 3.
        test_path: Second table, with the test records, or None; "table" only.
        label: Column of the class; "table" only.
        text: One or two columns of text; "table" only.
        numbers: Columns of numbers; "table" only.
        classes: Labels that may occur, empty for those that do; "table" only.
    """

    dataset: str
    path: str | None
    clients: int
    partition: PartitionSpec
    test_fraction: float | None
    seed: int
    sha256: str | None = None
    validation: ValidationSpec = ValidationSpec()
    cache: str | None = None
    augmentation: tuple[str, ...] | None = None
    revision: str | None = None
    repository: str | None = None
    split: str | None = None
    size: int | None = None
    channels: int | None = None
    test_path: str | None = None
    label: str | None = None
    text: tuple[str, ...] | None = None
    numbers: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class MLPSpec:
    """A multi-layer perceptron.

    Attributes:
        name: "mlp".
        hidden: Width of each hidden layer; empty is softmax regression.
    """

    name: str
    hidden: tuple[int, ...]


@dataclass(frozen=True)
class CNNSpec:
    """A convolutional network with group normalisation.

    Attributes:
        name: "cnn".
        channels: Output channels of each convolution, multiples of `groups`.
        groups: Groups of each normalisation layer.
    """

    name: str
    channels: tuple[int, ...]
    groups: int


@dataclass(frozen=True)
class ViTSpec:
    """A small vision transformer.

    Attributes:
        name: "vit".
        patch: Side of a square patch in pixels.
        width: Width of a token, a multiple of `heads`.
        depth: Number of transformer blocks.
        heads: Attention heads of each block.
        mlp_ratio: Hidden width of a block's perceptron as a multiple of `width`.
    """

    name: str
    patch: int
    width: int
    depth: int
    heads: int
    mlp_ratio: int


@dataclass(frozen=True)
class SimpleCNNSpec:
    """Two 5 x 5 convolutions with pooling and two linear layers.

    Attributes:
        name: "simple-cnn".
        channels: Output channels of the two convolutions.
        hidden: Width of the first linear layer.
    """

    name: str
    channels: tuple[int, ...]
    hidden: int


@dataclass(frozen=True)
class ResNetSpec:
    """ResNet-18 with group normalisation for small images.

    Attributes:
        name: "resnet18".
    """

    name: str


@dataclass(frozen=True)
class ViTTinySpec:
    """The ViT-Tiny that is trained from scratch in FedAdamW, appendix C.

    Attributes:
        name: "vit-tiny".
        dropout: After attention and perceptron, in [0, 0.9].
    """

    name: str
    dropout: float


@dataclass(frozen=True)
class PlainTuningSpec:
    """All of a published model is trained, or its head alone.

    Attributes:
        kind: "all" or "head".
    """

    kind: str


@dataclass(frozen=True)
class LoraSpec:
    """Low-rank pairs beside a published model's frozen layers are trained, and its head.

    Attributes:
        kind: "lora".
        rank: Rank r of the pairs, ≥ 1.
        alpha: The pairs' output is multiplied by alpha/rank, > 0.
        dropout: On the pairs' inputs, in [0, 0.9].
        target_modules: Layers that get a pair, by the last part of their name; empty for queries
            and values.
    """

    kind: str
    rank: int = 16
    alpha: float = 32.0
    dropout: float = 0.1
    target_modules: tuple[str, ...] = ()


FineTuningSpec = LoraSpec | PlainTuningSpec


@dataclass(frozen=True)
class TransformerSpec:
    """A published transformer with a fresh head.

    Attributes:
        name: "vit-base", "swin-tiny", "swin-base", "roberta-base", or "transformers" for any other.
        weights: "pretrained" or "random".
        source: A folder, or a repository on the hub; None for the one that belongs to the name.
        revision: The repository's commit, 40 hexadecimal digits; None for a folder.
        fine_tuning: What is trained.
        length: Tokens of a text; None for models of images.
        pooling: "published" or "mean": what class scores of texts are taken from; None for models
            that have no choice.
    """

    name: str
    weights: str
    source: str | None
    revision: str | None
    fine_tuning: FineTuningSpec
    length: int | None = None
    pooling: str | None = None


ModelSpec = MLPSpec | CNNSpec | SimpleCNNSpec | ResNetSpec | ViTSpec | ViTTinySpec | TransformerSpec


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


@dataclass(frozen=True)
class FederationSpec:
    """Rounds and who takes part.

    Attributes:
        rounds: Number of rounds T, ≥ 1; the most there can be where steps adapt to a budget.
        clients_per_round: Clients S drawn each round, or expected; at most all.
        client_sampling: "fixed" (exactly S) or "poisson" (each independently); unit "client" has
            the latter.
        local_steps: Steps K of each drawn client in a round, ≥ 1; of the first where they adapt.
    """

    rounds: int
    clients_per_round: int
    client_sampling: str
    local_steps: int


@dataclass(frozen=True)
class SamplingSpec:
    """How a client draws the records of a step.

    Attributes:
        kind: "poisson", "fixed" or "shuffled" (unit "record"); "full" or "shuffled" (unit "client"
            or "none").
        expected_batch_size: B of "poisson": the fixed, public divisor; client i draws each of its
            R_i records with probability B/R_i. None otherwise.
        batch_size: Records in a batch of "fixed" or "shuffled"; None otherwise.
    """

    kind: str
    expected_batch_size: float | None = None
    batch_size: int | None = None


@dataclass(frozen=True)
class PrivacySpec:
    """What is protected, and how strongly. With unit "none" all but `sampling` is None.

    Attributes:
        unit: "record", "client" or "none" (no privacy claim).
        sampling: How records are drawn.
        adjacency: "add-remove", or "replace-one" (unit "record" with "fixed" or "shuffled").
        clipping_norm: L2 bound C on one record's gradient, or one client's update, > 0.
        noise_multiplier: σ > 0: noise of standard deviation σC on each clipped sum. None until it
            has been solved for `target_epsilon`.
        target_epsilon: The ε that `noise_multiplier` is to be, or was, solved for, or that the
            local steps of ali-dpfl are fitted to; None where the noise multiplier was chosen
            directly.
        delta: δ of the (ε, δ) statement, in (0, 1).
        noise_added_by: "server" or "clients" for the unit "client"; None otherwise.
        gaussian_sampler: "box-muller" or "four-draw"; None without privacy.
    """

    unit: str
    sampling: SamplingSpec
    adjacency: str | None = None
    clipping_norm: float | None = None
    noise_multiplier: float | None = None
    target_epsilon: float | None = None
    delta: float | None = None
    noise_added_by: str | None = None
    gaussian_sampler: str | None = None


@dataclass(frozen=True)
class RandomnessSpec:
    """Where sampling and noise come from.

    Attributes:
        mode: "release" (the operating system's entropy, nothing stored) or "reproducible" (one
            seed; no guarantee to anyone who knows it).
        seed: The seed of "reproducible"; None for "release".
    """

    mode: str
    seed: int | None


@dataclass(frozen=True)
class EvaluationSpec:
    """When the global model is tested.

    Attributes:
        every: Rounds between evaluations, ≥ 1.
    """

    every: int


@dataclass(frozen=True)
class ComputeSpec:
    """What changes memory and speed, results by rounding alone, and privacy not at all.

    Attributes:
        physical_batch_size: Most records whose gradients are formed at once, >= 1.
        precision: "float32" or "bfloat16": what layers multiply in.
    """

    physical_batch_size: int
    precision: str


@dataclass(frozen=True)
class ReportSpec:
    """Texts that only the responsible people can write; None is left blank in the report.

    Attributes:
        purpose: What the processing is for.
        lawful_basis: On which ground it stands.
        necessity: Why it is necessary and proportionate.
        risks: Risks to the people concerned.
        measures: What is done about the risks.
        responsible: Who answers for it.
    """

    purpose: str | None
    lawful_basis: str | None
    necessity: str | None
    risks: str | None
    measures: str | None
    responsible: str | None


@dataclass(frozen=True)
class Spec:
    """One experiment, complete and consistent.

    Attributes:
        version: Version of the spec format, 1.
        name: Short name; the run directory is called after it.
        description: Free text.
        data: Records and clients.
        model: The model.
        algorithm: The local rule.
        federation: Rounds and participation.
        privacy: Unit, mechanism and budget.
        randomness: Source of sampling and noise.
        evaluation: When the model is tested.
        compute: What changes memory and speed alone.
        report: Governance texts for the report.
    """

    version: int
    name: str
    description: str
    data: DataSpec
    model: ModelSpec
    algorithm: AlgorithmSpec
    federation: FederationSpec
    privacy: PrivacySpec
    randomness: RandomnessSpec
    evaluation: EvaluationSpec
    compute: ComputeSpec
    report: ReportSpec

    def to_mapping(self) -> dict[str, Any]:
        """Return the resolved mapping, every key in the vocabulary's order."""
        return fill_defaults(_plain(self))


def _plain(value: Any) -> Any:
    """Turn dataclasses into dictionaries, without the keys that are None.

    Filling in the defaults brings back those that the vocabulary has: every nullable key's default
    is null.
    """
    if dataclasses.is_dataclass(value):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: _plain(item) for name, item in fields if item is not None}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
