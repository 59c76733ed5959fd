"""The rounds of a run: charge the ledger, let clients work, combine, write evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.accounting.epsilon_limit import Watch
from dpfedadamw.algorithms.base import (
    Broadcast,
    RoundSchedule,
    ScheduleInputs,
    ServerRule,
    ServerState,
    cosine_learning_rate,
    released,
)
from dpfedadamw.data.datasets import Records
from dpfedadamw.errors import PrivacyError
from dpfedadamw.evidence.exchanges import frozen_digest, vector_digest
from dpfedadamw.federation.messages import pack, view
from dpfedadamw.federation.participation import Answer, ClientData, Participation, Round
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.federation.worker import ClientRunner, Inline, Worker
from dpfedadamw.privacy.grid import on_grid
from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.key_tree import SERVER
from dpfedadamw.privacy.sampling import People
from dpfedadamw.profiling import part, within
from dpfedadamw.spec import Spec
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.memory import return_idle


class ChargedRounds:
    """Follows a ledger that grows, and reads each of its lines once.

    Args:
        entries: Its lines, to which others are appended.
    """

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = entries
        self._read = 0
        self._attempts: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        # Steps of all rounds before one of them.
        self._before = (0, 0)
        # Steps that each attempt at a round was charged; every client of a round takes as many.
        self._charged: dict[tuple[int, int], int] = {}
        self._spent = 0

    def attempts(self, round_index: int) -> int:
        """How often a round was charged so far."""
        self._follow()
        return self._attempts.get(round_index, 0)

    def steps_before(self, round_index: int) -> int:
        """Local steps of all rounds before one; a round that was repeated counts once, as it ended.

        Raises:
            KeyError: If one of them is not over.
        """
        self._follow()
        known, steps = self._before
        if known > round_index:
            known, steps = 0, 0
        steps += sum(self._steps[index] for index in range(known, round_index))
        self._before = (round_index, steps)
        return steps

    def spent_steps(self) -> int:
        """Local steps charged so far, those of repeated rounds included."""
        self._follow()
        return self._spent

    def steps_charged_for(self, round_index: int) -> int | None:
        """Local steps that a round's last attempt was charged; None if it was not begun."""
        return self._charged.get((round_index, self.attempts(round_index)))

    def _follow(self) -> None:
        for place in range(self._read, len(self._entries)):
            entry = self._entries[place]
            if entry["kind"] == "spend":
                index = entry["round"]
                attempt = entry["attempt"]
                self._attempts[index] = max(self._attempts.get(index, 0), attempt)
                if "steps" in entry:
                    steps = int(entry["steps"])
                    self._spent += steps - self._charged.get((index, attempt), 0)
                    self._charged[index, attempt] = steps
            elif entry["kind"] == "round":
                index = entry["round"]
                if index in self._steps:
                    self._before = (0, 0)
                self._steps[index] = max(entry["steps"], default=0)
        self._read = len(self._entries)


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
        entry: What the ledger is to say of it once its state is on the disk.
        following: The serialised broadcast of the next round.
    """

    completed: int
    state: ServerState
    learning_rate: float
    traffic: tuple[int | None, int | None]
    seconds: float
    last: bool
    entry: Mapping[str, Any]
    following: bytes


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything that rounds need, wired once.

    Attributes:
        spec: The resolved spec.
        plan: The privacy plan; that of the first round where steps or noise adapt.
        worker: Runs clients in this process.
        server: The server's rule.
        round_schedule: Chooses steps and noise of each round; None where they are the plan's in
            all.
        clients: Every client's records.
        ledger: What was charged so far, and which rounds are over.
        charge: Pays for a round: when it returns, the spends are on the disk.
        elsewhere: Runs clients in other processes; None runs them in this one, by ``worker``.
    """

    spec: Spec
    plan: RunPlan
    worker: Worker
    server: ServerRule
    round_schedule: RoundSchedule | None
    clients: Sequence[ClientData]
    ledger: Ledger
    charge: Callable[[Sequence[Mapping[str, Any]]], None]
    elsewhere: ClientRunner | None = None

    @property
    def runner(self) -> ClientRunner:
        """Runs the clients of a round."""
        return self.elsewhere or Inline(self.worker, self.clients)

    @property
    def unit(self) -> Unprotected:
        """What the rounds protect."""
        return self.worker.unit

    def run(
        self,
        state: ServerState,
        first_round: int,
        on_client: Callable[[int, int], None] | None = None,
        message: bytes | None = None,
    ) -> Iterator[RoundResult]:
        """Run all rounds from ``first_round`` on, one at a time as the caller asks.

        Before it asks for the next, the caller sees to it that the ledger says the last is over.
        There may be fewer than the spec's where they share a limit on steps, or on ε, and where
        training diverges: no round is charged for a model that is no numbers any more.

        Args:
            state: The server's state before that round.
            first_round: t of the first round to run, from 0.
            on_client: Called with (clients done, clients of the round) after each client.
            message: The serialised broadcast of the first of them, where the state lies in it.
        """
        for index in range(first_round, self.spec.federation.rounds):
            if has_diverged(state):
                return
            plan = self._plan_of_round(state, index) if self._allows(index) else None
            if plan is None:
                return
            result = self._round(plan, state, message, index, on_client)
            state, message = result.state, result.following
            yield result

    @cached_property
    def _charged_rounds(self) -> ChargedRounds:
        return ChargedRounds(self.ledger.entries)

    @cached_property
    def _notes_frozen_weights(self) -> bool:
        """Whether each round does: a run of an earlier version goes on as it began."""
        return any("frozen_sha256" in header for header in self.ledger.of_kind("header"))

    @cached_property
    def _watch(self) -> Watch | None:
        return self.plan.watch

    def _allows(self, index: int) -> bool:
        """Whether a round keeps to the run's limit on ε, for any clients drawn."""
        return self._watch is None or self._watch.allows(self.ledger.entries, index)

    def _plan_of_round(self, state: ServerState, index: int) -> RunPlan | None:
        """The plan under the steps and noise of one round; None when nothing is left.

        What the rule chooses is checked against what the claim covers before anything is charged.
        """
        if self.round_schedule is None:
            return self.plan
        inputs = self._inputs(index)
        scheduled = self.round_schedule.next_round(state, inputs)
        if scheduled.local_steps == 0:
            return None
        noise = self.plan.noise_multiplier * scheduled.noise_factor
        self.plan.spending_bound.check(index, scheduled.local_steps, noise, inputs.spent_steps)
        return replace(self.plan, local_steps=scheduled.local_steps, noise_multiplier=noise)

    def _inputs(self, index: int) -> ScheduleInputs:
        """The public numbers that a schedule may go by."""
        plan = self.plan
        before = self._charged_rounds.steps_charged_for(index - 1)
        return ScheduleInputs(
            round_index=index,
            rounds=plan.rounds,
            local_steps=plan.local_steps,
            previous_steps=plan.local_steps if before is None else before,
            spent_steps=self._charged_rounds.spent_steps(),
            step_limit=plan.adaptation.step_limit if plan.adaptation else None,
            clipping_norm=plan.clipping_norm,
            # Equal for all: B is the same fixed number everywhere.
            noise_variance=plan.noise_variance(0),
        )

    def _last(self, index: int) -> bool:
        """Whether no round follows this one."""
        limit = self.plan.adaptation.step_limit if self.plan.adaptation else None
        spent = limit is not None and self._charged_rounds.spent_steps() >= limit
        return spent or index + 1 == self.plan.rounds or not self._allows(index + 1)

    def _round(
        self,
        plan: RunPlan,
        state: ServerState,
        message: bytes | None,
        index: int,
        on_client: Callable[[int, int], None] | None,
    ) -> RoundResult:
        started = time.perf_counter()
        current = self._begin(plan, state, message, index)
        self.charge(self.unit.charges(current))
        current = replace(current, history=self.ledger.history)
        answers: list[Answer] = []
        dropped: list[int] = []
        memories = dict(state.memories)
        parts = [
            Participation(
                current=current, place=place, client=client, memory=memories.get(client, {})
            )
            for place, client in enumerate(current.chosen)
        ]
        # One by one: `zip` would hold an answer until it has the next one.
        given = self.runner.answers(parts)
        for own in parts:
            answer = next(given)
            if answer is None:
                dropped.append(own.client)
                continue
            if kept := answer.result.upload.memory:
                memories[own.client] = kept
            self.unit.took_part(own, answer)
            # Messages stay: what is kept of them is drawn once all are in.
            answers.append(replace(answer, result=answer.result.without_vectors()))
            # Else the last client's vectors would stay while the next one works.
            del answer
            if on_client is not None:
                on_client(own.place + 1, len(current.chosen))
        current = replace(
            current,
            answers=tuple(answers),
            chosen=tuple(client for client in current.chosen if client not in dropped),
            dropped=tuple(dropped),
        )
        # What clients computed in lies idle until the next round; messages are put together now.
        return_idle(len(state.parameters))
        uploads = self.unit.receive(current)
        # Where clients are drawn independently a round may have none: it changes nothing.
        if uploads:
            with within("server"):
                combined = self.server.combine(state, uploads, current.broadcast)
            state = replace(combined, memories=memories)
        last = self._last(index) or has_diverged(state)
        if last:
            state = replace(state, parameters=published(plan, state))
        state, following = as_sent(state)
        # The module does not keep the message before.
        self.worker.flat.let_go(state.parameters)
        current = replace(
            current, uploads=tuple(uploads), state=state, following=following, last=last
        )
        entry = self._close(current)
        return RoundResult(
            completed=index + 1,
            state=state,
            learning_rate=current.broadcast.learning_rate,
            traffic=self.unit.traffic(current),
            seconds=time.perf_counter() - started,
            last=last,
            entry=entry,
            following=following,
        )

    def _begin(self, plan: RunPlan, state: ServerState, message: bytes | None, index: int) -> Round:
        if plan.private and not plan.noise_multiplier > 0.0:
            # Specs and schedules cannot ask for it; the auditor's probe works with such plans.
            raise PrivacyError(f"round {index}: the plan of a private run has no noise")
        chosen, attempt = self._choose(index)
        return Round(
            index=index,
            attempt=attempt,
            plan=plan,
            chosen=tuple(chosen),
            broadcast=self._broadcast(plan, state, index),
            message=pack(state.parameters, state.state) if message is None else message,
            state=state,
        )

    def _broadcast(self, plan: RunPlan, state: ServerState, index: int) -> Broadcast:
        algorithm = self.spec.algorithm
        rate = algorithm.learning_rate
        if algorithm.schedule == "cosine":
            rate = cosine_learning_rate(rate, index, self.spec.federation.rounds)
        return Broadcast(
            parameters=state.parameters,
            state=state.state,
            learning_rate=rate,
            local_steps=plan.local_steps,
            earlier_steps=self._earlier_steps(index),
        )

    def _earlier_steps(self, index: int) -> int:
        """Local steps that moved the server's state so far; a round that was repeated counts once.

        An empty round that releases nothing adds no step to any moving average: counting it would
        make the bias correction of the second moment wrong.
        """
        if self.unit.moved_by_empty_rounds:
            return index * self.plan.local_steps
        return self._charged_rounds.steps_before(index)

    @part("sampling")
    def _choose(self, index: int) -> tuple[list[int], int]:
        """The clients of a round, and how often the round has been begun, this time included."""
        attempt = 1 + self._charged_rounds.attempts(index)
        # Who takes part is drawn before it can be charged, under what was charged before.
        history = self.ledger.history
        stream = self.worker.randomness.stream("clients", index, SERVER, attempt, history)
        drawn = self.plan.cohort.draw(len(self.clients), stream)
        return [int(client) for client in drawn], attempt

    def _close(self, current: Round) -> dict[str, Any]:
        """Write the round's evidence; what the ledger is to say of it."""
        noted: dict[str, object] = {**self.unit.close(current)}
        if self.round_schedule is not None:
            noted["released"] = dict(self.round_schedule.readings(current.state))
        if self._notes_frozen_weights:
            noted["frozen_sha256"] = frozen_digest(self.worker.flat.module)
        results = [answer.result for answer in current.answers]
        return {
            "round": current.index,
            "clients": list(current.chosen),
            **({"dropped": list(current.dropped)} if current.dropped else {}),
            "steps": [result.steps for result in results],
            "queries": [result.queries for result in results],
            # Ties the published weights to the last round, whatever else of it is kept: what would
            # be published if no round came after, as where the next is cut off and cannot be paid.
            "parameters_sha256": vector_digest(published(current.plan, current.state)).hex(),
            **noted,
        }


def has_diverged(state: ServerState) -> bool:
    """Whether what the server sends next holds a number that is not finite.

    It is a function of what was released, as the model itself is, so that anybody may know it.
    """
    sent = (state.parameters, *state.state.values())
    # The extremes need no further vector, and are not finite either where one number is not.
    extremes = [torch.aminmax(one) for one in sent if one.is_floating_point() and one.numel()]
    return not all(bool(torch.isfinite(end)) for pair in extremes for end in pair)


def divergence(state: ServerState, completed: int) -> dict[str, Any]:
    """What a claim says of a run that diverged: ``diverged``; else nothing.

    Args:
        state: The server's, after the last round.
        completed: Rounds completed.
    """
    return {"diverged": {"rounds": completed}} if has_diverged(state) else {}


def as_sent(state: ServerState) -> tuple[ServerState, bytes]:
    """The state as it lies in the broadcast that sends it, and that broadcast, serialised.

    So the model is not held twice, in the server's state and in the message.
    """
    message = pack(state.parameters, state.state)
    parameters, tensors = view(message, state.parameters)
    return replace(state, parameters=parameters, state=tensors), message


def published(plan: RunPlan, state: ServerState) -> torch.Tensor:
    """The model [d] as it is published after the last round: on the grid of weights."""
    model, grid = released(state), plan.unit.grid
    return model if grid is None else on_grid(model, grid.weights)


@part("data")
def client_data(
    records: Records,
    owner: NDArray[np.int64],
    clients: int,
    device: torch.device,
    people: People | None = None,
) -> list[ClientData]:
    """Divide n training records by their owners [n] among the clients; none is copied.

    Args:
        records: The records.
        owner: The client of each, [n].
        clients: How many there are.
        device: Where tensors live.
        people: Whom they are about, where people are protected; each client has numbers of its own.
    """
    inputs, order = records.inputs.to(device), np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    return [
        ClientData(
            inputs.select(rows),
            torch.from_numpy(records.labels[rows]).to(device),
            None if people is None else people.among(rows),
        )
        for rows in np.split(order, ends[:-1])
    ]
