"""Rounds that protect whole clients: a Poisson cohort, clipped updates, noise on their sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from dpfedadamw.algorithms.base import ServerState, Upload
from dpfedadamw.evidence.client_level import ClientLevelEvidence, UpdateRelease
from dpfedadamw.evidence.exchanges import released_digest
from dpfedadamw.federation.client import Answer, public_coordinates
from dpfedadamw.federation.messages import pack, pack_update, unpack_update
from dpfedadamw.federation.rounds import Federation
from dpfedadamw.privacy.updates import release_mean, spread, sum_of_updates


@dataclass(frozen=True)
class ClientLevelFederation(Federation):
    """A federation whose server releases one noised mean update a round, and nothing else.

    Every client takes part independently, so a round may be empty: it is charged and releases
    noise all the same, or else its silence would tell.

    Attributes:
        update_evidence: Written after each round.
    """

    update_evidence: ClientLevelEvidence

    def _earlier_steps(self, index: int) -> int:
        # A round without clients moves the server too: it releases noise.
        return index * self.worker.plan.local_steps

    def _traffic(self, message: bytes, answers: Sequence[Answer]) -> tuple[int | None, int | None]:
        # How many took part is drawn and not noised: real traffic would publish it, and void the
        # claim towards a third party. What is published is the traffic of S clients.
        del answers
        plan, like = self.worker.plan, self.worker.flat.vector
        sparse = plan.sparsification
        silent = like.new_zeros(sparse.released if sparse is not None else len(like))
        upload = len(pack_update(silent, plan.private_coordinates))
        expected = plan.clients_per_round
        return upload * expected, len(message) * expected

    def _charge(self, index: int, attempt: int, chosen: Sequence[int]) -> None:
        plan = self.worker.plan
        shared = plan.noise_added_by == "clients" and chosen
        self.ledger.append(
            "spend",
            {
                "round": index,
                "attempt": attempt,
                "unit": "client",
                "sampling": "poisson",
                "sampling_rate": plan.participation,
                "expected_clients": plan.clients_per_round,
                "clipping_norm": plan.clipping_norm,
                "noise_multiplier": plan.noise_multiplier,
                "noise_added_by": plan.noise_added_by,
                "clients": list(chosen),
                "upload_noise_multiplier": (
                    plan.noise_multiplier / len(chosen) ** 0.5 if shared else None
                ),
            },
        )

    def _exchanged(
        self,
        index: int,
        message: bytes,
        answers: Sequence[Answer],
        uploads: Sequence[Upload],
        state: ServerState,
    ) -> Mapping[str, str]:
        # Digests of what is public: single uploads are not.
        del answers
        released = uploads[0].update
        after = pack(state.parameters, state.state)
        self.update_evidence.uploads.release(index, (message, after), released)
        return {
            "broadcast_sha256": sha256(message).hexdigest(),
            "released_sha256": released_digest(released).hex(),
        }

    def _receive(
        self,
        state: ServerState,
        index: int,
        attempt: int,
        chosen: Sequence[int],
        answers: Sequence[Answer],
    ) -> list[Upload]:
        plan = self.worker.plan
        whole, device = len(state.parameters), state.parameters.device
        kept = public_coordinates(plan.sparsification, index, state.state, device)
        # What is off public coordinates is neither sent nor noised: there the release is 0.
        size = whole if kept is None else len(kept)
        uploads = [unpack_update(answer.message, size, state.parameters) for answer in answers]
        clipped = [answer.clipped for answer in answers if answer.clipped is not None]
        # Where the clients add the noise, an empty round still needs some: the server's.
        by_server = plan.noise_added_by == "server" or not uploads
        noise = self.worker.randomness.stream("release noise", index, -1, attempt)
        noisy, mean = release_mean(
            sum_of_updates(uploads, size, device),
            plan.update_noise_standard_deviation,
            plan.clients_per_round,
            noise if by_server else None,
            plan.gaussian_sampler,
        )
        released = spread(mean.to(state.parameters.dtype), kept, whole)
        if self.worker.watch is not None:
            self.worker.watch.release(index, released, chosen, clipped)
        self.update_evidence.write_round(
            index,
            attempt,
            chosen,
            UpdateRelease(
                raw_norms=[one.raw_norm for one in clipped],
                clipped_norms=[one.clipped_norm for one in clipped],
                clean_sum=sum_of_updates([one.update for one in clipped], size, device),
                noisy_sum=noisy,
                upload_noise=(
                    []
                    if by_server
                    else [
                        upload.double() - one.update.double()
                        for upload, one in zip(uploads, clipped, strict=True)
                    ]
                ),
                divisor=float(plan.clients_per_round),
                released=released,
                kept=kept,
                kept_by_clients=[answer.kept for answer in answers if answer.kept is not None],
                further=[name for answer in answers for name in answer.further],
            ),
        )
        return [Upload(released)]
