"""The section `model` of a spec: what all models have.

All other keys stand with the model that has them, in the file that registers it. This package
stands below those files, and finds them through their registry when the first spec is read.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Protocol

from dpfedadamw.spec.section import OneOf, Section, key
from dpfedadamw.spec.values import Check


class ModelSpec(Section, title="Model"):
    """The model that is trained."""

    name: str = key(..., "Which model is trained: {names}.", title="Model")


class RegisteredModel(Protocol):
    """What a spec goes by of a registered model; ``models.registry.ModelEntry`` says more."""

    @property
    def keys(self) -> type[ModelSpec]:
        """Its section."""
        ...

    @property
    def check(self) -> Check:
        """Finds what its keys contradict, each other or the data."""
        ...


def models() -> Mapping[str, RegisteredModel]:
    """Return every registered model by name."""
    registry = importlib.import_module("dpfedadamw.models.registry")
    found: Mapping[str, RegisteredModel] = registry.MODELS
    return found


def _sections() -> dict[str, type[Section]]:
    return {name: entry.keys for name, entry in models().items()}


def _names() -> str:
    *others, last = models()
    return f"{', '.join(others)} or {last}"


MODEL = OneOf("name", _sections, names=_names)
