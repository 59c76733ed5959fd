"""A spec and its smaller sections, as frozen dataclasses; the larger ones have files of their own.

What everything downstream works with. A `Spec` that was loaded is complete, its values are in range
and do not contradict each other; one that was made by hand is only checked when it is loaded again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dpfedadamw.spec.algorithm_section import AlgorithmSpec
from dpfedadamw.spec.data_section import DataSpec
from dpfedadamw.spec.model_section import ModelSpec
from dpfedadamw.spec.privacy_section import PrivacySpec, RandomnessSpec
from dpfedadamw.spec.vocabulary import fill_defaults


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
