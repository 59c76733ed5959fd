"""One client's part of a round: read the broadcast, take the local steps, answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, GradientOracle, LocalRule, Upload
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.evidence.record_level import ClientEvidence, Unobserved
from dpfedadamw.federation.messages import pack, pack_update, unpack
from dpfedadamw.federation.recording import RecordingOracle
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.clipping.engines import ClippedSumEngine
from dpfedadamw.privacy.noise.randomness import RandomSource, Stream
from dpfedadamw.privacy.oracle import Charge, PrivateOracle
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.updates import ClippedUpdate
from dpfedadamw.vectors.flat import FlatParameters
from dpfedadamw.vectors.sparsification import KEPT, Sparsification


@dataclass(frozen=True)
class ClientData:
    """One client's records.

    Attributes:
        inputs: R_i records, in memory or on disk.
        labels: int64 [R_i].
    """

    inputs: Tensor | StoredRecords
    labels: Tensor

    def seen_with(self, views: Stream) -> Tensor | StoredRecords:
        """The records, whose random views are drawn from a stream where there are any."""
        if isinstance(self.inputs, StoredRecords):
            return replace(self.inputs, stream=views)
        return self.inputs


@dataclass(frozen=True)
class Answer:
    """What one client's round came to.

    Attributes:
        message: The serialised upload, all that the server gets.
        memory: What the client keeps for the next round it takes part in.
        steps: Local steps taken.
        queries: Gradient queries made.
        clipped: The clipped update before the client's noise, for the evidence of a client-level
            run.
        kept: The public coordinates that the client kept, int64 [k]; None where it kept all, or
            chose them itself.
        further: Names of what was uploaded or kept besides the update.
    """

    message: bytes
    memory: Mapping[str, Tensor]
    steps: int
    queries: int
    clipped: ClippedUpdate | None = None
    kept: Tensor | None = None
    further: tuple[str, ...] = ()


def public_coordinates(
    sparsification: Sparsification | None,
    round_index: int,
    state: Mapping[str, Tensor],
    device: torch.device,
) -> Tensor | None:
    """The coordinates of a round's release, int64 [k]; None where all coordinates are released.

    Args:
        sparsification: The plan's.
        round_index: t, from 0.
        state: What the server broadcasts beside the parameters.
        device: Where the coordinates are needed.
    """
    if sparsification is None or not sparsification.public:
        return None
    if KEPT in state:
        return state[KEPT].to(device).long()
    return torch.from_numpy(sparsification.draw(round_index)).to(device)


class Watch(Protocol):
    """Looks at what an audit run releases (`federation.canaries`)."""

    def oracle(self, oracle: GradientOracle, client: int, round_index: int) -> GradientOracle:
        """An oracle whose answers are looked at."""
        ...

    def update(self, client: int, update: Tensor) -> Tensor:
        """The update [d] of a client, or what is planted in its place, before it is clipped."""
        ...

    def release(
        self,
        round_index: int,
        released: Tensor,
        clients: Sequence[int],
        clipped: Sequence[ClippedUpdate],
    ) -> None:
        """Look at a round's noised mean update [d], of clients whose clipped updates are known."""
        ...


@dataclass(frozen=True)
class Worker:
    """What every client of this process shares: the model is rebuilt for none of them.

    Attributes:
        plan: The privacy plan.
        rule: The local rule.
        engine: Computes clipped sums for the module in ``flat``.
        flat: The module, overwritten at every query.
        randomness: Gives each client and round its own streams.
        watch: Looks at every noised gradient, in an audit run.
    """

    plan: PrivacyPlan
    rule: LocalRule
    engine: ClippedSumEngine
    flat: FlatParameters
    randomness: RandomSource
    watch: Watch | None = None

    def take_part(
        self,
        client: int,
        data: ClientData,
        message: bytes,
        broadcast: Broadcast,
        round_index: int,
        attempt: int,
        evidence: ClientEvidence | None,
        participants: int,
    ) -> Answer:
        """Run one client's local steps.

        Args:
            client: Its index.
            data: Its records.
            message: The serialised broadcast.
            broadcast: The round's plain numbers and the client's own memory; what the server sends
                is taken from the message.
            round_index: t, from 0.
            attempt: 1, or more after a resume: a repeated round draws fresh noise.
            evidence: Where to note what happened; None where gradients are not noised.
            participants: m, clients of this round.
        """
        parameters, state = unpack(message, self.flat.vector)
        oracle = PrivateOracle(
            self.plan,
            client,
            Charge(broadcast.local_steps, self.rule.queries_per_step),
            self.engine,
            self.flat,
            data.seen_with(self.randomness.stream("views", round_index, client, attempt)),
            data.labels,
            self.randomness.stream("batches", round_index, client, attempt),
            self.randomness.stream("noise", round_index, client, attempt),
            evidence,
        )
        asked: GradientOracle = oracle
        if self.watch is not None:
            asked = self.watch.oracle(asked, client, round_index)
        if evidence is not None:
            asked = RecordingOracle(asked, evidence.exchange)
        upload: Upload = self.rule.run(
            replace(broadcast, parameters=parameters, state=state),
            asked,
            evidence if evidence is not None else Unobserved(),
        )
        spent = (upload.memory, oracle.steps, oracle.queries)
        if self.plan.unit != "client":
            return Answer(pack(upload.update, upload.state), *spent)
        kept = public_coordinates(
            self.plan.sparsification, round_index, state, upload.update.device
        )
        whole = upload.update
        if self.watch is not None:
            whole = self.watch.update(client, whole)
        clipped = updates.contribute(whole, self.plan.clipping_norm, self.plan.sparsification, kept)
        update = clipped.update
        if self.plan.noise_added_by == "clients":
            deviation = self.plan.update_noise_standard_deviation
            noise = self.randomness.stream("upload noise", round_index, client, attempt)
            noised = updates.noise_upload(
                clipped, deviation, participants, noise, self.plan.gaussian_sampler
            )
            update = noised.to(update.dtype)
        message = pack_update(update, self.plan.private_coordinates)
        return Answer(message, *spent, clipped, kept, (*upload.state, *upload.memory))
