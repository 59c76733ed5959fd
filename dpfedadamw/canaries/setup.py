"""Turns an experiment into an audit run: the same spec, with canaries among records or clients.

`run.start` calls it. An audit run has a name, a ledger header and metrics of its own that say what
it is; nothing of the run that it audits is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpfedadamw.canaries.engine import (
    Canaries,
    CanaryEngine,
    CanaryOrder,
    draw_canaries,
    draw_canary_clients,
)
from dpfedadamw.canaries.evidence import CanaryEvidence
from dpfedadamw.canaries.observers import CanaryWatch, ClientWatch
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.federation.client import ClientData
from dpfedadamw.privacy.clipping.engines import ClippedSumEngine
from dpfedadamw.privacy.noise.randomness import RandomSource
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.vectors.flat import FlatParameters

SUFFIX = "-canaries"
_LONGEST_NAME = 64


@dataclass(frozen=True)
class Planting:
    """Canaries that are drawn but not yet planted.

    Attributes:
        order: What was asked for.
        canaries: What was drawn.
    """

    order: CanaryOrder
    canaries: Canaries

    def plant(
        self,
        experiment: Experiment,
        run: RunDirectory,
        engine: ClippedSumEngine,
        flat: FlatParameters,
        clients: Sequence[ClientData],
    ) -> tuple[ClippedSumEngine, CanaryWatch | ClientWatch, list[ClientData]]:
        """The engine, who looks at what becomes of the canaries, and every client's records.

        Args:
            experiment: What is run.
            run: Where the evidence is written.
            engine: Answers for all other records.
            flat: The model's parameters, initial.
            clients: Every client's records.
        """
        drawn, plan = self.canaries, experiment.plan
        evidence = CanaryEvidence(run.evidence, drawn.client, drawn.included, drawn.opposed)
        if plan.unit == "client":
            return engine, ClientWatch(drawn, flat, plan, evidence), list(clients)
        planted = CanaryEngine(engine, drawn, plan.clipping_norm)
        watch = CanaryWatch(drawn, planted, flat, clients, plan, evidence)
        return planted, watch, watch.planted()


def draw(experiment: Experiment, order: CanaryOrder, randomness: RandomSource) -> Planting:
    """Draw the canaries of an audit run; writes nothing.

    Raises:
        RunError: If the spec makes no claim that canaries of this kind could contradict.
        PrivacyError: If so many canaries cannot be planted.
    """
    plan = experiment.plan
    if plan.unit == "none":
        raise RunError("--canaries: this spec claims no privacy, so there is nothing to contradict")
    parameters = sum(p.numel() for p in experiment.model.parameters() if p.requires_grad)
    coins = randomness.stream("canary coins", -1, -1)
    if plan.unit == "client":
        if plan.sparsification is not None:
            raise RunError(
                "--canaries: this spec cuts updates to some coordinates, and canaries of whole "
                "clients are planted in dense updates only"
            )
        if order.kind != "gradient":
            raise RunError(
                f"--canary-kind {order.kind}: this spec protects whole clients, whose canaries are "
                "whole updates; use gradient"
            )
        clients = len(plan.records)
        return Planting(order, draw_canary_clients(order, clients, parameters, coins))
    labels, owner = experiment.dataset.train.labels, experiment.owner
    canaries = draw_canaries(
        order,
        tuple(labels[np.flatnonzero(owner == client)] for client in range(len(plan.records))),
        experiment.dataset.classes,
        parameters,
        plan.adjacency == "replace-one",
        coins,
    )
    return Planting(order, canaries)


def renamed(experiment: Experiment) -> Experiment:
    """The experiment under the name of an audit run."""
    name = experiment.spec.name[: _LONGEST_NAME - len(SUFFIX)] + SUFFIX
    return replace(experiment, spec=experiment.spec.replace(name=name))
