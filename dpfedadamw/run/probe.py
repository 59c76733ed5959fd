"""Hands the auditor a callable to poke at: the run's own private step, on data of its choosing."""

from __future__ import annotations

from typing import Any

from dpfedadamw.run.training import Training


def probe_of(training: Training) -> Any:
    """The probe of a run's own engine and model; None for a run without privacy."""
    worker = training.federation.worker
    return worker.unit.probe(training.experiment, worker.engine, worker.flat, worker.performance)
