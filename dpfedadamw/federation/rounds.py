"""The rounds of a run: charge the ledger, let clients work, combine, write evidence, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.algorithms.base import (
    Broadcast,
    Pace,
    ServerRule,
    ServerState,
    Terms,
    Upload,
    cosine_learning_rate,
)
from dpfedadamw.data.datasets import Records
from dpfedadamw.evidence.exchanges import digest_of_all
from dpfedadamw.evidence.record_level import ClientEvidence, EvidenceWriter
from dpfedadamw.federation.client import Answer, ClientData, Worker
from dpfedadamw.federation.messages import pack, unpack
from dpfedadamw.privacy.accounting.worst_case import charged_steps
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.spec import Spec


@dataclass(frozen=True)
class RoundResult:
    """What a round leaves behind.

    Attributes:
        completed: Rounds completed so far, from 1.
        state: The server's state after it.
        learning_rate: η of the round.
        traffic: Bytes of all uploads and of all broadcasts, as they may be published; None where
            they may not.
        seconds: Wall time.
        last: Whether no round follows.
    """

    completed: int
    state: ServerState
    learning_rate: float
    traffic: tuple[int | None, int | None]
    seconds: float
    last: bool


@dataclass(frozen=True)
class Federation:
    """Everything that rounds need, wired once.

    Attributes:
        spec: The resolved spec.
        worker: Runs clients in this process.
        server: The server's rule.
        pace: Chooses steps and noise of each round; None where they are the plan's in all.
        clients: Every client's records.
        ledger: Charged before any noise is drawn.
        evidence: Written after each round; None without privacy.
    """

    spec: Spec
    worker: Worker
    server: ServerRule
    pace: Pace | None
    clients: Sequence[ClientData]
    ledger: Ledger
    evidence: EvidenceWriter | None

    def run(
        self,
        state: ServerState,
        first_round: int,
        on_client: Callable[[int, int], None] | None = None,
    ) -> Iterator[RoundResult]:
        """Run all rounds from ``first_round`` on, one at a time as the caller asks.

        There may be fewer than the spec's where they share a limit on steps.

        Args:
            state: The server's state before that round.
            first_round: t of the first round to run, from 0.
            on_client: Called with (clients done, clients of the round) after each client.
        """
        for index in range(first_round, self.spec.federation.rounds):
            turn = self._turn(state, index)
            if turn is None:
                return
            result = turn._round(state, index, on_client)
            state = result.state
            yield result

    def _turn(self, state: ServerState, index: int) -> Federation | None:
        """This federation under the steps and noise of one round; None when nothing is left.

        What the rule chooses is checked against what the claim covers before anything is charged.
        """
        if self.pace is None:
            return self
        plan = self.worker.plan
        terms = self._terms(index)
        turn = self.pace.turn(state, terms)
        if turn.local_steps == 0:
            return None
        noise = plan.noise_multiplier * turn.noise_factor
        plan.course.check(index, turn.local_steps, noise, terms.spent_steps)
        plan = replace(plan, local_steps=turn.local_steps, noise_multiplier=noise)
        return replace(self, worker=replace(self.worker, plan=plan))

    def _terms(self, index: int) -> Terms:
        """The public numbers that a pace may go by."""
        plan = self.worker.plan
        charged = charged_steps(self.ledger.entries)
        before = [steps for (number, _), steps in charged.items() if number == index - 1]
        return Terms(
            round_index=index,
            rounds=plan.rounds,
            local_steps=plan.local_steps,
            previous_steps=before[-1] if before else plan.local_steps,
            spent_steps=sum(charged.values()),
            step_limit=plan.adaptation.step_limit if plan.adaptation else None,
            clipping_norm=plan.clipping_norm,
            # Equal for all: B is the same fixed number everywhere.
            noise_variance=plan.noise_variance(0),
        )

    def _last(self, index: int) -> bool:
        """Whether no round follows this one."""
        plan = self.worker.plan
        limit = plan.adaptation.step_limit if plan.adaptation else None
        spent = limit is not None and sum(charged_steps(self.ledger.entries).values()) >= limit
        return spent or index + 1 == plan.rounds

    def _round(
        self, state: ServerState, index: int, on_client: Callable[[int, int], None] | None
    ) -> RoundResult:
        started = time.perf_counter()
        broadcast = self._broadcast(state, index)
        chosen, attempt = self._choose(index)
        self._charge(index, attempt, chosen)
        message = pack(state.parameters, state.state)
        answers: list[Answer] = []
        collected: list[ClientEvidence] = []
        memories = dict(state.memories)
        for place, client in enumerate(chosen):
            evidence = self.evidence.client() if self.evidence is not None else None
            own = replace(broadcast, memory=memories.get(client, {}))
            answer = self.worker.take_part(
                client,
                self.clients[client],
                message,
                own,
                index,
                attempt,
                evidence,
                len(chosen),
            )
            answers.append(answer)
            if answer.memory:
                memories[client] = answer.memory
            if self.evidence is not None and evidence is not None:
                collected.append(evidence)
                kept = (own.memory, answer.memory)
                self.evidence.uploads.participation(
                    index,
                    (place, len(chosen)),
                    client,
                    (message, answer.message),
                    kept,
                    evidence.exchange,
                )
            if on_client is not None:
                on_client(place + 1, len(chosen))
        uploads = self._receive(state, index, attempt, chosen, answers)
        # Where clients are drawn independently a round may have none: it changes nothing.
        if uploads:
            state = replace(self.server.combine(state, uploads, broadcast), memories=memories)
        noted: dict[str, object] = {**self._exchanged(index, message, answers, uploads, state)}
        if self.pace is not None:
            noted["released"] = dict(self.pace.readings(state))
        self._close_round(index, attempt, chosen, collected, answers, noted)
        return RoundResult(
            completed=index + 1,
            state=state,
            learning_rate=broadcast.learning_rate,
            traffic=self._traffic(message, answers),
            seconds=time.perf_counter() - started,
            last=self._last(index),
        )

    def _broadcast(self, state: ServerState, index: int) -> Broadcast:
        algorithm, federation = self.spec.algorithm, self.spec.federation
        rate = algorithm.learning_rate
        if algorithm.schedule == "cosine":
            rate = cosine_learning_rate(rate, index, federation.rounds)
        steps = self.worker.plan.local_steps
        return Broadcast(state.parameters, state.state, rate, steps, self._earlier_steps(index))

    def _earlier_steps(self, index: int) -> int:
        """Local steps that moved the server's state so far; a round that was repeated counts once.

        An empty round adds no step to any moving average: counting it would make the bias
        correction of the second moment wrong.
        """
        last = {entry["round"]: entry["steps"] for entry in self.ledger.of_kind("round")}
        return sum(max(last[before], default=0) for before in range(index))

    def _choose(self, index: int) -> tuple[list[int], int]:
        """The clients of a round, and how often the round has been begun, this time included."""
        begun = {e["attempt"] for e in self.ledger.of_kind("spend") if e["round"] == index}
        attempt = 1 + max(begun, default=0)
        stream = self.worker.randomness.stream("clients", index, -1, attempt)
        drawn = self.worker.plan.cohort.draw(len(self.clients), stream)
        return [int(client) for client in drawn], attempt

    def _traffic(self, message: bytes, answers: Sequence[Answer]) -> tuple[int | None, int | None]:
        """Bytes up and down of a round, as they may be published.

        Where clients are drawn independently, how many took part is no one's to know but the
        server's: the traffic of S clients is stated for every round. All uploads are of one size;
        what it is, an empty round cannot tell.
        """
        if self.worker.plan.participants_hidden:
            expected = self.worker.plan.clients_per_round
            up = len(answers[0].message) * expected if answers else None
            return up, len(message) * expected
        return sum(len(answer.message) for answer in answers), len(message) * len(answers)

    def _receive(
        self,
        state: ServerState,
        index: int,
        attempt: int,
        chosen: Sequence[int],
        answers: Sequence[Answer],
    ) -> list[Upload]:
        """Read the round's uploads, as the server rule combines them."""
        del index, attempt, chosen
        return [Upload(*unpack(answer.message, state.parameters)) for answer in answers]

    def _charge(self, index: int, attempt: int, chosen: Sequence[int]) -> None:
        plan = self.worker.plan
        if not plan.private:
            return
        self.ledger.append_all(
            "spend",
            [
                {
                    "round": index,
                    "client": client,
                    "attempt": attempt,
                    "records": plan.records[client],
                    "sampling": plan.sampling.event_kind,
                    "sampling_rate": plan.sampling_rate(client),
                    "expected_batch_size": plan.divisor(client),
                    "clipping_norm": plan.clipping_norm,
                    "noise_multiplier": plan.noise_multiplier,
                    "steps": plan.local_steps,
                    "queries_per_step": plan.queries_per_step,
                }
                for client in chosen
            ],
        )

    def _exchanged(
        self,
        index: int,
        message: bytes,
        answers: Sequence[Answer],
        uploads: Sequence[Upload],
        state: ServerState,
    ) -> Mapping[str, str]:
        """Digests of what travelled in a round, for the ledger; none without privacy.

        Uploads are functions of noised gradients, so that their digests tell nothing more.
        """
        del index, uploads, state
        if self.evidence is None:
            return {}
        return {
            "broadcast_sha256": sha256(message).hexdigest(),
            "uploads_sha256": digest_of_all([answer.message for answer in answers]),
        }

    def _close_round(
        self,
        index: int,
        attempt: int,
        chosen: Sequence[int],
        collected: Sequence[ClientEvidence],
        answers: Sequence[Answer],
        noted: Mapping[str, object],
    ) -> None:
        if self.evidence is not None:
            messages = [answer.message for answer in answers]
            self.evidence.write_round(index, attempt, chosen, collected, messages)
        self.ledger.append(
            "round",
            {
                "round": index,
                "clients": list(chosen),
                "steps": [answer.steps for answer in answers],
                "queries": [answer.queries for answer in answers],
                **noted,
            },
        )


def client_data(
    records: Records, owner: NDArray[np.int64], clients: int, device: torch.device
) -> list[ClientData]:
    """Divide n training records by their owners [n] among the clients; none is copied."""
    inputs, order = records.inputs.to(device), np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return [
        ClientData(inputs.select(rows), torch.from_numpy(records.labels[rows]).to(device))
        for rows in np.split(order, ends[:-1])
    ]
