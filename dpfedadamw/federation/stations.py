"""Clients in a process of their own: what such a process is asked, and how it answers.

The process that leads a run charges, chooses and combines. A station has the spec, the data and the
model, and computes one participation after another from what it is asked and the round's broadcast
alone. Which station computes a participation, and what it computed before, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, ServerState
from dpfedadamw.federation.messages import view
from dpfedadamw.federation.participation import (
    Answer,
    ClientData,
    Participation,
    ParticipationWithData,
    Round,
)
from dpfedadamw.federation.worker import Worker
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.units.plan import RunPlan


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One client's part in a round, as far as it is neither broadcast nor the client's own.

    Attributes:
        round: t, from 0.
        attempt: 1, or more where the round was begun before.
        client: The client.
        place: Its place among the round's clients, from 0.
        cohort: How many clients the round has.
        local_steps: K, of this round.
        earlier_steps: Local steps of all earlier rounds.
        learning_rate: η of this round.
        noise_multiplier: σ of this round.
        history: The ledger's once the round is charged, 32 bytes.
    """

    round: int
    attempt: int
    client: int
    place: int
    cohort: int
    local_steps: int
    earlier_steps: int
    learning_rate: float
    noise_multiplier: float
    history: bytes

    @classmethod
    def of(cls, part: Participation) -> Asked:
        """What a client is asked to do for its part."""
        current, broadcast = part.current, part.current.broadcast
        return cls(
            round=current.index,
            attempt=current.attempt,
            client=part.client,
            place=part.place,
            cohort=len(current.chosen),
            local_steps=broadcast.local_steps,
            earlier_steps=broadcast.earlier_steps,
            learning_rate=broadcast.learning_rate,
            noise_multiplier=current.plan.noise_multiplier,
            history=current.history,
        )


@dataclass(frozen=True, kw_only=True)
class Station:
    """Computes participations of a run that another process leads.

    Attributes:
        plan: The plan of the run's first round.
        worker: Runs clients in this process.
        clients: The records of the clients that it may be asked for, by client.
        has_salt: Whether it notes under the run's salt, and so knows what the run will keep.
    """

    plan: RunPlan
    worker: Worker
    clients: Mapping[int, ClientData] | Sequence[ClientData]
    has_salt: bool = False

    def answer(
        self,
        asked: Asked,
        message: bytes,
        memory: Mapping[str, Tensor],
        randomness: RandomSource,
    ) -> Answer:
        """One client's part in a round.

        Args:
            asked: What it is asked to do.
            message: The round's broadcast.
            memory: What the client kept when it last took part.
            randomness: Gives its streams.
        """
        worker = self.worker.drawing_from(randomness, self.plan)
        part = ParticipationWithData(
            current=self.round_of(asked, message),
            place=asked.place,
            client=asked.client,
            data=self.clients[asked.client],
            memory=memory,
        )
        answer = worker.take_part(part)
        if self.has_salt:
            worker.unit.forget_unkept(part, answer)
        return answer

    def round_of(self, asked: Asked, message: bytes) -> Round:
        """The round as a client knows it.

        Args:
            asked: What it is asked to do.
            message: The round's broadcast.
        """
        parameters, state = view(message, self.worker.flat.vector)
        return Round(
            index=asked.round,
            attempt=asked.attempt,
            history=asked.history,
            plan=replace(
                self.plan,
                local_steps=asked.local_steps,
                noise_multiplier=asked.noise_multiplier,
            ),
            # Who else takes part is not for a client to know; how many do, it needs for its noise.
            chosen=(asked.client,) * asked.cohort,
            broadcast=Broadcast(
                parameters=parameters,
                state=state,
                learning_rate=asked.learning_rate,
                local_steps=asked.local_steps,
                earlier_steps=asked.earlier_steps,
            ),
            message=message,
            state=ServerState(parameters, state),
        )
