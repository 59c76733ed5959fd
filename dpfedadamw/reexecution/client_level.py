"""Participations of whole clients, computed again: local training, clipping, the round's release.

Here the whole of a client's training is the clean value. Its second computation takes the same
steps of the same rule at parameters in float64, each gradient plainly summed one record at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from audit.recomputed import RecomputedParticipation, RecomputedRelease, RecomputedUpdate
from dpfedadamw.algorithms.base import Broadcast
from dpfedadamw.evidence.record_level import Unobserved
from dpfedadamw.federation.client import ClientLevel, public_coordinates
from dpfedadamw.federation.messages import unpack, unpack_update
from dpfedadamw.federation.participation import (
    Answer,
    ClientData,
    LocalResult,
    Participation,
    Round,
)
from dpfedadamw.federation.unprotected import Unprotected
from dpfedadamw.privacy.noise.key_tree import SERVER
from dpfedadamw.privacy.noise.noise import grid_spacing, normal_numbers
from dpfedadamw.privacy.updates import sum_of_updates
from dpfedadamw.reexecution.plain import KINKS, MOVES, PlainGradients, beside, update_bound
from dpfedadamw.reexecution.record_level import Second
from dpfedadamw.reexecution.unprotected import RecomputedUnprotected


@dataclass(frozen=True, kw_only=True)
class RecomputedClientLevel(RecomputedUnprotected, ClientLevel):
    """The unit as it was, which also keeps what the training of the clients came to."""

    unit: ClassVar[type[Unprotected]] = ClientLevel

    def answer(self, part: Participation, result: LocalResult) -> Answer:
        """As in the run, also where not all of the round's clients are computed.

        By how many there are, a client knows its share of the noise.
        """
        current = replace(part.current, chosen=tuple(self.kept.cohort))
        return super().answer(replace(part, current=current), result)

    def commitment(self, answer: Answer) -> bytes | None:
        """To the clipped update."""
        return answer.commitment

    def release(self, whole: bool) -> RecomputedRelease | None:
        """The round's release, with its noise drawn once more."""
        current = self.current
        plan, answers = current.plan, current.answers
        like = current.broadcast.parameters
        kept = _kept(current)
        size = len(like) if kept is None else len(kept)
        deviation = plan.update_noise_standard_deviation
        noise = released = total = None
        if plan.noise_added_by == "server" or not answers:
            stream = current.stream(self.kept.source, "release noise", SERVER)
            noise = normal_numbers(stream, size, plan.gaussian_sampler) * deviation
        if whole:
            sent = [unpack_update(answer.message, size, like) for answer in answers]
            total = sum_of_updates(sent, size, like.device).cpu().numpy()
            update = current.uploads[0].update
            released = _singles(update if kept is None else update[kept])
        return RecomputedRelease(
            released=released,
            total=total,
            noise=noise,
            spacing=grid_spacing(deviation),
            divisor=float(plan.clients_per_round),
            bits=plan.unit.grid.update if plan.unit.grid is not None else None,
        )

    def participation(
        self, client: int, data: ClientData, gradients: PlainGradients
    ) -> RecomputedParticipation:
        """A participation that was drawn, with its second computation."""
        part, answer = self.kept.parts[client], self.kept.answers[client]
        second = Second(part, data, self.kept.source)
        return second.participation(
            answer, update=lambda: self._update(part, answer, second, gradients)
        )

    def _update(
        self,
        part: Participation,
        answer: Answer,
        second: Second,
        gradients: PlainGradients,
    ) -> RecomputedUpdate:
        current, whole = part.current, answer.result.upload.update
        plan, clipped = current.plan, answer.clipped
        assert clipped is not None
        steps = list(second.inputs())
        divisor = plan.fixed_divisor(part.client)

        def trained(start: Broadcast) -> Tensor:
            oracle = _Plain(steps, divisor, gradients)
            return self.kept.experiment.algorithm.local.run(start, oracle, Unobserved()).update

        def moved() -> float:
            near = (
                trained(replace(begun, parameters=beside(begun.parameters, KINKS, number)))
                for number in range(MOVES)
            )
            return max(float(torch.linalg.vector_norm(one - wide)) for one in near)

        begun = _broadcast(part, whole, torch.float64)
        wide, narrow = trained(begun), trained(_broadcast(part, whole, torch.float32))
        kept = _kept(current)
        taken = whole
        if plan.sparsification is not None:
            scale = plan.sparsification.scale
            taken = whole[kept] * scale if kept is not None else whole
        noise, deviation = None, plan.update_noise_standard_deviation
        share = deviation / len(self.kept.cohort) ** 0.5
        if plan.noise_added_by == "clients":
            stream = current.stream(self.kept.source, "upload noise", part.client)
            noise = normal_numbers(stream, len(clipped.update), plan.gaussian_sampler) * share
        like = current.broadcast.parameters
        return RecomputedUpdate(
            update=_singles(whole),
            reference=wide.cpu().numpy(),
            bound=update_bound(narrow, wide),
            moved=moved,
            taken=_singles(taken),
            clipped=_singles(clipped.update),
            noise=noise,
            upload=_singles(unpack_update(answer.message, len(clipped.update), like)),
            spacing=grid_spacing(share),
            bits=plan.unit.grid.update if plan.unit.grid is not None else None,
        )


class _Plain:
    """An oracle that answers with plain means, in the type in which it is asked."""

    noise_variance = 0.0

    def __init__(
        self,
        steps: Sequence[tuple[Any, Tensor, Tensor]],
        divisor: float | None,
        gradients: PlainGradients,
    ) -> None:
        self._steps = iter(steps)
        self._divisor = divisor
        self._gradients = gradients
        self._batch: tuple[Tensor, Tensor] | None = None

    def next_batch(self) -> None:
        """Go on to the next step's records."""
        _, records, labels = next(self._steps)
        self._batch = (records, labels)

    def gradient(self, parameters: Tensor) -> Tensor:
        """The mean gradient [d] of the current batch at parameters [d]."""
        assert self._batch is not None
        records, labels = self._batch
        divisor = self._divisor if self._divisor is not None else float(max(1, len(labels)))
        return self._gradients.mean(parameters, records, labels, divisor)


def _broadcast(part: Participation, like: Tensor, kind: torch.dtype) -> Broadcast:
    """What the client read of the broadcast, in a floating-point type."""
    parameters, state = unpack(part.current.message, like)
    return replace(
        part.current.broadcast,
        parameters=parameters.to(kind),
        state={name: _in(value, kind) for name, value in state.items()},
        memory={name: _in(value, kind) for name, value in part.memory.items()},
    )


def _in(value: Tensor, kind: torch.dtype) -> Tensor:
    return value.to(kind) if value.is_floating_point() else value


def _kept(current: Round) -> Tensor | None:
    """The round's public coordinates."""
    like = current.broadcast.parameters
    return public_coordinates(
        current.plan.sparsification, current.index, current.broadcast.state, like.device
    )


def _singles(vector: Tensor) -> Any:
    return vector.detach().float().cpu().numpy()
