"""The section `algorithm` of a spec: what all algorithms have, and what the plan asks of some.

All other keys stand with the algorithm that has them, in the file that registers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dpfedadamw.registration import Registry
from dpfedadamw.spec.section import Keys, Registered, Section, key, one_registered, registry


class AlgorithmSpec(Section, title="Algorithm"):
    """The local rule and what the server does with it."""

    name: str = key(..., "The local rule and its server. {names}.")
    learning_rate: float = key(
        0.02, "Step size of the local rule in the first round.", gt=0, le=1000
    )
    schedule: Literal["cosine", "constant"] = key(
        "cosine",
        "How the learning rate changes over rounds: cosine falls to 0, constant stays.",
    )


class NoiseDecaySpec(Section, title="Noise decay"):
    """How the noise multiplier falls while the model learns."""

    factor: float = key(
        0.9,
        "What one decay multiplies the noise multiplier by; 1 is no decay.",
        gt=0,
        le=1,
        examples=(0.9, 1),
    )
    patience: int = key(
        4,
        "Consecutive rounds in which the released estimate of the loss must fall before one decay.",
        unit="rounds",
        ge=1,
        le=1_000_000,
        examples=(4, 3),
    )
    floor: float = key(
        0.5,
        "Smallest noise multiplier as a share of privacy.noise_multiplier, the first round's. It "
        "fixes in advance what the run can spend.",
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
        "Fewest local steps of a round; the last may take fewer, if less is left of the budget.",
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
        "Γ of ALI-DPFL, how much the clients' data differ: 0 for identical distributions; a public "
        "constant.",
        ge=0,
        le=1_000_000_000,
        examples=(10.0, 0),
    )
    strong_convexity: float = key(
        0.1,
        "μ of ALI-DPFL: a public constant if estimate is false, otherwise the value for the first "
        "rounds.",
        gt=0,
        le=1_000_000_000,
        examples=(0.1, 1.0),
    )
    estimate: bool = key(
        True,
        "Whether μ is estimated in every round from noised gradients. The steps then depend on "
        "released values, and ε is that of the most steps that were possible.",
        examples=(True, False),
    )


@dataclass(frozen=True, kw_only=True)
class RegisteredAlgorithm(Registered[Keys]):
    """What a spec goes by of an algorithm; ``algorithms.registry.AlgorithmEntry`` says more.

    Attributes:
        units: The privacy units it runs under, that which it was made for first: "record", "client"
            and "none".
        relatives: By privacy unit, the algorithm that does the same under it, or the nearest
            there is.
        adaptive: Whether steps or noise follow what earlier rounds released.
        budgeted: Whether it fits its local steps to a target ε under a noise multiplier, and so
            needs both.
    """

    units: tuple[str, ...]
    relatives: Mapping[str, str] = field(default_factory=dict)
    adaptive: bool = False
    budgeted: bool = False


def algorithms() -> Registry[RegisteredAlgorithm[Any]]:
    """Return every registered algorithm by name."""
    found: Registry[RegisteredAlgorithm[Any]] = registry("algorithms", "ALGORITHMS")
    return found


def _by_unit() -> str:
    def having(unit: str) -> str:
        return ", ".join(name for name, entry in algorithms().items() if unit in entry.units)

    return (
        f"With unit record: {having('record')}; with unit client: {having('client')}; "
        f"with unit none: {having('none')}"
    )


ALGORITHM = one_registered("name", algorithms, _by_unit)
