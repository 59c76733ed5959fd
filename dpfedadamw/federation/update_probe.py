"""What the auditor pokes at where whole clients are protected: the sum of clipped updates.

As in `probes`, all is left out but the noise, by a plan under which no round of a training can run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.algorithms.base import Broadcast
from dpfedadamw.federation.client import ClientLevel, public_coordinates, release_mean_update
from dpfedadamw.federation.messages import pack
from dpfedadamw.federation.participation import ParticipationWithData, Round
from dpfedadamw.federation.probes import ProbedRun
from dpfedadamw.privacy import updates
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.vectors.sparsification import Sparsification

# Steps of a probed client: what one step leaves behind shows in the next.
_MOST_STEPS = 2
_SEED = 0


class UpdateProbe:
    """The sum of clipped updates of a real round, of made-up updates and of clients that train.

    It calls the very functions that clients and server call. Where coordinates are public, they
    are those of the first round.

    Attributes:
        unit: "client".
        clipping_norm: C.
        parameters: d, length of an update.
        input_shape: Shape of one record as it is stored.
        classes: Number of different targets that records may have.
    """

    unit = "client"

    def __init__(self, run: ProbedRun) -> None:
        plan = run.experiment.plan
        self.clipping_norm = plan.clipping_norm
        self.parameters = run.worker.flat.layout.size
        self.input_shape = run.input_shape
        self.classes = run.experiment.dataset.kinds_made_up
        self._run = run
        self._sparsification: Sparsification | None = plan.sparsification
        self._kept = public_coordinates(plan.sparsification, 0, {}, torch.device("cpu"))

    def clipped_sum_of_updates(self, changes: NDArray[np.float32]) -> NDArray[np.float64]:
        """Σ_i clip(Δ_i) of changes [n, d], float64 [d]; 0 off public coordinates."""
        clipped = [
            updates.contribute(
                torch.from_numpy(np.array(update)),
                self.clipping_norm,
                self._sparsification,
                self._kept,
            ).update
            for update in changes
        ]
        size = self.parameters if self._kept is None else len(self._kept)
        total = updates.sum_of_updates(clipped, size, torch.device("cpu"))
        whole = updates.spread(total, self._kept, self.parameters)
        array: NDArray[np.float64] = whole.numpy()
        return array

    def sum_of_round(
        self,
        inputs: NDArray[Any],
        labels: NDArray[np.int64],
        clients: NDArray[np.int64],
        chosen: tuple[int, ...],
        elsewhere: bool = False,
    ) -> NDArray[np.float64]:
        """S times the release of a round in which the chosen clients train, float64 [d].

        Args:
            inputs: Records [n, …] of all clients.
            labels: [n].
            clients: Whose each record is, [n].
            chosen: Who takes part, in order.
            elsewhere: Whether they begin at other parameters than the model's.
        """
        run = self._run
        unit = run.worker.unit.probed()
        assert isinstance(unit, ClientLevel)
        worker = replace(
            run.worker,
            # In an audit run, nothing is planted among the auditor's clients.
            unit=replace(unit, observer=None),
            randomness=ReproducibleRandomness(_SEED),
        )
        held = run.clients(inputs, labels, clients)
        current = self._round(tuple(len(one.labels) for one in held), chosen, elsewhere)
        answers = [
            worker.take_part(
                ParticipationWithData(
                    current=current, place=place, client=client, data=held[client], memory={}
                )
            )
            for place, client in enumerate(chosen)
        ]
        release = release_mean_update(replace(current, answers=tuple(answers)), None)
        total: NDArray[np.float64] = release.released.detach().double().cpu().numpy()
        return total * current.plan.clients_per_round

    def _round(self, records: tuple[int, ...], chosen: tuple[int, ...], elsewhere: bool) -> Round:
        """A first round of clients of these sizes, under a plan without noise."""
        run, plan = self._run, self._run.experiment.plan
        steps = min(plan.local_steps, _MOST_STEPS)
        state = replace(run.state, parameters=run.parameters(elsewhere), memories={})
        return Round(
            index=0,
            attempt=1,
            plan=replace(
                plan,
                records=records,
                local_steps=steps,
                noise_multiplier=0.0,
                noise_added_by="server",
            ),
            chosen=chosen,
            broadcast=Broadcast(
                parameters=state.parameters,
                state=state.state,
                learning_rate=run.experiment.spec.algorithm.learning_rate,
                local_steps=steps,
                earlier_steps=0,
            ),
            message=pack(state.parameters, state.state),
            state=state,
        )
