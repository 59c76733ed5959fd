"""What an upload must look like before anything is made of it.

An upload from another process may be anything: too long, of other tensors, shapes or types, or with
numbers that are not finite. One such upload spoils the mean of all, so it is refused before it is
combined. What an upload looks like is not declared anywhere: it is learnt from the run's own local
rule, which takes one step on gradients that are 0 and asks for no record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpfedadamw.algorithms.base import Upload
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.evidence.record_level import Unobserved
from dpfedadamw.federation.messages import view
from dpfedadamw.federation.participation import Round
from dpfedadamw.federation.worker import Worker
from dpfedadamw.vectors.packing import views


class ArrivalError(DpfedadamwError):
    """An upload is not what the run's algorithm sends."""


@dataclass(frozen=True)
class Likeness:
    """Types and shapes of a message's tensors.

    Attributes:
        tensors: Type and shape by name.
        size: Bytes of a message.
    """

    tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    size: int

    @classmethod
    def of(cls, message: bytes) -> Likeness:
        """That of a serialised upload."""
        found = {name: (one.dtype, tuple(one.shape)) for name, one in views(message).items()}
        return cls(found, len(message))

    def check(self, message: bytes, whose: str, what: str = "its upload") -> None:
        """Refuse a message that is of another likeness, or holds numbers that are not finite.

        Args:
            message: The upload, or a broadcast, serialised.
            whose: Who sent it, for the error.
            what: What it is, for the error.

        Raises:
            ArrivalError: With the first thing that is wrong.
        """
        found = views(message)
        odd = sorted(found.keys() ^ self.tensors.keys())
        if odd:
            verb = "has a further" if odd[0] in found else "lacks the"
            raise ArrivalError(f"{whose}: {what} {verb} tensor {odd[0][:64]!r}")
        for name, (kind, shape) in self.tensors.items():
            one = found[name]
            if (one.dtype, tuple(one.shape)) != (kind, shape):
                raise ArrivalError(
                    f"{whose}: tensor {name!r} of {what} is {_told(one.dtype, one.shape)}, not "
                    f"{_told(kind, shape)}"
                )
            # Both ends of numbers of which one is none are none.
            ends = torch.stack(torch.aminmax(one)) if one.numel() else one
            if one.is_floating_point() and not bool(torch.isfinite(ends).all()):
                raise ArrivalError(
                    f"{whose}: tensor {name!r} of {what} has numbers that are not finite"
                )


def expected(worker: Worker, current: Round) -> Likeness:
    """The likeness of an upload in a round, and so in every round of the run.

    Args:
        worker: As `foreseen` takes it.
        current: The round.
    """
    return Likeness.of(worker.unit.likeness(current, foreseen(worker, current)))


def foreseen(worker: Worker, current: Round) -> Upload:
    """What the local rule gives on gradients that are 0: its tensors are those of any client.

    Args:
        worker: Has the run's local rule and unit; nothing is drawn and nothing is noted.
        current: The round.
    """
    parameters, state = view(current.message, worker.flat.vector)
    broadcast = replace(
        current.broadcast, parameters=parameters, state=state, local_steps=1, memory={}
    )
    return worker.rule.run(broadcast, _Silent(), Unobserved())


class _Silent:
    """Answers every question with gradients that are 0."""

    noise_variance = 0.0

    def next_batch(self) -> None:
        """Draw nothing."""

    def gradient(self, parameters: Tensor) -> Tensor:
        """Zeros, [d]."""
        return torch.zeros_like(parameters)


def _told(kind: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(kind).removeprefix('torch.')} {list(shape)}"
