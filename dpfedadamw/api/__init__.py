"""The package from Python: what the commands do, as functions, with the same files and signatures.

    from dpfedadamw import api

    run = api.run("quickstart", changes=["federation.rounds=5"])
    print(run.verdict, run.accuracy, run.epsilon)

A run from here is trained, audited, reported and signed as one of ``dpfedadamw run`` is, and every
command takes it. What a user can cause is a `DpfedadamwError`, an `audit.errors.AuditError` or a
`reports.errors.ReportError`, whose text is one line: what, where, and what would be right. Nothing
is printed.
"""

from __future__ import annotations

from dpfedadamw.errors import DpfedadamwError, SpecError, taken_name

if (_taken := taken_name()) is not None:
    raise ImportError(_taken)

from dpfedadamw.api.comparison import Comparison, compare
from dpfedadamw.api.models import CheckedModel, check_model, load_model, predict, predictor
from dpfedadamw.api.options import Options, Round
from dpfedadamw.api.planning import Calibrated, Cost, calibrate, epsilon, frontier
from dpfedadamw.api.running import Run, resume, run
from dpfedadamw.api.sweeping import sweep
from dpfedadamw.api.tables import Table

__all__ = [
    "Calibrated",
    "CheckedModel",
    "Comparison",
    "Cost",
    "DpfedadamwError",
    "Options",
    "Round",
    "Run",
    "SpecError",
    "Table",
    "calibrate",
    "check_model",
    "compare",
    "epsilon",
    "frontier",
    "load_model",
    "predict",
    "predictor",
    "resume",
    "run",
    "sweep",
]
