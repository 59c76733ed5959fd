"""The section `model` of a spec: what all models have.

All other keys stand with the model that has them, in the file that registers it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dpfedadamw.spec.registered import Registered, one_registered, registry
from dpfedadamw.spec.section import LARGEST_SEED, Section, key


class ModelSpec(Section, title="Model"):
    """The model that is trained."""

    name: str = key(..., "Which model is trained: {names}.", title="Model")
    seed: int | None = key(
        None,
        "Seed of the initial weights, which are public and depend on no record. Null to have it "
        "made of data.seed and, where randomness is reproducible, of its seed. Weights that are "
        "read from a file do not depend on it.",
        title="Model seed",
        ge=0,
        le=LARGEST_SEED,
        unit="none",
        examples=(None, 1),
    )


def models() -> Mapping[str, Registered[ModelSpec]]:
    """Return every registered model by name."""
    found: Mapping[str, Registered[ModelSpec]] = registry("models", "MODELS")
    return found


def _names() -> str:
    *others, last = models()
    return f"{', '.join(others)} or {last}"


MODEL = one_registered("name", models, _names)
