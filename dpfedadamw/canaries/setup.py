"""Turns an experiment into an audit run: the same spec, with canaries among records or clients.

`run.setup.start` calls it. An audit run has a name, a ledger header and metrics of its own that say
what it is; nothing of the run that it audits is touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dpfedadamw.canaries.engine import Canaries, CanaryOrder
from dpfedadamw.canaries.evidence import CanaryEvidence
from dpfedadamw.clipping.engines import ClippedSumEngine
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.privacy.noise.randomness import Stream
from dpfedadamw.vectors.flat import FlatParameters

SUFFIX = "-canaries"
_LONGEST_NAME = 64


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of a run in which canaries are planted.

    Attributes:
        unit: What the run protects.
        engine: Computes clipped sums.
        clients: Every client's records.
        finish: Writes the evidence of the canaries, once the model holds the final parameters.
    """

    unit: Unprotected
    engine: ClippedSumEngine
    clients: Sequence[ClientData]
    finish: Callable[[], None] | None = None


@dataclass(frozen=True)
class CanarySetup(ABC):
    """Canaries that are drawn but not yet planted.

    Attributes:
        order: What was asked for.
        canaries: What was drawn.
    """

    order: CanaryOrder
    canaries: Canaries

    @classmethod
    @abstractmethod
    def draw(cls, experiment: Experiment, order: CanaryOrder, coins: Stream) -> Self:
        """Draw the canaries of an audit run; writes nothing.

        Raises:
            RunError: If canaries of this kind cannot be planted under the spec.
            PrivacyError: If so many canaries cannot be planted.
        """

    @abstractmethod
    def plant(
        self, parts: RunParts, experiment: Experiment, directory: Path, flat: FlatParameters
    ) -> RunParts:
        """The parts with the canaries in them.

        Args:
            parts: Those of the run without canaries.
            experiment: What is run.
            directory: The run's ``evidence/``.
            flat: The model's parameters, initial.
        """

    def evidence(self, directory: Path) -> CanaryEvidence:
        """Where it is noted what becomes of the canaries."""
        drawn = self.canaries
        return CanaryEvidence(directory, drawn.client, drawn.included, drawn.opposed)


def trainable(experiment: Experiment) -> int:
    """d, the number of parameters that are trained."""
    return sum(p.numel() for p in experiment.model.parameters() if p.requires_grad)


def renamed(experiment: Experiment) -> Experiment:
    """The experiment under the name of an audit run."""
    name = experiment.spec.name[: _LONGEST_NAME - len(SUFFIX)] + SUFFIX
    return replace(experiment, spec=experiment.spec.replace(name=name))
