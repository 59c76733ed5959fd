"""The rounds of a run that protects whole clients: clipped updates, noise on their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.clipping.engines import ClippedSumEngine
from dpfedadamw.evidence.client_level import ClientLevelEvidence, UpdateRelease
from dpfedadamw.evidence.commitments import digest_of_commitments
from dpfedadamw.evidence.exchanges import vector_digest
from dpfedadamw.evidence.records import Witness
from dpfedadamw.evidence.round_files import EvidenceSetup
from dpfedadamw.federation.messages import pack, pack_update, unpack_update
from dpfedadamw.federation.participation import Answer, LocalResult, Participation, Round
from dpfedadamw.federation.unprotected import UnitSetup, Unprotected
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.charges import charge_of_updates
from dpfedadamw.privacy.grid import on_grid
from dpfedadamw.privacy.noise.key_tree import SERVER
from dpfedadamw.privacy.noise.randomness import RandomSource, Stream
from dpfedadamw.privacy.updates import ClippedUpdate
from dpfedadamw.profiling import part
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.sparsification import KEPT, Sparsification


class UpdateObserver(Protocol):
    """Plants updates in an audit run, and notes what its releases say of them."""

    def planted(self, client: int, update: Tensor, kept: Tensor | None) -> Tensor:
        """The update [d] of a client, or what is planted in its place, before it is cut.

        The round's public coordinates are `kept`, int64 [k]; None where they are not public.
        """
        ...

    def released(
        self,
        round_index: int,
        released: Tensor,
        clients: Sequence[int],
        clipped: Sequence[ClippedUpdate],
        kept: Tensor | None,
    ) -> None:
        """Note a round's noised mean update [d], of clients whose clipped updates are known."""
        ...


@dataclass(frozen=True, kw_only=True)
class ClientLevel(Unprotected):
    """Clips whole updates and releases one noised mean update a round, and nothing else.

    Every client takes part independently, so a round may be empty: it is charged and releases
    noise all the same, or else its silence would tell.

    Attributes:
        evidence: Written in each round.
        randomness: Gives the server and the clients their noise.
        observer: Looks after the canaries of an audit run.
    """

    evidence: ClientLevelEvidence
    randomness: RandomSource
    observer: UpdateObserver | None = None
    moved_by_empty_rounds: ClassVar[bool] = True

    @classmethod
    def open(cls, setup: UnitSetup) -> Self:
        """The unit of a run whose directory is there, ready for its next round."""
        plan, blocks = setup.experiment.plan, setup.blocks
        sparse = plan.sparsification
        evidence_setup = EvidenceSetup(
            directory=setup.directory,
            blocks=blocks,
            unit=plan.unit.name,
            clipping_norm=plan.clipping_norm,
            rounds=plan.rounds,
            per_round=1,
            queries=0,
            released=sparse.released if sparse is not None else blocks.parameters,
            beta2=None,
            commitments=setup.commitments,
        )
        evidence = ClientLevelEvidence(evidence_setup)
        evidence.restore(setup.completed)
        return cls(evidence=evidence, randomness=setup.randomness)

    def drawing_from(self, randomness: RandomSource) -> Self:
        """The same with its noise from another source."""
        return replace(self, randomness=randomness)

    @staticmethod
    def explain(_engine: ClippedSumEngine, plan: RunPlan) -> str:
        """How updates are clipped, one line for the run's summary."""
        if sparse := plan.sparsification:
            return (
                f"updates cut to {sparse.kept} of {sparse.size} coordinates ({sparse.kind}), then "
                "each clipped as one vector; gradients are not clipped"
            )
        return (
            "whole updates, each clipped over all parameters as one vector; gradients are not "
            "clipped"
        )

    @staticmethod
    def charges(current: Round) -> list[dict[str, object]]:
        """One line for the round."""
        return [charge_of_updates(current.plan, current.index, current.attempt, current.chosen)]

    def answer(self, part: Participation, result: LocalResult) -> Answer:
        """Clip the update, add the client's share of the noise where clients add it, pack it."""
        current = part.current
        plan, whole = current.plan, result.upload.update
        kept = public_coordinates(plan.sparsification, current.index, result.state, whole.device)
        if self.observer is not None:
            whole = self.observer.planted(part.client, whole, kept)
        clipped = updates.contribute(whole, plan.clipping_norm, plan.sparsification, kept)
        update = clipped.update
        if plan.noise_added_by == "clients":
            noised = updates.noise_upload(
                clipped,
                plan.update_noise_standard_deviation,
                len(current.chosen),
                current.stream(self.randomness, "upload noise", part.client),
                plan.gaussian_sampler,
            )
            # The clipped update itself, which a trusted server noises, stays as it is: rounded up,
            # it would be longer than C.
            assert plan.unit.grid is not None
            update = on_grid(noised.to(update.dtype), plan.unit.grid.update)
        message = pack_update(update, plan.private_coordinates)
        commitment = self.evidence.commit(clipped.update)
        return Answer(
            message=message, result=result, clipped=clipped, kept=kept, commitment=commitment
        )

    def witness(self) -> Witness:
        """What notes a record of each batch of one client's part."""
        return self.evidence.witness()

    @part("server")
    def receive(self, current: Round) -> list[Upload]:
        """The noised mean update, as the one upload that the server rule sees."""
        noise = current.stream(self.randomness, "release noise", SERVER)
        release = release_mean_update(current, noise)
        if self.observer is not None:
            clipped = [one.clipped for one in current.answers if one.clipped is not None]
            self.observer.released(
                current.index, release.released, current.chosen, clipped, release.kept
            )
        rows = [answer.result.rows for answer in current.answers]
        seen = [answer.result.seen for answer in current.answers]
        self.evidence.write_round(
            current.index, current.attempt, current.chosen, release, rows, seen
        )
        return [Upload(release.released)]

    @part("evidence")
    def close(self, current: Round) -> Mapping[str, object]:
        """Write the broadcasts before and after; digests of what is public, no single upload's."""
        (upload,) = current.uploads
        messages, noted = (current.message, current.following), dict[str, object]()
        if self.evidence.servers is None:
            self.evidence.uploads.release(current.index, messages, upload.update)
        else:
            noted = self.evidence.servers.combined(
                current.index, messages, [pack(upload.update, {})], last=current.last
            )
        return {
            "broadcast_sha256": sha256(current.message).hexdigest(),
            "released_sha256": vector_digest(upload.update).hex(),
            "participations_sha256": digest_of_commitments(
                [answer.commitment for answer in current.answers]
            ),
            **noted,
        }

    @staticmethod
    def traffic(current: Round) -> tuple[int | None, int | None]:
        """Bytes up and down of S clients.

        The number of participants is drawn and not noised: real traffic would publish it, and void
        the claim against a third party.
        """
        each = (len(_silent(current)), len(current.message))
        up, down = (size * current.plan.clients_per_round for size in each)
        return up, down

    @staticmethod
    def likeness(current: Round, _upload: Upload) -> bytes:
        """A serialised upload of the types and shapes that a round's clients send."""
        return _silent(current)


def _silent(current: Round) -> bytes:
    """An upload of zeros."""
    plan, like = current.plan, current.broadcast.parameters
    sparse = plan.sparsification
    silent = like.new_zeros(sparse.released if sparse is not None else len(like))
    return pack_update(silent, plan.private_coordinates)


@dataclass(frozen=True, kw_only=True)
class Combined:
    """The result of combining a round's uploads.

    Attributes:
        uploads: Each client's, float32 [d], or [k] at public coordinates.
        noisy: Their sum with noise, float64.
        released: The mean update as the server applies it, [d].
        kept: The public coordinates, int64 [k]; None for all.
        by_server: Whether noise was added here.
    """

    uploads: Sequence[Tensor]
    noisy: Tensor
    released: Tensor
    kept: Tensor | None
    by_server: bool


def combine_updates(current: Round, noise: Stream | None) -> Combined:
    """Read a round's uploads and release their noised mean (`privacy.updates.release`).

    Args:
        current: The round, with its answers.
        noise: The server's; None under a plan that has none.

    Raises:
        PrivacyError: If the noise of a plan that has some is left out.
    """
    plan, broadcast, answers = current.plan, current.broadcast, current.answers
    whole, device = len(broadcast.parameters), broadcast.parameters.device
    kept = public_coordinates(plan.sparsification, current.index, broadcast.state, device)
    # What is off public coordinates is neither sent nor noised: there the release is 0.
    zero = broadcast.parameters.new_zeros(whole if kept is None else len(kept))
    uploads = [unpack_update(answer.message, len(zero), zero) for answer in answers]
    made = updates.release(plan, uploads, zero, noise)
    return Combined(
        uploads=uploads,
        noisy=made.noisy,
        released=updates.spread(made.mean, kept, whole),
        kept=kept,
        by_server=made.by_server,
    )


def release_mean_update(current: Round, noise: Stream | None) -> UpdateRelease:
    """Combine a round's uploads, with what the evidence is to say of it.

    Args:
        current: The round, with its answers, as known from the clients' evidence.
        noise: As of `combine_updates`.

    Raises:
        PrivacyError: If the noise of a plan that has some is left out.
    """
    return evidence_of(current, combine_updates(current, noise))


def evidence_of(current: Round, combined: Combined) -> UpdateRelease:
    """A round's release with what lies behind it, from the clipped updates of all its clients."""
    plan, answers = current.plan, current.answers
    clipped = [answer.clipped for answer in answers if answer.clipped is not None]
    size, device = len(combined.noisy), combined.noisy.device
    shares = [
        upload.double() - one.update.double()
        for upload, one in zip(combined.uploads, clipped, strict=True)
        if not combined.by_server
    ]
    results = [answer.result.upload for answer in answers]
    return UpdateRelease(
        raw_norms=[one.raw_norm for one in clipped],
        clipped_norms=[one.clipped_norm for one in clipped],
        clean_sum=updates.sum_of_updates([one.update for one in clipped], size, device),
        noisy_sum=combined.noisy,
        upload_noise=shares,
        divisor=float(plan.clients_per_round),
        released=combined.released,
        kept=combined.kept,
        kept_by_clients=[answer.kept for answer in answers if answer.kept is not None],
        commitments=[answer.commitment for answer in answers],
        deviation=plan.update_noise_standard_deviation,
        further=[name for upload in results for name in (*upload.state, *upload.memory)],
    )


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
        state: What the server broadcasts in addition to the parameters.
        device: Where the coordinates are needed.
    """
    if sparsification is None or not sparsification.public:
        return None
    if KEPT in state:
        return state[KEPT].to(device).long()
    return torch.from_numpy(sparsification.draw(round_index)).to(device)
