"""Canaries among records or people: an audit run is observed as its claim's adversary would do it.

The adversary of record-level privacy in the server's view sees every noised gradient and knows all
records but one, with all their draws. So what other records put into a sum is subtracted before the
sum is projected on a canary's direction. The claim covers this where records are drawn
independently, or draws amplify nothing. With batches of fixed size the others' draws would reveal
whether the canary was drawn, so there the released sum is used unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.algorithms.base import GradientOracle
from dpfedadamw.canaries.crafted import (
    clipped,
    craft,
    directions,
    record_gradients,
    with_records,
)
from dpfedadamw.canaries.engine import (
    RECORDS,
    Canaries,
    CanaryEngine,
    CanaryOrder,
    draw_canaries,
    draw_canary_people,
)
from dpfedadamw.canaries.secrets import Secrets, made_up
from dpfedadamw.canaries.setup import CanaryEvidence, CanarySetup, trainable
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import RunParts
from dpfedadamw.models.networks.dropout import drops
from dpfedadamw.models.registry import loss_of
from dpfedadamw.privacy.noise.randomness import Stream
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import FlatParameters


@dataclass(frozen=True)
class RecordCanaries(CanarySetup):
    """Canaries in the places of training records, or of people with all of theirs.

    Attributes:
        secrets: The texts of the kind "secret".
    """

    secrets: Secrets | None = None

    @classmethod
    def draw(cls, experiment: Experiment, order: CanaryOrder, coins: Stream) -> RecordCanaries:
        """Draw the canaries of an audit run; writes nothing."""
        plan, people = experiment.plan, experiment.people
        if order.kind in RECORDS and drops(experiment.model):
            raise RunError(
                f"--canary-kind {order.kind}: this model has dropout, so a record's gradient "
                "cannot be known in advance; use --canary-kind gradient, or a dropout of 0"
            )
        opposed, parameters = plan.adjacency == "replace-one", trainable(experiment)
        if people is not None:
            owner = experiment.owner
            drawn = draw_canary_people(order, people.persons, owner, parameters, opposed, coins)
        else:
            sizes = np.bincount(experiment.owner, minlength=len(plan.records)).tolist()
            drawn = draw_canaries(order, sizes, parameters, opposed, coins)
        return cls(order, drawn, made_up(experiment, drawn) if order.kind == "secret" else None)

    def plant(
        self, parts: RunParts, experiment: Experiment, directory: Path, flat: FlatParameters
    ) -> RunParts:
        """Put the canaries among the records, and an engine and an observer that know them."""
        assert isinstance(parts.unit, RecordLevel)
        canaries, clients = self.canaries, list(parts.clients)
        if self.order.kind in RECORDS:
            if self.secrets is not None:
                records, labels = self.secrets.planted(canaries)
            else:
                norm = experiment.plan.clipping_norm
                records, labels = craft(flat, canaries, experiment.dataset, norm)
            canaries = replace(canaries, label=labels)
            clients = with_records(clients, canaries, records)
        engine = CanaryEngine(parts.engine, canaries, experiment.plan.clipping_norm)
        observer = GradientCanaryObserver(
            canaries=canaries,
            engine=engine,
            flat=flat,
            clients=clients,
            plan=experiment.plan,
            evidence=self.evidence(directory),
            secrets=self.secrets,
        )
        unit = replace(parts.unit, observer=observer)
        return RunParts(unit=unit, engine=engine, clients=observer.planted(), finish=observer.close)


class GradientCanaryObserver:
    """Notes what every noised gradient of an audit run says of the canaries.

    Args:
        canaries: The planted records.
        engine: The engine that answers for them.
        flat: The model's parameters.
        clients: Every client's records, crafted ones among them; no label is marked yet.
        plan: The privacy plan.
        evidence: Where it is noted.
        secrets: What the finished model is asked for, of the kind "secret".
    """

    def __init__(
        self,
        *,
        canaries: Canaries,
        engine: CanaryEngine,
        flat: FlatParameters,
        clients: Sequence[ClientData],
        plan: RunPlan,
        evidence: CanaryEvidence,
        secrets: Secrets | None = None,
    ) -> None:
        self.engine = engine
        self._secrets = secrets
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

    def observed(self, oracle: GradientOracle, client: int, round_index: int) -> GradientOracle:
        """An oracle whose answers are noted, for one client's part in a round."""
        return _ObservedOracle(oracle, self, client, round_index)

    def note(self, answer: Tensor, client: int, round_index: int, step: int) -> None:
        """Take note of a noised mean gradient [d] that was just handed out."""
        own = self._canaries.of_client(client)
        if own.start == own.stop:
            return
        released = answer.detach().double() * self._plan.divisor(client)
        others = self.engine.others
        rest = torch.zeros_like(released) if others is None else others.double()
        unit = self._plan.clipping_norm
        if self._canaries.kind in RECORDS:
            gradients, coins = self._own_gradients(own), self._canaries.included[own]
            found = directions(gradients, (released - rest) / unit, coins)
            if not self._knows_others:
                seen = directions(gradients, released / unit, coins)
                found = replace(found, projections=seen.projections)
            self._evidence.note(round_index, step, own.start, **vars(found))
            return
        if self._knows_others:
            released -= rest
        places = torch.from_numpy(self._canaries.coordinate[own]).to(released.device)
        projections = (released[places] / unit).cpu().numpy()
        if self._knows_others:
            self._evidence.note(round_index, step, own.start, projections)
        else:
            hidden = (rest[places] / unit).cpu().numpy()
            self._evidence.note(round_index, step, own.start, projections, others=hidden)

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
            # All records of one canary at a client are alike.
            found = [
                float(loss_of(module)(module(self._record(index)), self._label(index)))
                for index in range(len(self._canaries.client))
            ]
        module.train()
        return np.array(found)

    def close(self) -> None:
        """Write the evidence; the model holds the final parameters."""
        known = {}
        if self._secrets is not None:
            module = self._flat.module
            module.eval()
            known = self._secrets.known(self._canaries, module)
            module.train()
        self._evidence.write(self._before, self.losses(), **known)

    def _own_gradients(self, own: slice) -> Tensor:
        """Clipped gradients over C of a client's canaries, at the model's parameters, [m, d]."""
        records = torch.cat([self._record(index) for index in range(own.start, own.stop)])
        labels = torch.cat([self._label(index) for index in range(own.start, own.stop)])
        return clipped(record_gradients(self._flat, records, labels), self._plan.clipping_norm)

    def _record(self, index: int) -> Tensor:
        data = self._clients[int(self._canaries.client[index])]
        rows, _ = self._canaries.rows(slice(index, index + 1))
        return data.inputs[torch.tensor([int(rows[0])])][:]

    def _label(self, index: int) -> Tensor:
        return torch.from_numpy(self._canaries.label[index : index + 1]).to(
            self._flat.vector.device
        )


class _ObservedOracle:
    """Hands on every question to the real oracle and has the answer noted."""

    def __init__(
        self,
        oracle: GradientOracle,
        observer: GradientCanaryObserver,
        client: int,
        round_index: int,
    ) -> None:
        self.noise_variance = oracle.noise_variance
        self._oracle = oracle
        self._observer = observer
        self._client = client
        self._round_index = round_index
        self._step = -1

    def next_batch(self) -> None:
        """Draw the records of the next local step."""
        self._step += 1
        self._oracle.next_batch()

    def gradient(self, parameters: Tensor) -> Tensor:
        """The noised mean gradient [d] of the current batch at the flat parameters [d]."""
        self._observer.engine.forget()
        answer = self._oracle.gradient(parameters)
        self._observer.note(answer, self._client, self._round_index, self._step)
        return answer
