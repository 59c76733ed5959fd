"""On what clients compute: the unit of protection, their records, the engine of clipped sums.

The process that leads a run and each that runs clients for it set this up in the same way. The
rounds, canaries and probe of the run's own unit are loaded here, and those of no other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dpfedadamw.clipping.engines import ClippedSumEngine, PerformanceOptions
from dpfedadamw.data.datasets import Records
from dpfedadamw.experiment import Experiment, RunError
from dpfedadamw.federation.participation import ClientData
from dpfedadamw.federation.rounds import client_data
from dpfedadamw.privacy.sampling import People
from dpfedadamw.spec import Spec
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.vectors.flat import is_short

if TYPE_CHECKING:
    from dpfedadamw.canaries.setup import CanarySetup
    from dpfedadamw.federation.probes import StepProbe
    from dpfedadamw.federation.unprotected import Unprotected
    from dpfedadamw.federation.update_probe import UpdateProbe


@dataclass(frozen=True)
class Unit:
    """A unit of protection, as `privacy.unit` names it, beyond its plan and its claim."""

    name: str

    @property
    def rounds(self) -> type[Unprotected]:
        """Its rounds and evidence."""
        if self.name == "client":
            from dpfedadamw.federation.client import ClientLevel

            return ClientLevel
        if self.name == "none":
            from dpfedadamw.federation.unprotected import Unprotected

            return Unprotected
        from dpfedadamw.federation.record import RecordLevel

        return RecordLevel

    @property
    def canaries(self) -> type[CanarySetup] | None:
        """Its canaries; None where nothing is claimed that they could contradict."""
        if self.name in ("record", "person"):
            from dpfedadamw.canaries.record import RecordCanaries

            return RecordCanaries
        if self.name == "client":
            from dpfedadamw.canaries.client import ClientCanaries

            return ClientCanaries
        return None

    @property
    def probe(self) -> type[StepProbe] | type[UpdateProbe] | None:
        """What the auditor may poke at; None where nothing is claimed."""
        if self.name == "none":
            return None
        if self.name == "client":
            from dpfedadamw.federation.update_probe import UpdateProbe

            return UpdateProbe
        from dpfedadamw.federation.probes import StepProbe

        return StepProbe


def unit_of(plan: RunPlan) -> Unit:
    """All of the unit that a plan protects."""
    return Unit(plan.unit.name)


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
    if performance.engine == "vmap":
        # Layers that drop are known where there may be some: in the models that have them.
        from dpfedadamw.models.networks.dropout import drops

        if drops(experiment.model):
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


def workers_of(experiment: Experiment, parameters: int) -> int:
    """How many processes compute the clients of a run's rounds.

    Each computes with as many threads as this one would, because sums are cut up by threads and the
    result must not depend on the number of workers. Where it is chosen here, no more threads run
    than there are processors, and torch takes a single one for the vectors of a short model.

    Args:
        experiment: What is run.
        parameters: d.
    """
    federation = experiment.spec.federation
    wanted = federation.workers
    if wanted == "auto":
        threads = 1 if is_short(parameters) else torch.get_num_threads()
        # A device works for one process as well as for several, and would hold the model for each.
        wanted = processors() // threads if experiment.device.type == "cpu" else 1
    return max(1, min(wanted, federation.clients_per_round))


def processors() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
