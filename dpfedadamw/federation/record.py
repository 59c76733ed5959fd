"""The rounds of a run that protects single records: every gradient is clipped and noised."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol, Self

from numpy.typing import NDArray
from torch import nn

from dpfedadamw.algorithms import registry
from dpfedadamw.algorithms.base import GradientOracle, Upload
from dpfedadamw.algorithms.keys import SecondMomentSpec
from dpfedadamw.clipping.engines import ClippedSumEngine, PerformanceOptions, choose
from dpfedadamw.evidence.commitments import digest_of_commitments
from dpfedadamw.evidence.exchanges import digest_of_all
from dpfedadamw.evidence.record_level import ClientEvidence, RecordEvidence
from dpfedadamw.evidence.records import Witness
from dpfedadamw.evidence.round_files import EvidenceSetup
from dpfedadamw.experiment import Experiment
from dpfedadamw.federation.participation import Answer, LocalResult, Participation, Round
from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
from dpfedadamw.models.registry import loss_of
from dpfedadamw.privacy.charges import charges_of_records
from dpfedadamw.privacy.clipped_sum import Clipping
from dpfedadamw.privacy.grid import on_grid
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.profiling import part
from dpfedadamw.vectors.precision import FLOAT32


class GradientObserver(Protocol):
    """Notes what the noised gradients of an audit run say of its canaries."""

    def observed(self, oracle: GradientOracle, client: int, round_index: int) -> GradientOracle:
        """An oracle whose answers are noted."""
        ...


@dataclass(frozen=True, kw_only=True)
class RecordLevel(Unprotected):
    """Charges every client of a round for its steps, and writes down each of their queries.

    Attributes:
        evidence: Written after each round.
        observer: Notes every noised gradient, in an audit run.
    """

    evidence: RecordEvidence
    observer: GradientObserver | None = None

    @classmethod
    def open(cls, setup: UnitSetup) -> Self:
        """The unit of a run whose directory is there, ready for its next round."""
        spec, plan = setup.experiment.spec, setup.experiment.plan
        moment = spec.algorithm.part(SecondMomentSpec)
        evidence_setup = EvidenceSetup(
            directory=setup.directory,
            blocks=setup.blocks,
            unit=plan.unit.name,
            clipping_norm=plan.clipping_norm,
            rounds=plan.rounds,
            per_round=plan.clients_per_round,
            queries=plan.local_steps * plan.queries_per_step,
            released=setup.blocks.parameters,
            beta2=registry.measured_beta2(spec.algorithm),
            commitments=setup.commitments,
        )
        evidence = RecordEvidence(
            evidence_setup, aggregated=moment is not None and moment.aggregation != "none"
        )
        evidence.restore(setup.completed)
        return cls(evidence=evidence)

    @staticmethod
    def engine(experiment: Experiment, performance: PerformanceOptions) -> ClippedSumEngine:
        """The engine that clips and sums the gradients of a batch."""
        plan = experiment.plan
        if performance.precision != FLOAT32:
            # Batches are of one size then, in every dimension; else nothing is said of padding.
            from dpfedadamw.models.transformers.padding import keep_padding

            keep_padding(experiment.model)
        expected, each = plan.divisor(0), plan.records_per_person or 1
        # Most Poisson batches fit; a public number either way, and one person is never cut.
        most = math.ceil(expected + 2.0 * math.sqrt(expected)) * each
        batch = max(each, min(performance.physical_batch_size, most))
        return choose(
            experiment.model,
            loss_of(experiment.model),
            plan.clipping_norm,
            engine=performance.engine,
            precision=performance.precision,
            batch=batch,
        )

    def spot_check(self, model: nn.Module, plan: PrivacyPlan, precision: str) -> SpotCheck | None:
        """Compares one record of each participation; none where gradients were planted."""
        if self.observer is not None:
            return None
        return SpotCheck(model, loss_of(model), Clipping(plan.clipping_norm), precision)

    @staticmethod
    def charges(current: Round) -> list[dict[str, object]]:
        """One line for each client of the round."""
        return charges_of_records(current.plan, current.index, current.attempt, current.chosen)

    def answer(self, part: Participation, result: LocalResult) -> Answer:
        """What a client sends, on the public grid: no bit is left for anything else."""
        grid, upload = part.current.plan.unit.grid, result.upload
        assert grid is not None
        size = len(upload.update)
        rounded = Upload(
            on_grid(upload.update, grid.update),
            grid.tensors(upload.state, size),
            grid.tensors(upload.memory, size),
        )
        return super().answer(part, replace(result, upload=rounded))

    def evidence_of_client(self) -> ClientEvidence:
        """A collector for one client's part in a round."""
        return self.evidence.client()

    def witness(self) -> Witness:
        """What notes a record of each batch of one client's part."""
        return self.evidence.witness()

    def take_shared(self) -> dict[str, NDArray[Any]]:
        """Squared noise at each coordinate, [d], since this was asked before."""
        return {"squares": self.evidence.take_squares()}

    def add_shared(self, noted: Mapping[str, NDArray[Any]]) -> None:
        """Add what `take_shared` gave in the process of a client to the running round's."""
        self.evidence.add_squares(noted["squares"])

    def observed(self, oracle: GradientOracle, part: Participation) -> GradientOracle:
        """The oracle, whose answers are noted in an audit run."""
        if self.observer is None:
            return oracle
        return self.observer.observed(oracle, part.client, part.current.index)

    @part("evidence")
    def forget_unkept(self, part: Participation, answer: Answer) -> None:
        """Let go of points and gradients that are not kept: of most participations of a long run.

        They are two vectors a query, which the process that leads the run would only throw away.
        """
        place, evidence = (part.place, len(part.current.chosen)), answer.result.evidence
        assert evidence is not None
        digest = sha256(answer.message).digest()
        if not self.evidence.uploads.keeps(part.current.index, place, part.client, digest):
            evidence.exchange.forget()

    @part("evidence")
    def took_part(self, part: Participation, answer: Answer) -> None:
        """Write what the auditor needs to recompute the client's upload."""
        self.evidence.add_squares()
        evidence = answer.result.evidence
        assert evidence is not None
        evidence.upload_sha256 = sha256(answer.message).digest()
        evidence.seen = answer.result.seen
        self.evidence.uploads.participation(
            round_index=part.current.index,
            place=(part.place, len(part.current.chosen)),
            client=part.client,
            messages=(part.current.message, answer.message),
            memory=(part.memory, answer.result.upload.memory),
            digest=evidence.upload_sha256,
            exchange=evidence.exchange,
        )
        # Two vectors a query, of every client of the round, would stay to its end.
        evidence.exchange.forget()

    @part("evidence")
    def close(self, current: Round) -> Mapping[str, object]:
        """Write the round's evidence.

        Uploads are functions of noised gradients, so that their digests tell nothing more.
        """
        uploads = [answer.message for answer in current.answers]
        found = [answer.result.evidence for answer in current.answers]
        collected = [one for one in found if one is not None]
        for one, upload in zip(collected, uploads, strict=True):
            # Where a participation is not written down, nobody has asked for it yet.
            one.upload_sha256 = one.upload_sha256 or sha256(upload).digest()
        self.evidence.write_round(
            index=current.index,
            attempt=current.attempt,
            clients=current.chosen,
            collected=collected,
            noise_multiplier=current.plan.noise_multiplier,
        )
        return {
            "broadcast_sha256": sha256(current.message).hexdigest(),
            "uploads_sha256": digest_of_all([one.upload_sha256 for one in collected]),
            "participations_sha256": digest_of_commitments(
                [one.commitment.digest() for one in collected]
            ),
            **self._pieces(current, uploads),
        }

    def _pieces(self, current: Round, uploads: Sequence[bytes]) -> Mapping[str, object]:
        """Keep what the server made of the round, where not all participations are kept whole."""
        if self.evidence.servers is None:
            return {}
        messages = (current.message, current.following)
        return self.evidence.servers.combined(current.index, messages, uploads, last=current.last)
