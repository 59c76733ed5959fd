"""On what clients compute: their records, the engine of clipped sums, deterministic kernels.

The process that leads a run and each that runs clients for it set this up in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.clipping.engines import ClippedSumEngine
from dpfedadamw.clipping.performance import PerformanceOptions
from dpfedadamw.data.datasets import Records
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.rounds import client_data
from dpfedadamw.models.networks.dropout import drops
from dpfedadamw.privacy.sampling import People
from dpfedadamw.run.units import unit_of
from dpfedadamw.spec import Spec


def divided(
    experiment: Experiment,
    records: Records,
    owner: NDArray[np.int64],
    clients: int,
    people: People | None = None,
) -> list[ClientData]:
    """Records [n] divided by their owners [n] among the clients: those of a run, or of its probe.

    Args:
        experiment: What is run.
        records: The data set's training records, or the auditor's.
        owner: The client of each, [n].
        clients: How many there are.
        people: Whom they are about, where people are protected.
    """
    more = () if people is None else (people,)
    return client_data(records, owner, clients, experiment.device, *more)


def performance_of(experiment: Experiment, engine: str) -> PerformanceOptions:
    """How a spec's gradients are computed."""
    compute = experiment.spec.compute
    return PerformanceOptions(
        engine=engine,
        physical_batch_size=compute.physical_batch_size,
        precision=compute.precision,
    )


def engine_of(experiment: Experiment, performance: PerformanceOptions) -> ClippedSumEngine:
    """What computes clipped sums, for a model that is put to training.

    Raises:
        RunError: If the model cannot be trained by it.
    """
    experiment.model.train()
    if performance.engine == "vmap" and drops(experiment.model):
        raise RunError(
            "--engine vmap: it hides the records, and dropout needs to see them; use auto, "
            "book-keeping or loop, or a dropout of 0"
        )
    return unit_of(experiment.plan).rounds.engine(experiment, performance)


@contextlib.contextmanager
def determinism(spec: Spec) -> Iterator[None]:
    """In reproducible mode, use only deterministic kernels while training."""
    # `torch.use_deterministic_algorithms` would import the compiler, which takes a second or two.
    before = torch.get_deterministic_debug_mode()
    if spec.randomness.mode == "reproducible":
        torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
