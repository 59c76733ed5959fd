"""A round, and one client's part in it, as values that are handed from place to place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, ServerState, Upload
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.record_level import ClientEvidence
from dpfedadamw.privacy.noise.key_tree import NO_HISTORY
from dpfedadamw.privacy.noise.randomness import RandomSource, Stream
from dpfedadamw.privacy.oracle import Inputs
from dpfedadamw.privacy.sampling import People
from dpfedadamw.units.plan import RunPlan

if TYPE_CHECKING:
    from dpfedadamw.privacy.updates import ClippedUpdate


@dataclass(frozen=True)
class ClientData:
    """One client's records.

    Attributes:
        inputs: R_i records, in memory or on disk.
        labels: int64 [R_i].
        people: Whom they are about, where people are protected.
    """

    inputs: Tensor | StoredRecords
    labels: Tensor
    people: People | None = None

    def seen_with(self, views: Stream) -> Inputs:
        """The records, whose random views are drawn from a stream where there are any."""
        if isinstance(self.inputs, StoredRecords):
            return replace(self.inputs, stream=views)
        return self.inputs


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """What a client's local steps came to, before anything of it is sent.

    Attributes:
        upload: What the local rule gives.
        state: The server's tensors, as the client read them from the broadcast.
        steps: Local steps taken.
        queries: Gradient queries made.
        evidence: What was noted of them; None where gradients are not noised.
        rows: Rows of the data set that its batches were drawn from; None where they are not told
            apart.
        seen: What a witness saw of its batches; empty without one.
    """

    upload: Upload
    state: Mapping[str, Tensor]
    steps: int
    queries: int
    evidence: ClientEvidence | None
    rows: NDArray[np.int64] | None = None
    seen: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def without_vectors(self) -> LocalResult:
        """The same without what is as long as the model, once it is sent and written down."""
        sent = self.upload
        bare = Upload(
            sent.update[:0].clone(),
            {name: value.new_empty(0) for name, value in sent.state.items()},
            {name: value.new_empty(0) for name, value in sent.memory.items()},
        )
        return replace(self, upload=bare, state={})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one client's round came to.

    Attributes:
        message: The serialised upload, all that the server gets.
        result: What the local steps came to; it stays with the client.
        clipped: The clipped update before the client's noise, for the evidence of a client-level
            run.
        kept: The public coordinates that the client kept, int64 [k]; None where it kept all, or
            chose them itself.
        commitment: To the clipped update, for the evidence of a client-level run.
    """

    message: bytes
    result: LocalResult
    clipped: ClippedUpdate | None = None
    kept: Tensor | None = None
    commitment: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Round:
    """One attempt at a round.

    Attributes:
        index: t, from 0.
        attempt: 1, or more after a resume: a repeated round draws fresh noise.
        history: The ledger's once the round is charged, 32 bytes: what its noise is bound to.
        plan: The privacy plan under this round's steps and noise.
        chosen: The clients that take part; once their answers are in, those that gave one.
        dropped: Clients that were asked and charged and gave none that can be used.
        broadcast: The round's plain numbers, and what the server sends.
        message: The serialised broadcast.
        answers: What the clients' parts came to, in the order of ``chosen``; empty before.
        uploads: What the server combines; empty before, and where nothing is to be combined.
        state: The server's state; what it is after the round, once uploads are combined.
        following: The serialised broadcast of the next round, made of that state; empty before.
        last: Whether no round follows; known once its uploads are in.
    """

    index: int
    attempt: int
    history: bytes = NO_HISTORY
    plan: RunPlan
    chosen: tuple[int, ...]
    broadcast: Broadcast
    message: bytes
    dropped: tuple[int, ...] = ()
    answers: tuple[Answer, ...] = ()
    uploads: tuple[Upload, ...] = ()
    state: ServerState
    following: bytes = b""
    last: bool = False

    def stream(self, randomness: RandomSource, purpose: str, client: int) -> Stream:
        """Open a stream of this attempt for a client, or for the server, which is client -1."""
        return randomness.stream(purpose, self.index, client, self.attempt, self.history)


@dataclass(frozen=True, kw_only=True)
class Participation:
    """One client's part in a round, before it begins, as the server knows it: without records.

    Attributes:
        current: The round.
        place: The client's place among the round's clients, from 0.
        client: Its index.
        memory: What it kept when it last took part, by name.
    """

    current: Round
    place: int
    client: int
    memory: Mapping[str, Tensor]

    def of(self, data: ClientData) -> ParticipationWithData:
        """The same where the client's records are."""
        return ParticipationWithData(
            current=self.current,
            place=self.place,
            client=self.client,
            memory=self.memory,
            data=data,
        )


@dataclass(frozen=True, kw_only=True)
class ParticipationWithData(Participation):
    """One client's part in a round where it is computed.

    Attributes:
        data: The client's records.
    """

    data: ClientData
