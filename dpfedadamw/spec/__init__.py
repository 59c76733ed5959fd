"""The spec: what one experiment is, and how to read and write it.

The first station of the flow: YAML text → values with places (`yamltext`) → overrides → schema
(`checks`) and cross-field checks (`crosschecks`) → frozen sections (`sections`). Every key is
defined once, at its field (`section` says how); the JSON Schema, the reference page, the defaults
and the messages are made from these definitions. Everything downstream takes a `Spec` or one of its
sections. Importing this package loads no tensor library.
"""

from __future__ import annotations

from dpfedadamw.spec.algorithm_section import (
    AlgorithmSpec,
    LocalIterationsSpec,
    NoiseDecaySpec,
    algorithms,
)
from dpfedadamw.spec.data_section import (
    DataSpec,
    EvenPartition,
    GivenPartition,
    PartitionSpec,
    ValidationSpec,
    datasets,
)
from dpfedadamw.spec.model_section import ModelSpec, models
from dpfedadamw.spec.privacy_section import (
    PoissonSamplingSpec,
    PrivacySpec,
    RandomnessSpec,
    ReleaseRandomnessSpec,
    ReproducibleRandomnessSpec,
    SamplingSpec,
)
from dpfedadamw.spec.reading import (
    ShippedSpec,
    data_of,
    dump,
    filed,
    from_mapping,
    load,
    load_filed,
    loads,
    model_of,
    replace_noise_multiplier,
    resolve,
    shipped,
    shipped_sweeps,
    task_of,
)
from dpfedadamw.spec.section import Section, key, one_of
from dpfedadamw.spec.sections import (
    BudgetSpec,
    ComputeSpec,
    EvaluationSpec,
    FederationSpec,
    NotTuned,
    ReportSpec,
    Spec,
    TuneSpec,
)
from dpfedadamw.spec.task_section import TaskSpec
from dpfedadamw.spec.vocabulary import schema

__all__ = [
    "AlgorithmSpec",
    "BudgetSpec",
    "ComputeSpec",
    "DataSpec",
    "EvaluationSpec",
    "EvenPartition",
    "FederationSpec",
    "GivenPartition",
    "LocalIterationsSpec",
    "ModelSpec",
    "NoiseDecaySpec",
    "NotTuned",
    "PartitionSpec",
    "PoissonSamplingSpec",
    "PrivacySpec",
    "RandomnessSpec",
    "ReleaseRandomnessSpec",
    "ReportSpec",
    "ReproducibleRandomnessSpec",
    "SamplingSpec",
    "Section",
    "ShippedSpec",
    "Spec",
    "TaskSpec",
    "TuneSpec",
    "ValidationSpec",
    "algorithms",
    "data_of",
    "datasets",
    "dump",
    "filed",
    "from_mapping",
    "key",
    "load",
    "load_filed",
    "loads",
    "model_of",
    "models",
    "one_of",
    "replace_noise_multiplier",
    "resolve",
    "schema",
    "shipped",
    "shipped_sweeps",
    "task_of",
]
