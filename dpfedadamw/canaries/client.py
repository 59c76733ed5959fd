"""Canaries that are whole clients: their updates are planted, and every release is observed.

Where updates are cut to some coordinates, a canary's update lies where it survives, so that it
adds C to every round that its client is in. With public coordinates, known before a round, that
is one of the round's own: the canary's if it is kept, else one that is kept and no canary's. With
private ones (each client keeps its largest) the one coordinate that is not 0 is always kept, and
noise covers all of them. Either way each score is that of dense updates: N(0, σ²C²), shifted by
C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.canaries.engine import MAGNITUDE, Canaries, CanaryOrder, draw_canary_clients
from dpfedadamw.canaries.setup import CanaryEvidence, CanarySetup, trainable
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.federation.unprotected import RunParts
from dpfedadamw.privacy.noise.randomness import Stream
from dpfedadamw.privacy.updates import ClippedUpdate, spread
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import FlatParameters


class ClientCanaries(CanarySetup):
    """Canaries in the places of whole clients."""

    @classmethod
    def draw(cls, experiment: Experiment, order: CanaryOrder, coins: Stream) -> ClientCanaries:
        """Draw the canaries of an audit run; writes nothing."""
        if order.kind != "gradient":
            raise RunError(
                f"--canary-kind {order.kind}: this spec protects whole clients, whose canaries are "
                "whole updates; use --canary-kind gradient"
            )
        clients, sparse = len(experiment.plan.records), experiment.plan.sparsification
        parameters = trainable(experiment)
        released = sparse.released if sparse is not None else parameters
        return cls(order, draw_canary_clients(order, clients, parameters, released, coins))

    def plant(
        self, parts: RunParts, experiment: Experiment, directory: Path, flat: FlatParameters
    ) -> RunParts:
        """Let an observer give the canaries' updates and note what becomes of them."""
        assert isinstance(parts.unit, ClientLevel)
        evidence = self.evidence(directory)
        observer = UpdateCanaryObserver(self.canaries, flat, experiment.plan, evidence)
        unit = replace(parts.unit, observer=observer)
        return replace(parts, unit=unit, finish=observer.close)


class UpdateCanaryObserver:
    """Plants whole updates, and notes what every release of an audit run says of them.

    At client level the server's noised mean is all that is released. The adversary knows the
    updates of all other clients; what they put into a round is taken away.

    Args:
        canaries: The planted clients.
        flat: The model's parameters.
        plan: The privacy plan.
        evidence: Where it is noted.
    """

    def __init__(
        self,
        canaries: Canaries,
        flat: FlatParameters,
        plan: RunPlan,
        evidence: CanaryEvidence,
    ) -> None:
        self._canaries = canaries
        self._index = {int(client): place for place, client in enumerate(canaries.client)}
        self._flat = flat
        self._plan = plan
        self._evidence = evidence
        self._before = self.losses()

    def planted(self, client: int, update: Tensor, kept: Tensor | None) -> Tensor:
        """A canary's update, far outside the clipping norm, or zeros if its coin left it out."""
        place = self._index.get(client)
        if place is None:
            return update
        planted = torch.zeros_like(update)
        length = MAGNITUDE * self._plan.clipping_norm * float(self._canaries.signs[place])
        planted[int(self._coordinates(kept)[place])] = length
        return planted

    def released(
        self,
        round_index: int,
        released: Tensor,
        clients: Sequence[int],
        clipped: Sequence[ClippedUpdate],
        kept: Tensor | None,
    ) -> None:
        """Take note of a round's noised mean update [d]."""
        total = released.detach().double() * self._plan.clients_per_round
        for client, one in zip(clients, clipped, strict=True):
            if client not in self._index:
                total -= spread(one.update.double(), kept, len(total))
        places = torch.from_numpy(self._coordinates(kept)).to(total.device)
        found = (total[places] / self._plan.clipping_norm).cpu().numpy()
        self._evidence.note(round_index, 0, 0, found)

    def _coordinates(self, kept: Tensor | None) -> NDArray[np.int64]:
        """Where each canary's update lies in a round, [N]; a function of what is public alone."""
        own = self._canaries.coordinate
        if kept is None:
            return own
        released = kept.cpu().numpy()
        found = own.copy()
        lost = ~np.isin(own, released)
        found[lost] = np.setdiff1d(released, own)[: np.count_nonzero(lost)]
        return found

    def losses(self) -> NDArray[np.float64]:
        """Each canary's loss, which its update lowers: minus the parameter there, [N]."""
        vector = self._flat.vector.detach().double().cpu().numpy()
        values: NDArray[np.float64] = -vector[self._canaries.coordinate]
        return values

    def close(self) -> None:
        """Write the evidence; the model holds the final parameters."""
        self._evidence.write(self._before, self.losses())
