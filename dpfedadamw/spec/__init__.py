"""The spec: what one experiment is, and how to read and write it.

The first station of the flow: YAML text → values with places (`yamlreader`) → overrides → schema
(`checks`) and cross-field checks (`crosschecks`) → frozen dataclasses (`sections`). Everything
downstream takes a `Spec` or one of its sections. Importing this package loads no tensor library.
"""

from __future__ import annotations

from dpfedadamw.spec.fields import Field, describe
from dpfedadamw.spec.reading import (
    ShippedSpec,
    dump,
    load,
    loads,
    replace_noise_multiplier,
    resolve,
    shipped,
)
from dpfedadamw.spec.sections import (
    AlgorithmSpec,
    CNNSpec,
    ComputeSpec,
    DataSpec,
    EvaluationSpec,
    FederationSpec,
    FirstMomentSpec,
    FloorSpec,
    MLPSpec,
    ModelSpec,
    PartitionSpec,
    PrivacySpec,
    RandomnessSpec,
    ReportSpec,
    SamplingSpec,
    SamSpec,
    SecondMomentSpec,
    ServerSpec,
    SmoothingSpec,
    Spec,
    ValidationSpec,
    ViTSpec,
)
from dpfedadamw.spec.vocabulary import schema

__all__ = [
    "AlgorithmSpec",
    "CNNSpec",
    "ComputeSpec",
    "DataSpec",
    "EvaluationSpec",
    "FederationSpec",
    "Field",
    "FirstMomentSpec",
    "FloorSpec",
    "MLPSpec",
    "ModelSpec",
    "PartitionSpec",
    "PrivacySpec",
    "RandomnessSpec",
    "ReportSpec",
    "SamSpec",
    "SamplingSpec",
    "SecondMomentSpec",
    "ServerSpec",
    "ShippedSpec",
    "SmoothingSpec",
    "Spec",
    "ValidationSpec",
    "ViTSpec",
    "describe",
    "dump",
    "load",
    "loads",
    "replace_noise_multiplier",
    "resolve",
    "schema",
    "shipped",
]
