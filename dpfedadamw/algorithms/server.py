"""How the server combines uploads: plain averages, and the global update of the round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedadamw.algorithms.adamw import GLOBAL_UPDATE
from dpfedadamw.algorithms.base import Broadcast, ServerState, Upload


@dataclass(frozen=True)
class Averaging:
    """θ ← θ + mean_i Δθ_i; every uploaded state tensor is averaged (DP-FedAdamW lines 21-23).

    All clients weigh the same: weights by client size would give each client a sensitivity of its
    own.

    Attributes:
        state_sizes: Length of each averaged state tensor, by name; all start at 0.
        keep_global_update: Also keep Δ_G = −(1/(S·Σ_k η)) Σ_i Δθ_i for the clients' alignment.
    """

    state_sizes: Mapping[str, int]
    keep_global_update: bool

    def start(self, parameters: Tensor) -> ServerState:
        """The initial parameters, every state tensor 0."""
        state = {name: parameters.new_zeros(size) for name, size in self.state_sizes.items()}
        if self.keep_global_update:
            state[GLOBAL_UPDATE] = torch.zeros_like(parameters)
        return ServerState(parameters.clone(), state)

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """Average the uploads of one round."""
        update = torch.stack([upload.update for upload in uploads]).mean(0)
        averaged = {
            name: torch.stack([upload.state[name] for upload in uploads]).mean(0)
            for name in self.state_sizes
        }
        if self.keep_global_update:
            distance = broadcast.learning_rate * broadcast.local_steps
            averaged[GLOBAL_UPDATE] = -update / distance
        return ServerState(state.parameters + update, averaged)
