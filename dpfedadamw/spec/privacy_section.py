"""The sections `privacy` and `randomness` of a spec: what is protected and how strongly."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from dpfedadamw.spec.section import (
    LARGEST_SEED,
    AbsentInteger,
    AbsentNumber,
    AbsentText,
    Section,
    key,
    one_of,
)


class SamplingSpec(Section, title="Sampling"):
    """How a client draws the records of a step."""

    kind: str = key(
        ...,
        "How the records of a step are drawn: poisson, fixed or shuffled with unit record; "
        "full or shuffled with units client and none.",
    )
    expected_batch_size: AbsentNumber = None
    rate: AbsentNumber = None
    reference_size: AbsentNumber = None
    batch_size: AbsentInteger = None


class PoissonSamplingSpec(SamplingSpec, title="Poisson sampling"):
    """Each step draws each record independently. Goes with adjacency add-remove."""

    kind: Literal["poisson"] = key(
        "poisson", "", why="no accountant covers any other sampler of single records"
    )
    expected_batch_size: float = key(
        ...,
        "The fixed, public divisor B of each noisy sum. Where neither rate nor reference_size is "
        "stated, client i draws each of its R_i records with probability B/R_i. So B is at most "
        "the records of the smallest client, and client sizes are assumed to be public.",
        unit="records",
        ge=0.001,
        le=1_000_000_000,
        examples=(32,),
    )
    rate: float | None = key(
        None,
        "The probability q with which every client draws each of its records: a public constant, "
        "independent of any client's size. Null if it follows from reference_size, or from the "
        "clients' sizes.",
        gt=0,
        le=1,
        unit="1",
        examples=(0.05,),
    )
    reference_size: float | None = key(
        None,
        "A public number of records R that sets q = B/R for all clients, such as their planned "
        "size. Null if rate states q, or the clients' sizes give it.",
        unit="records",
        ge=1,
        le=1_000_000_000,
        examples=(600,),
    )


class FixedSizeSamplingSpec(SamplingSpec, title="Batches of fixed size"):
    """Each step draws a fixed number of records, every such set equally likely.

    Goes with adjacency replace-one, where a record counts twice.
    """

    kind: Literal["fixed"] = "fixed"
    batch_size: int = key(
        ...,
        "Records B in every batch, and the fixed, public divisor of each noisy sum; at most "
        "the records of the smallest client.",
        unit="records",
        ge=1,
        le=1_000_000_000,
        examples=(32,),
    )


class FullSampling(SamplingSpec, title="Full batches"):
    """Each step uses all records of the client."""

    kind: Literal["full"] = "full"


class ShuffledSampling(SamplingSpec, title="Shuffled batches"):
    """Records are shuffled and taken batch by batch, in a new order each epoch.

    Every participation begins a new epoch. With unit record it goes with adjacency replace-one,
    and no amplification is claimed.
    """

    kind: Literal["shuffled"] = "shuffled"
    batch_size: int = key(
        32,
        "Records in a batch; the last one of an epoch may be smaller. With unit record at "
        "most the records of the smallest client, and the fixed, public divisor of each "
        "noisy sum.",
        unit="records",
        ge=1,
        le=1_000_000_000,
    )


_SampledRecords = Annotated[
    SamplingSpec, one_of("kind", PoissonSamplingSpec, FixedSizeSamplingSpec, ShuffledSampling)
]
_SampledBatches = Annotated[SamplingSpec, one_of("kind", FullSampling, ShuffledSampling)]
_GaussianSampler = Annotated[
    Literal["box-muller", "four-draw", "on-device"],
    key(
        "box-muller",
        "How noise is drawn. box-muller: with AES on the processor. four-draw: half the sum of "
        "four such draws, which hinders inverting low-order bits (Holohan & Braghin 2021) at about "
        "four times the cost. on-device: one draw with ChaCha20 on the device that trains.",
    ),
]


def _clipping_norm(what: str) -> Any:
    return key(
        ...,
        f"L2 bound C on {what} over all trainable parameters.",
        ge=1e-4,
        le=1_000_000_000,
        examples=(1.0, 0.1),
    )


def _noise_multiplier(total: str) -> Any:
    return key(
        None,
        "σ: noise of standard deviation σ times the clipping norm is added to each coordinate of "
        f"{total}; null until it is solved from target_epsilon.",
        ge=0.001,
        le=1_000_000,
        examples=(2.5, 1.0),
    )


def _target_epsilon(meaning: str) -> Any:
    description = (
        f"{meaning}; null if noise_multiplier is given. A run that was cut off, and charged for a "
        "round twice, ends early to keep to it."
    )
    return key(None, description, gt=0, le=1000, examples=(8, 3))


def _delta(count: str, unit: str, example: float) -> Any:
    below = f"well below 1/{count}, with {count} the number of {unit}s"
    return key(
        ...,
        f"δ of the (ε, δ) guarantee; {below}. Below 10⁻¹⁰ rounding errors would matter.",
        ge=1e-10,
        lt=1,
        why=f"a delta of 1/{count} or more would allow publishing a {unit} outright: "
        f"take it {below}",
        examples=(example,),
    )


class PrivacySpec(Section, title="Privacy"):
    """What is protected, by which mechanism, and how strongly."""

    unit: str = key(
        ...,
        "What the guarantee protects: record (each single record), person (a person with all "
        "records about them), client (a whole client with all its records) or none (no "
        "privacy claim).",
        title="Privacy unit",
    )
    adjacency: AbsentText = None
    clipping_norm: AbsentNumber = None
    noise_multiplier: AbsentNumber = None
    target_epsilon: AbsentNumber = None
    delta: AbsentNumber = None
    records_per_person: AbsentInteger = None
    noise_added_by: AbsentText = None
    sampling: SamplingSpec
    gaussian_sampler: AbsentText = None


class RecordPrivacy(PrivacySpec, title="Record-level privacy"):
    """Each record's gradient is clipped, and Gaussian noise is added to each sum.

    Give noise_multiplier, or target_epsilon to have it solved for; both together mean that it was
    solved for before, or, for ali-dpfl, that local steps are fitted to the two.
    """

    unit: Literal["record"] = "record"
    adjacency: Literal["add-remove", "replace-one"] = key(
        "add-remove",
        "What neighbouring data sets differ by: one record added or removed (with sampling "
        "poisson), or one record's content replaced (with sampling fixed or shuffled). Replacing "
        "moves a sum by up to twice the clipping norm.",
        examples=("add-remove", "replace-one"),
    )
    clipping_norm: float = _clipping_norm("one record's gradient")
    noise_multiplier: float | None = _noise_multiplier("a clipped sum")
    target_epsilon: float | None = _target_epsilon(
        "The ε against the server, at delta, that noise_multiplier is solved for, or that the "
        "local steps of ali-dpfl are fitted to"
    )
    delta: float = _delta("n", "record", example=1e-05)
    sampling: _SampledRecords = key(
        ..., "How the records of a step are drawn; sampler and adjacency are accounted together."
    )
    gaussian_sampler: _GaussianSampler = "box-muller"


class PersonPrivacy(PrivacySpec, title="Person-level privacy"):
    """Each person's mean gradient is clipped, and Gaussian noise is added to each sum.

    Batches are drawn of the people that data.person names, and of each of them up to
    records_per_person records, drawn again each time: what a person brings is one mean, whatever
    the number of records. Keys of sampling that count records count people. Give noise_multiplier,
    or target_epsilon to have it solved for.
    """

    unit: Literal["person"] = "person"
    adjacency: Literal["add-remove", "replace-one"] = key(
        "add-remove",
        "What neighbouring data sets differ by: one person, with all records at all clients, added "
        "or removed (with sampling poisson), or replaced (with sampling fixed or shuffled). "
        "Replacing moves a sum by up to twice the clipping norm.",
        examples=("add-remove", "replace-one"),
    )
    clipping_norm: float = _clipping_norm("the mean of the gradients of one person's records")
    noise_multiplier: float | None = _noise_multiplier("a clipped sum")
    target_epsilon: float | None = _target_epsilon(
        "The ε against the server, at delta, that noise_multiplier is solved for, or that the "
        "local steps of ali-dpfl are fitted to"
    )
    delta: float = _delta("n", "person", example=1e-05)
    records_per_person: int = key(
        ...,
        "Most records m of a drawn person in a batch, redrawn each time. More cost time but no "
        "privacy.",
        unit="records",
        ge=1,
        le=100_000,
        examples=(4,),
    )
    sampling: _SampledRecords = key(
        ..., "How the people of a step are drawn; sampler and adjacency are accounted together."
    )
    gaussian_sampler: _GaussianSampler = "box-muller"


class ClientPrivacy(PrivacySpec, title="Client-level privacy"):
    """Each client's whole update is clipped, and Gaussian noise is added to each round's sum.

    Clients take part independently with probability clients_per_round / clients. Give
    noise_multiplier, or target_epsilon to have it solved for.
    """

    unit: Literal["client"] = "client"
    adjacency: Literal["add-remove"] = key(
        "add-remove",
        "Neighbouring data sets differ by one client, with all its records, added or removed.",
    )
    clipping_norm: float = _clipping_norm("one client's update")
    noise_multiplier: float | None = _noise_multiplier("a round's sum of updates")
    target_epsilon: float | None = _target_epsilon(
        "The ε against a third party, at delta, that noise_multiplier is solved for"
    )
    delta: float = _delta("N", "client", example=0.001)
    noise_added_by: Literal["server", "clients"] = key(
        "server",
        "server: a trusted server adds the noise and sees clipped updates without it. clients: "
        "each client adds its share, and the server sees only noised updates.",
        examples=("server", "clients"),
    )
    sampling: _SampledBatches = key(
        FullSampling(),
        "How the records of a local step are drawn; at client level it does not affect the claim.",
    )
    gaussian_sampler: _GaussianSampler = "box-muller"


class NoPrivacy(PrivacySpec, title="No privacy"):
    """Plain federated learning; no claim, no noise, no clipping."""

    unit: Literal["none"] = "none"
    sampling: _SampledBatches = key(FullSampling(), "How the records of a step are drawn.")


class RandomnessSpec(Section, title="Randomness"):
    """Where sampling and noise come from."""

    mode: str = key(
        ...,
        "release: sampling and noise from the operating system's entropy, nothing stored; "
        "reproducible: all from one seed, and no guarantee to anyone who knows it.",
    )
    seed: AbsentInteger = None


class ReleaseRandomnessSpec(RandomnessSpec, title="Release"):
    """For models that leave the house."""

    mode: Literal["release"] = "release"
    seed: None = key(
        None,
        "Seed of sampling and noise; for reproducible only.",
        why="a stored seed would let anyone remove the noise",
    )


class ReproducibleRandomnessSpec(RandomnessSpec, title="Reproducible"):
    """For tests and comparisons."""

    mode: Literal["reproducible"] = "reproducible"
    seed: int = key(
        0,
        "Seed of sampling and noise; for reproducible only.",
        ge=0,
        le=LARGEST_SEED,
        unit="none",
        examples=(0, 7),
    )
