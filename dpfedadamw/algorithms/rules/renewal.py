"""The server's part of top-k sparsification: it chooses the next round's coordinates.

They follow from what it has just released, noise included, so that choosing is post-processing and
costs no privacy; and they travel with the broadcast, so that all clients keep the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.algorithms.base import Broadcast, ServerRule, ServerState, Upload
from dpfedadamw.algorithms.server import mean_update
from dpfedadamw.vectors.sparsification import KEPT, Sparsification


@dataclass(frozen=True)
class RenewedCoordinates:
    """Another server rule, together with the coordinates of the next round.

    Attributes:
        inner: Moves the parameters.
        sparsification: How coordinates are drawn and renewed.
    """

    inner: ServerRule
    sparsification: Sparsification

    def start(self, parameters: Tensor) -> ServerState:
        """Nothing is released yet: the coordinates of round 0 are all drawn."""
        state = self.inner.start(parameters)
        kept = self._tensor(self.sparsification.draw(0), parameters.device)
        return replace(state, state={**state.state, KEPT: kept})

    def combine(
        self, state: ServerState, uploads: Sequence[Upload], broadcast: Broadcast
    ) -> ServerState:
        """Combine as the inner rule does, then choose from the released mean update."""
        kept = state.state[KEPT].long()
        others = {name: value for name, value in state.state.items() if name != KEPT}
        after = self.inner.combine(replace(state, state=others), uploads, broadcast)
        released = mean_update(uploads)[kept].float()
        following = broadcast.earlier_steps // broadcast.local_steps + 1
        chosen = self.sparsification.renew(following, kept.cpu().numpy(), released.cpu().numpy())
        return replace(after, state={**after.state, KEPT: self._tensor(chosen, kept.device)})

    def _tensor(self, kept: NDArray[np.int64], device: torch.device) -> Tensor:
        # They travel to every client, so no longer than they must be.
        narrow = np.int32 if self.sparsification.size < 2**31 else np.int64
        return torch.from_numpy(kept.astype(narrow)).to(device)
