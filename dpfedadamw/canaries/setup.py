"""Turns an experiment into an audit run: the same spec, with canaries among records or clients.

`run.setup.start` calls it. An audit run has a name, a ledger header and metrics of its own that say
what it is; nothing of the run that it audits is touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.canaries.engine import Canaries, CanaryOrder
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.unprotected import RunParts
from dpfedadamw.privacy.noise.randomness import Stream
from dpfedadamw.rundir import write_arrays
from dpfedadamw.vectors.flat import FlatParameters

FILE = "canaries.npz"
SUFFIX = "-canaries"
_LONGEST_NAME = 64


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
        return CanaryEvidence(directory, drawn.client, drawn.included, drawn.opposed, drawn.person)

    def renamed(self, experiment: Experiment) -> Experiment:
        """The experiment under the name of an audit run."""
        name = experiment.spec.name[: _LONGEST_NAME - len(SUFFIX)] + SUFFIX
        return replace(experiment, spec=experiment.spec.replace(name=name))


def trainable(experiment: Experiment) -> int:
    """d, the number of parameters that are trained."""
    return sum(p.numel() for p in experiment.model.parameters() if p.requires_grad)


class CanaryEvidence:
    """What an audit run writes down of its canaries, for an auditor who has no engine.

    One archive, ``evidence/canaries.npz``: the coins, what every release said along every canary's
    direction, and the losses under the initial and the final model. It collects rows, one a query.
    All of it concerns planted records.

    Args:
        directory: The run's ``evidence/``.
        client: The client of each canary, ascending, int64 [N].
        included: The coins, bool [N].
        opposed: Whether a canary that is not included has the opposite gradient.
        person: Of whom each is a part, int64 [N]; None where each stands for itself.
    """

    def __init__(
        self,
        directory: Path,
        client: NDArray[np.int64],
        included: NDArray[np.bool_],
        opposed: bool,
        person: NDArray[np.int64] | None = None,
    ) -> None:
        self._directory = directory
        self._client = client
        self._included = included
        self._opposed = opposed
        self._person = {} if person is None else {"person": person}
        self._rows: list[tuple[int, int, int, int]] = []
        self._projections: list[NDArray[np.float32]] = []
        self._further: dict[str, list[NDArray[np.float32]]] = {}

    def note(
        self,
        round_index: int,
        step: int,
        first: int,
        projections: NDArray[np.float64],
        **further: NDArray[np.float64],
    ) -> None:
        """Take note of what one release says of some canaries that lie side by side.

        Args:
            round_index: t.
            step: Local step of the round, from 0; 0 for a round's release at client level.
            first: The first canary.
            projections: One a canary: the released sum, without what others put in, along the
                canary's own clipped gradient, in units of C².
            further: More numbers, one a canary each. `others`: what other records put in along its
                direction, where that is not taken away, because the adversary does not know it and
                the test of the noise does. Of crafted inputs those of `crafted.OwnDirections`.
        """
        self._rows.append((round_index, step, first, len(projections)))
        self._projections.append(projections.astype(np.float32))
        for name, values in further.items():
            self._further.setdefault(name, []).append(values.astype(np.float32))

    def write(
        self,
        before: NDArray[np.float64],
        after: NDArray[np.float64],
        **known: NDArray[np.generic],
    ) -> None:
        """Write the archive.

        Args:
            before: Each canary's loss under the initial model, [N].
            after: Under the final model, [N].
            known: How well the final model knows secret texts (`secrets`).
        """
        rows = np.asarray(self._rows, dtype=np.int64).reshape(-1, 4)
        write_arrays(
            self._directory / FILE,
            {
                "client": self._client,
                **self._person,
                "included": self._included.astype(np.uint8),
                "opposed": np.asarray(self._opposed, dtype=np.uint8),
                "row_round": rows[:, 0],
                "row_step": rows[:, 1],
                "row_first": rows[:, 2],
                "row_count": rows[:, 3],
                "projections": np.concatenate([np.zeros(0, np.float32), *self._projections]),
                **{name: np.concatenate(parts) for name, parts in self._further.items()},
                "loss_before": before,
                "loss_after": after,
                **known,
            },
        )
