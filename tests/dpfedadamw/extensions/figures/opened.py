"""Runs opened as the command opens them, and measured by one figure."""

from __future__ import annotations

from typing import Any

import torch

from dpfedadamw.extensions.figures.reading import FinishedRun
from dpfedadamw.extensions.figures.registry import FIGURES, Measuring, Settings
from dpfedadamw.reexecution.history import published
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.rundir import RunDirectory

CPU = torch.device("cpu")


def opened(run: RunDirectory, seed: int = 1) -> FinishedRun:
    """A run of a published seed."""
    return FinishedRun(run, lambda path, data: Rerun(path, published(seed), CPU, data), CPU)


def measured(name: str, run: RunDirectory, settings: Settings | None = None) -> Any:
    """What a figure measures of a run, its rounds run again where it has to."""
    finished = opened(run)
    found = FIGURES[name].measure(finished, settings or Settings())
    if isinstance(found, Measuring):
        finished.rerun.observe(found)
        return found.found()
    return found
