"""One client's part of a round: read the broadcast, take the local steps, answer.

`ClientRunner` is what a round asks of the place where clients compute, `Inline` this process as
one. A runner is handed the parts of a round's clients and gives their answers, in the same order.
All that it needs is in a `Participation`, in the spec, in the client's own records and in the
source of the client's noise, so that it may just as well compute in another process or on another
machine.

A runner writes nothing that belongs to the run. When it is asked, the ledger's charge for the whole
round is on the disk already; evidence is written by the round, in this process, as each answer
comes. So the run's files are written in one order wherever clients compute, and what is charged
before it is drawn stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from dpfedadamw.algorithms.base import GradientOracle, LocalRule
from dpfedadamw.clipping.engines import ClippedSumEngine, PerformanceOptions
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.commitments import Commitment
from dpfedadamw.evidence.exchanges import Exchange
from dpfedadamw.evidence.record_level import ClientEvidence, Unobserved
from dpfedadamw.evidence.records import Witness, Witnessed
from dpfedadamw.federation.messages import refuse_changes, view
from dpfedadamw.federation.participation import (
    Answer,
    ClientData,
    LocalResult,
    Participation,
    ParticipationWithData,
)
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.privacy.noise.randomness import RandomSource, Stream
from dpfedadamw.privacy.oracle import Charge, PrivateOracle
from dpfedadamw.privacy.plain_form import LoopEngine
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.spot_check import SpotCheck
from dpfedadamw.profiling import part, within
from dpfedadamw.vectors.flat import FlatParameters


class RecordingOracle:
    """Hands on every question to the real oracle and notes question and answer.

    Attributes:
        noise_variance: The real oracle's.
    """

    def __init__(self, oracle: GradientOracle, exchange: Exchange, commitment: Commitment) -> None:
        self.noise_variance = oracle.noise_variance
        self._oracle = oracle
        self._exchange = exchange
        self._commitment = commitment

    def next_batch(self) -> None:
        """Draw the records of the next local step."""
        self._oracle.next_batch()

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at the flat parameters [d]."""
        self._note_question(parameters)
        gradient = self._oracle.gradient(parameters)
        self._note_answer(gradient)
        return gradient

    @part("evidence")
    def _note_question(self, point: Tensor) -> None:
        self._commitment.point(self._exchange.asked(point))

    @part("evidence")
    def _note_answer(self, gradient: Tensor) -> None:
        self._commitment.gradient(self._exchange.answered(gradient))


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What every client of this process shares: the model is rebuilt for none of them.

    Attributes:
        rule: The local rule.
        unit: What the run protects.
        engine: Computes clipped sums for the module in ``flat``.
        flat: The module, overwritten at every query.
        randomness: Gives each client and round its own streams.
        performance: How gradients are computed.
    """

    rule: LocalRule
    unit: Unprotected
    engine: ClippedSumEngine
    flat: FlatParameters
    randomness: RandomSource
    performance: PerformanceOptions = field(default_factory=PerformanceOptions)
    _checks: list[SpotCheck | None] = field(default_factory=list, init=False, repr=False)

    def take_part(self, part: ParticipationWithData) -> Answer:
        """Run one client's local steps; what the server sends is taken from the message alone."""
        current, client = part.current, part.client

        def stream(purpose: str) -> Stream:
            return current.stream(self.randomness, purpose, client)

        # Read in place, by one client after another: copies would add two vectors to the rule's own
        # while gradients are formed.
        parameters, state = view(current.message, self.flat.vector)
        evidence, witness = self.unit.evidence_of_client(), self.unit.witness()
        oracle = self.oracle(
            plan=current.plan,
            client=client,
            data=part.data,
            local_steps=current.broadcast.local_steps,
            stream=stream,
            evidence=evidence,
            witness=witness,
        )
        asked = self.unit.observed(oracle, part)
        if evidence is not None:
            asked = RecordingOracle(asked, evidence.exchange, evidence.commitment)
        with within("local rule"):
            upload = self.rule.run(
                replace(current.broadcast, parameters=parameters, state=state, memory=part.memory),
                asked,
                evidence if evidence is not None else Unobserved(),
            )
        if evidence is not None:
            evidence.finish()
        refuse_changes({"parameters": parameters, **state})
        # Else what this client moved would stay until the next one asks for a gradient.
        self.flat.let_go(parameters)
        result = LocalResult(
            upload=upload,
            state=state,
            steps=oracle.steps,
            queries=oracle.queries,
            evidence=evidence,
            rows=oracle.rows,
            seen=witness.arrays() if witness is not None and witness.saw else {},
        )
        return self.unit.answer(part, result)

    def drawing_from(self, randomness: RandomSource, plan: PrivacyPlan) -> Worker:
        """This worker with other streams and the same spot check.

        A check of its own would look at the first batch of each participation, where a fiftieth of
        the time is for checks.
        """
        other = replace(self, randomness=randomness, unit=self.unit.drawing_from(randomness))
        other._checks.append(self._check(plan))
        return other

    def oracle(
        self,
        *,
        plan: PrivacyPlan,
        client: int,
        data: ClientData,
        local_steps: int,
        stream: Callable[[str], Stream],
        evidence: ClientEvidence | None,
        witness: Witness | None = None,
    ) -> PrivateOracle:
        """The one way from a client's records to its gradients, in a run and for its probe.

        Args:
            plan: Decides batches, clipping and noise.
            client: Its index in the plan.
            data: Its records.
            local_steps: How many batches it may draw.
            stream: The client's random numbers by purpose.
            evidence: Where queries are noted; None for nowhere.
            witness: What notes a record of each batch; None for nothing.
        """
        inputs = data.seen_with(stream("views"))
        # Canaries are crafted when a batch is formed, and tensors know of no rows.
        if witness is not None and type(inputs) is StoredRecords:
            inputs = Witnessed(inputs, witness, self.performance.physical_batch_size)
        return PrivateOracle(
            plan=plan,
            client=client,
            charge=Charge(local_steps, self.rule.queries_per_step),
            engine=self.engine,
            check=self._check(plan),
            flat=self.flat,
            inputs=inputs,
            labels=data.labels,
            batches=stream("batches"),
            noise=stream("noise"),
            evidence=evidence,
            physical_batch_size=self.performance.physical_batch_size,
            people=None if data.people is None else (data.people, stream("records")),
        )

    def _check(self, plan: PrivacyPlan) -> SpotCheck | None:
        """What compares the engine with the plain form, one for all rounds of this process."""
        if self.engine.name == LoopEngine.name:
            return None
        if not self._checks:
            check = self.unit.spot_check(self.flat.module, plan, self.performance.precision)
            self._checks.append(check)
        return self._checks[0]


class ClientRunner(Protocol):
    """Runs clients of a round."""

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer | None]:
        """What each client's part comes to, in the order of ``parts``; None where it dropped out.

        No more drop out than the spec allows. The caller takes them one by one, and has written
        down what belongs to one before it asks for the next. It keeps their messages until the
        round is over, and nothing else that is as long as the model.

        Args:
            parts: Those of all clients of one attempt at one round, charged for.

        Raises:
            DpfedadamwError: If a client cannot be run. Nothing of the round is released then; it
                stays charged, and the run can be resumed.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds; no round follows."""
        ...


@dataclass(frozen=True)
class Inline:
    """Runs clients in this process, one after another.

    Attributes:
        worker: What they share.
        clients: Every client's records.
    """

    worker: Worker
    clients: Sequence[ClientData]

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer]:
        """Run each client when its answer is asked for."""
        for own in parts:
            # Not held here: else one client's vectors would stay while the next one works.
            yield self.worker.take_part(own.of(self.clients[own.client]))

    def close(self) -> None:
        """Nothing is held."""
