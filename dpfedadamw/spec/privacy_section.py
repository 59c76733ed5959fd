"""The sections `privacy` and `randomness` of a spec: what is protected and how strongly."""

from __future__ import annotations

from dataclasses import dataclass


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
