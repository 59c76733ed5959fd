"""Hands the auditor a callable to poke at: the run's own private step, on data of its choosing."""

from __future__ import annotations

from dpfedadamw.federation.probes import ProbedRun, StepProbe, UpdateProbe
from dpfedadamw.profiling import part
from dpfedadamw.run.computing import divided
from dpfedadamw.run.training import Training
from dpfedadamw.run.units import unit_of


@part("probe")
def probe_of(training: Training) -> StepProbe | UpdateProbe | None:
    """The probe of a run's own step and round; None for a run without privacy."""
    experiment, worker = training.experiment, training.federation.worker
    probe = unit_of(experiment.plan).probe
    if probe is None:
        return None
    return probe(
        ProbedRun(experiment=experiment, worker=worker, state=training.state, divide=divided)
    )
