"""MLflow: one run of an experiment, in a database of one's own or a server's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfedadamw.extensions.trackers.tracking import Setting, TrackerEntry, register

_EXPERIMENT = "dpfedadamw"


class MLflow:
    """One run of the experiment dpfedadamw, or of MLFLOW_EXPERIMENT_NAME.

    Args:
        folder: Where its database lies, unless MLFLOW_TRACKING_URI says otherwise.
        run: The run's identifier.
    """

    def __init__(self, folder: Path, run: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        tracking: Any = import_module("mlflow.tracking")
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            (folder / "mlflow").mkdir(parents=True, exist_ok=True)
            address = f"sqlite:///{(folder / 'mlflow' / 'mlflow.db').resolve()}"
        self._client = tracking.MlflowClient(tracking_uri=address)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        number = found.experiment_id if found else self._client.create_experiment(name)
        self._run = self._client.create_run(number, run_name=run).info.run_id

    def settings(self, values: Mapping[str, Setting]) -> None:
        """Log the settings as parameters."""
        for name, value in values.items():
            self._client.log_param(self._run, name, value)

    def round(self, completed: int, values: Mapping[str, float]) -> None:
        """Log a point of each metric."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=completed)

    def finish(self, values: Mapping[str, Setting]) -> None:
        """Log what the run came to, and end it."""
        for name, value in values.items():
            if isinstance(value, str):
                self._client.set_tag(self._run, name, value)
            else:
                self._client.log_metric(self._run, name, float(value))
        self._client.set_terminated(self._run, "FINISHED" if values else "KILLED")


register(
    TrackerEntry(
        name="mlflow",
        summary="a run in tracking/mlflow/mlflow.db, or where MLFLOW_TRACKING_URI says",
        open=MLflow,
        install="pip install 'dpfedadamw[mlflow]'",
        needs=("mlflow", "sqlalchemy"),
        place=1,
    )
)
