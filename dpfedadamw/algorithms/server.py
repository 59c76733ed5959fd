"""How the server combines uploads: plain averages, and the global update of the round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedadamw.algorithms.base import GLOBAL_UPDATE, Broadcast, ServerState, Upload

if TYPE_CHECKING:
    from torch import Tensor


def mean_update(uploads: Sequence[Upload]) -> Tensor:
    """mean_i Δθ_i, [d].

    All clients weigh the same: weights by client size would give each client a sensitivity of its
    own.
    """
    return _mean([upload.update for upload in uploads])


def mean_of(uploads: Sequence[Upload], name: str) -> Tensor:
    """The mean of one uploaded state tensor over the clients, each weighing the same."""
    return _mean([upload.state[name] for upload in uploads])


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    """The mean of tensors of one shape, a piece at a time: they are never all side by side."""
    import torch

    from dpfedadamw.vectors.flat import empty, in_pieces

    first = tensors[0]
    rows = [tensor.reshape(-1) for tensor in tensors]
    mean = empty(first.numel(), first.dtype, first.device)
    in_pieces(
        mean,
        lambda part, _: torch.mean(torch.stack([row[part] for row in rows]), 0, out=mean[part]),
    )
    return mean.view(first.shape)


@dataclass(frozen=True)
class Averaging:
    """θ ← θ + η_s·mean_i Δθ_i; every uploaded state tensor is averaged (DP-FedAdamW lines 21-23).

    Attributes:
        state_sizes: Length of each averaged state tensor, by name; all start at 0.
        keep_global_update: Also keep Δ_G = −(1/(S·Σ_k η)) Σ_i Δθ_i for the clients' alignment.
        learning_rate: η_s > 0 of the server; 1 is the plain average.
    """

    state_sizes: Mapping[str, int]
    keep_global_update: bool
    learning_rate: float = 1.0

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters, every state tensor 0."""
        import torch

        state = {name: parameters.new_zeros(size) for name, size in self.state_sizes.items()}
        if self.keep_global_update:
            state[GLOBAL_UPDATE] = torch.zeros_like(parameters)
        return ServerState(parameters.clone(), state)

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """Average the uploads of one round."""
        update = mean_update(uploads)
        averaged = {name: mean_of(uploads, name) for name in self.state_sizes}
        if self.keep_global_update:
            distance = broadcast.learning_rate * broadcast.local_steps
            averaged[GLOBAL_UPDATE] = -update / distance
        return ServerState(state.parameters + self.learning_rate * update, averaged)
