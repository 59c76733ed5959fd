"""Watches an audit run as the adversary of its claim would: release by release, for each canary.

The adversary of record-level privacy towards the server sees every noised gradient and knows all
records but one, with all their draws. So what other records put into a sum is taken away before the
sum is looked at along a canary's direction. That is within the claim where every record is drawn by
itself, or draws amplify nothing; batches of fixed size would tell by the others' draws whether the
canary was drawn, and there the released sum is looked at as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfedadamw.algorithms.base import GradientOracle
from dpfedadamw.canaries.engine import MAGNITUDE, Canaries, CanaryEngine
from dpfedadamw.canaries.evidence import CanaryEvidence
from dpfedadamw.federation.client import ClientData
from dpfedadamw.privacy.plan import PrivacyPlan
from dpfedadamw.privacy.updates import ClippedUpdate
from dpfedadamw.vectors.flat import FlatParameters


class CanaryWatch:
    """Notes what every noised gradient of an audit run says of the canaries.

    Args:
        canaries: The planted records.
        engine: The engine that answers for them.
        flat: The model's parameters.
        clients: Every client's records, before canaries took their places.
        plan: The privacy plan.
        evidence: Where it is noted.
    """

    def __init__(
        self,
        canaries: Canaries,
        engine: CanaryEngine,
        flat: FlatParameters,
        clients: Sequence[ClientData],
        plan: PrivacyPlan,
        evidence: CanaryEvidence,
    ) -> None:
        self.engine = engine
        self._canaries = canaries
        self._flat = flat
        self._clients = clients
        self._plan = plan
        self._evidence = evidence
        self._knows_others = plan.sampling.event_kind != "fixed-size"
        self._before = self.losses()

    def planted(self) -> list[ClientData]:
        """Every client's records, with marks where canaries have taken a record's place."""
        return [
            replace(data, labels=self._canaries.marked(client, data.labels))
            for client, data in enumerate(self._clients)
        ]

    def oracle(self, oracle: GradientOracle, client: int, round_index: int) -> GradientOracle:
        """An oracle that is watched, for one client's part in a round."""
        return _WatchedOracle(oracle, self, client, round_index)

    def update(self, client: int, update: Tensor) -> Tensor:
        """The update as it is: records are planted, not clients."""
        del client
        return update

    def release(
        self,
        round_index: int,
        released: Tensor,
        clients: Sequence[int],
        clipped: Sequence[ClippedUpdate],
    ) -> None:
        """Nothing to look at: at record level every gradient is looked at by itself."""

    def note(self, answer: Tensor, client: int, round_index: int, step: int) -> None:
        """Take note of a noised mean gradient [d] that was just handed out."""
        own = self._canaries.of_client(client)
        if own.start == own.stop:
            return
        released = answer.detach().double() * self._plan.divisor(client)
        if self._knows_others and self.engine.others is not None:
            released -= self.engine.others.double()
        unit = self._plan.clipping_norm
        if self._canaries.kind == "gradient":
            places = torch.from_numpy(self._canaries.coordinate[own]).to(released.device)
            found = (released[places] / unit).cpu().numpy()
        else:
            found = np.array(
                [
                    float(released @ self._alone(index).double()) / unit**2
                    for index in range(own.start, own.stop)
                ]
            )
        self._evidence.note(round_index, step, own.start, found)

    def losses(self) -> NDArray[np.float64]:
        """Each canary's loss under the model as it is, [N].

        A canary whose gradient is given along a coordinate has a linear loss: the parameter there.
        """
        if self._canaries.kind == "gradient":
            vector = self._flat.vector.detach().double().cpu().numpy()
            values: NDArray[np.float64] = vector[self._canaries.coordinate]
            return values
        module = self._flat.module
        module.eval()
        with torch.no_grad():
            found = [
                float(cross_entropy(module(self._record(index)), self._label(index)))
                for index in range(len(self._canaries.client))
            ]
        module.train()
        return np.array(found)

    def close(self) -> None:
        """Write the evidence; the model holds the final parameters."""
        self._evidence.write(self._before, self.losses())

    def _alone(self, index: int) -> Tensor:
        return self.engine.alone(self._record(index), self._label(index))

    def _record(self, index: int) -> Tensor:
        data = self._clients[int(self._canaries.client[index])]
        return data.inputs[torch.tensor([int(self._canaries.row[index])])][:]

    def _label(self, index: int) -> Tensor:
        return torch.tensor([int(self._canaries.label[index])], device=self._flat.vector.device)


class ClientWatch:
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
        plan: PrivacyPlan,
        evidence: CanaryEvidence,
    ) -> None:
        self._canaries = canaries
        self._index = {int(client): place for place, client in enumerate(canaries.client)}
        self._flat = flat
        self._plan = plan
        self._evidence = evidence
        self._before = self.losses()

    def oracle(self, oracle: GradientOracle, client: int, round_index: int) -> GradientOracle:
        """The oracle as it is: no gradient of a local step is released."""
        del client, round_index
        return oracle

    def update(self, client: int, update: Tensor) -> Tensor:
        """A canary's update, far outside the clipping norm, or zeros if its coin left it out."""
        place = self._index.get(client)
        if place is None:
            return update
        planted = torch.zeros_like(update)
        length = MAGNITUDE * self._plan.clipping_norm * float(self._canaries.signs[place])
        planted[int(self._canaries.coordinate[place])] = length
        return planted

    def release(
        self,
        round_index: int,
        released: Tensor,
        clients: Sequence[int],
        clipped: Sequence[ClippedUpdate],
    ) -> None:
        """Take note of a round's noised mean update [d]."""
        total = released.detach().double() * self._plan.clients_per_round
        for client, one in zip(clients, clipped, strict=True):
            if client not in self._index:
                total -= one.update.double()
        places = torch.from_numpy(self._canaries.coordinate).to(total.device)
        found = (total[places] / self._plan.clipping_norm).cpu().numpy()
        self._evidence.note(round_index, 0, 0, found)

    def losses(self) -> NDArray[np.float64]:
        """Each canary's loss, which its update lowers: minus the parameter there, [N]."""
        vector = self._flat.vector.detach().double().cpu().numpy()
        values: NDArray[np.float64] = -vector[self._canaries.coordinate]
        return values

    def close(self) -> None:
        """Write the evidence; the model holds the final parameters."""
        self._evidence.write(self._before, self.losses())


class _WatchedOracle:
    """Hands on every question to the real oracle and lets the answer be looked at."""

    def __init__(
        self, oracle: GradientOracle, watch: CanaryWatch, client: int, round_index: int
    ) -> None:
        self.noise_variance = oracle.noise_variance
        self._oracle = oracle
        self._watch = watch
        self._place = (client, round_index)
        self._step = -1

    def next_batch(self) -> None:
        """Draw the records of the next local step."""
        self._step += 1
        self._oracle.next_batch()

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at the flat parameters [d]."""
        self._watch.engine.forget()
        answer = self._oracle.gradient(parameters)
        self._watch.note(answer, *self._place, self._step)
        return answer
