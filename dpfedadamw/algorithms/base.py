"""The protocols between algorithms and the rest: oracle, observer, local and server rule, schedule.

A local rule turns a broadcast into an upload by asking an oracle for gradients. The oracle is all
it ever sees of the data, and each question is counted because it is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedadamw.vectors.sparsification import Sparsification

# Names under which rules that share a tensor find it in a broadcast or an upload.
FIRST_MOMENT = "first_moment"
SECOND_MOMENT = "second_moment"
GLOBAL_UPDATE = "global_update"
AVERAGED_MODEL = "averaged_model"


class GradientOracle(Protocol):
    """Answers with noised mean gradients, and counts how often it was asked.

    Attributes:
        noise_variance: Variance Φ = (σC/B)² that the noise adds to each coordinate of a gradient;
            0 without privacy. A public constant.
    """

    noise_variance: float

    def next_batch(self) -> None:
        """Draw the records of the next local step."""

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at the flat parameters [d]."""
        ...


@dataclass(frozen=True)
class SecondMoment:
    """What a rule shows of its moments after the last local step, for the evidence.

    Attributes:
        moment: v as it will be uploaded or dropped, [d].
        corrected: v̂, after bias correction and before anything is subtracted, [d].
        subtracted: The noise variance that was subtracted (0 where debiasing is off).
        steps: EMA steps τ behind v, as the rule counted them.
        floored: True at coordinates whose value was raised to the floor, bool [d].
        first: m as it will be uploaded or dropped, [d].
    """

    moment: Tensor
    corrected: Tensor
    subtracted: float
    steps: int
    floored: Tensor
    first: Tensor


class Observer(Protocol):
    """Writes down for the auditor what cannot be seen from outside."""

    def second_moment(self, look: Callable[[], SecondMoment]) -> None:
        """Take note of the second moment after the last local step.

        Args:
            look: Computes what there is to see; who writes nothing down need not call it.
        """


@dataclass(frozen=True)
class Broadcast:
    """What a client starts a round from: what the server sends, and what it kept itself.

    Attributes:
        parameters: θ, flat [d].
        state: The server rule's tensors for the clients, by name.
        learning_rate: η of this round.
        local_steps: K, of this round.
        earlier_steps: Local steps of all earlier rounds; K·t where every round takes K.
        memory: What this client kept when it last took part, by name; empty before. It does not
            travel.
    """

    parameters: Tensor
    state: Mapping[str, Tensor]
    learning_rate: float
    local_steps: int
    earlier_steps: int
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """What a client sends back: functions of noised gradients only.

    Attributes:
        update: θ after the local steps minus θ before them, flat [d].
        state: Further tensors by name.
        memory: What the client keeps for the next round it takes part in, by name. It does not
            travel, but must be a function of what the client has sent and received: checkpoints
            hold it.
    """

    update: Tensor
    state: Mapping[str, Tensor] = field(default_factory=dict)
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """The server's model and all that is carried from round to round.

    Attributes:
        parameters: θ, flat [d].
        state: Tensors of the server's rule by name; all of it is broadcast.
        memories: What each client keeps for itself, by client and name. The federation holds it so
            that a checkpoint is whole; no server rule reads it and none of it is broadcast.
    """

    parameters: Tensor
    state: Mapping[str, Tensor]
    memories: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)


class LocalRule(Protocol):
    """The local steps of one client in one round."""

    @property
    def queries_per_step(self) -> int:
        """Gradients that one step asks for on one batch."""
        ...

    def run(self, broadcast: Broadcast, oracle: GradientOracle, observer: Observer) -> Upload:
        """Take ``broadcast.local_steps`` local steps.

        What is broadcast is read where it lies, by one client after another: a rule must not write
        into it, and one that does ends the run.
        """
        ...


def released(state: ServerState) -> Tensor:
    """The model that is evaluated and published, [d]: the average where one is kept, or else θ."""
    return state.state.get(AVERAGED_MODEL, state.parameters)


class ServerRule(Protocol):
    """How the server starts and how it combines uploads."""

    def start(self, parameters: Tensor) -> ServerState:
        """The state before the first round, from initial parameters [d]."""
        ...

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """The state after a round, from the uploads of its clients.

        What it is given is read from messages that others read too: it must not write into it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ScheduleInputs:
    """The public numbers that a schedule may go by; none is read from a record.

    Attributes:
        round_index: t, from 0.
        rounds: R_s, the most rounds there can be.
        local_steps: K, of a first round.
        previous_steps: Local steps of the round before; K in the first.
        spent_steps: Steps charged so far, those of repeated rounds included.
        step_limit: R_c, the most steps that all rounds together may take; None where there is no
            such limit.
        clipping_norm: C.
        noise_variance: Φ, of each coordinate of a noised gradient.
    """

    round_index: int
    rounds: int
    local_steps: int
    previous_steps: int
    spent_steps: int
    step_limit: int | None
    clipping_norm: float
    noise_variance: float


@dataclass(frozen=True)
class ScheduledRound:
    """What a schedule decides for one round.

    Attributes:
        local_steps: Steps of each client; 0 ends the run, because nothing is left to spend.
        noise_factor: The round's noise multiplier over the first round's, in (0, 1].
    """

    local_steps: int
    noise_factor: float = 1.0


class RoundSchedule(Protocol):
    """Chooses steps and noise of the next round from released values and public numbers.

    The plan checks every choice against what the claim covers before the round is charged.
    """

    def next_round(self, state: ServerState, inputs: ScheduleInputs) -> ScheduledRound:
        """The next round's, from the server's state before it."""
        ...

    def readings(self, state: ServerState) -> Mapping[str, float]:
        """The part of a round's state that later rounds use, for the ledger: all was released."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """A local rule, the server rule that belongs to it, and what goes with them.

    Attributes:
        local: What a client does in a round.
        server: How uploads are combined.
        sparsification: Which coordinates of an update survive; None for all.
        round_schedule: Chooses steps and noise of each round; None where they are the spec's in
            all.
    """

    local: LocalRule
    server: ServerRule
    sparsification: Sparsification | None = None
    round_schedule: RoundSchedule | None = None


def cosine_learning_rate(initial: float, round_index: int, rounds: int) -> float:
    """Cosine decay over rounds, from η in round 0 to 0 after the last (Loshchilov 2017)."""
    return initial * 0.5 * (1.0 + math.cos(math.pi * round_index / rounds))
