"""The rounds of a run that protects nothing, and what the units of protection change about them.

`record.RecordLevel` and `client.ClientLevel` are the two units. `run.computing` finds the one of a
plan; plan and claim of each are in `units`, its canaries in `canaries`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfedadamw.algorithms import registry
from dpfedadamw.algorithms.base import GradientOracle, Upload
from dpfedadamw.clipping.engines import ClippedSumEngine, PerformanceOptions, PlainSum
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.evidence.records import Witness
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.messages import pack, view
from dpfedadamw.federation.participation import (
    Answer,
    ClientData,
    LocalResult,
    Participation,
    Round,
)
from dpfedadamw.models.registry import loss_of
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import Blocks


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """The parts of a run in which an audit run plants its canaries.

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


@dataclass(frozen=True, kw_only=True)
class UnitSetup:
    """What the rounds of a unit are made from.

    Attributes:
        experiment: What is run.
        directory: The run's ``evidence/``.
        completed: Rounds completed by an earlier part of the run.
        randomness: Gives the server its streams.
        commitments: How participations are hashed, as the ledger's header says.
    """

    experiment: Experiment
    directory: Path
    completed: int
    randomness: RandomSource
    commitments: str

    @property
    def blocks(self) -> Blocks:
        """The partition by which noise and moments are measured."""
        experiment = self.experiment
        measured = registry.measuring_blocks(experiment.spec.algorithm, experiment.model)
        return measured.to(experiment.device)


@dataclass(frozen=True, kw_only=True)
class Unprotected:
    """Charges nothing, leaves no evidence, and sends what the local rule gives as it is.

    Attributes:
        moved_by_empty_rounds: Whether a round without clients moves the server's state too.
    """

    moved_by_empty_rounds: ClassVar[bool] = False

    @classmethod
    def open(cls, _setup: UnitSetup) -> Self:
        """The unit of a run whose directory is there, ready for its next round."""
        return cls()

    def drawing_from(self, _randomness: RandomSource) -> Self:
        """The same with its noise, where it draws any, from another source."""
        return self

    def probed(self) -> Unprotected:
        """The unit whose clients the auditor's probe lets work, in this process."""
        return self

    @staticmethod
    def engine(experiment: Experiment, performance: PerformanceOptions) -> ClippedSumEngine:
        """The engine that sums the gradients of a batch."""
        return PlainSum(experiment.model, loss_of(experiment.model), performance.precision)

    def spot_check(
        self, _model: nn.Module, _plan: PrivacyPlan, _precision: str
    ) -> SpotCheck | None:
        """What compares clipped gradients with the plain form; None where none is clipped."""
        return None

    @staticmethod
    def explain(engine: ClippedSumEngine, _plan: RunPlan) -> str:
        """How sums are computed, one line for the run's summary."""
        return engine.explain()

    @staticmethod
    def charges(_current: Round) -> list[dict[str, object]]:
        """What the ledger is charged for a round, before it begins."""
        return []

    def evidence_of_client(self) -> ClientEvidence | None:
        """Where one client's part in a round is noted; None where gradients are not noised."""
        return None

    def witness(self) -> Witness | None:
        """What notes a record of each batch of one client's part; None where nothing is noted."""
        return None

    def take_shared(self) -> dict[str, NDArray[Any]]:
        """What a separate process noted about a client, without its own evidence; read once."""
        return {}

    def add_shared(self, noted: Mapping[str, NDArray[Any]]) -> None:
        """Add what `take_shared` gave in the process of a client to the running round's."""

    def observed(self, oracle: GradientOracle, _part: Participation) -> GradientOracle:
        """The oracle, whose answers are noted in an audit run."""
        return oracle

    def answer(self, _part: Participation, result: LocalResult) -> Answer:
        """What a client sends of what its local steps came to."""
        return Answer(message=pack(result.upload.update, result.upload.state), result=result)

    @staticmethod
    def likeness(_current: Round, upload: Upload) -> bytes:
        """A serialised upload of the types and shapes that a round's clients send.

        Args:
            current: The round.
            upload: What the local rule gives.
        """
        return pack(upload.update, upload.state)

    def forget_unkept(self, part: Participation, answer: Answer) -> None:
        """Let go of what `took_part` will not write down, before an answer goes to its process."""

    def took_part(self, part: Participation, answer: Answer) -> None:
        """Write the evidence of one client's part in a round."""

    def receive(self, current: Round) -> list[Upload]:
        """Read a round's uploads, as the server rule combines them: it may not change them."""
        like = current.broadcast.parameters
        return [Upload(*view(answer.message, like)) for answer in current.answers]

    def close(self, _current: Round) -> Mapping[str, object]:
        """Write a finished round's evidence; digests of what travelled in it, for the ledger."""
        return {}

    @staticmethod
    def traffic(current: Round) -> tuple[int | None, int | None]:
        """Bytes up and down of a round, as they may be published; None where they may not.

        Where clients are drawn independently, how many took part is no one's to know but the
        server's: the traffic of S clients is stated for every round. All uploads are of one size;
        what it is, an empty round cannot tell.
        """
        plan, answers = current.plan, current.answers
        if plan.participants_hidden:
            expected = plan.clients_per_round
            up = len(answers[0].message) * expected if answers else None
            return up, len(current.message) * expected
        sent = sum(len(answer.message) for answer in answers)
        return sent, len(current.message) * len(answers)


def record_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each record, [b]."""
    return cross_entropy(outputs, targets, reduction="none")
