"""The section `model` of a spec: what all models have.

All other keys stand with the model that has them, in the file that registers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpfedadamw.registration import Registry
from dpfedadamw.spec.section import (
    LARGEST_SEED,
    Keys,
    Registered,
    Section,
    key,
    one_registered,
    registry,
)
from dpfedadamw.spec.task_section import CLASSIFICATION, MULTI_LABEL, REGRESSION


class ModelSpec(Section, title="Model"):
    """The model that is trained."""

    name: str = key(..., "Which model is trained: {names}.", title="Model")
    seed: int | None = key(
        None,
        "Seed of the initial weights, which are public and depend on no record. Null derives it "
        "from data.seed and, if randomness is reproducible, from its seed. Weights read from a "
        "file do not depend on it.",
        title="Model seed",
        ge=0,
        le=LARGEST_SEED,
        unit="none",
        examples=(None, 1),
    )


@dataclass(frozen=True, kw_only=True)
class RegisteredModel(Registered[Keys]):
    """What a spec goes by of a model; ``models.registry.ModelEntry`` says more.

    Attributes:
        tasks: Kinds of task that it can be trained for. What answers a record with as many numbers
            as are asked for is trained for all that are of whole records.
    """

    tasks: tuple[str, ...] = (CLASSIFICATION, REGRESSION, MULTI_LABEL)


def models() -> Registry[RegisteredModel[Any]]:
    """Return every registered model by name."""
    found: Registry[RegisteredModel[Any]] = registry("models", "MODELS")
    return found


def _names() -> str:
    *others, last = models()
    return f"{', '.join(others)} or {last}"


MODEL = one_registered("name", models, _names)
