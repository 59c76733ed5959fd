"""Weights & Biases, offline: files that `wandb sync` sends once somebody wants them sent."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfedadamw.extensions.trackers.tracking import Setting, TrackerEntry, register


class WandB:
    """One offline run of the project dpfedadamw.

    Nothing of the machine, its load, the code or the terminal is kept: they would tell of a round
    what no metric may.

    Args:
        folder: For all runs.
        run: The run's identifier.
    """

    def __init__(self, folder: Path, run: str) -> None:
        library: Any = import_module("wandb")
        place = folder / "wandb"
        place.mkdir(parents=True, exist_ok=True)
        settings = library.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
        )
        self._run = library.init(
            mode="offline", project="dpfedadamw", name=run, dir=str(place), settings=settings
        )

    def settings(self, values: Mapping[str, Setting]) -> None:
        """Keep the settings as the run's configuration."""
        self._run.config.update(dict(values))

    def round(self, completed: int, values: Mapping[str, float]) -> None:
        """Log a point of each curve."""
        self._run.log(dict(values), step=completed)

    def finish(self, values: Mapping[str, Setting]) -> None:
        """Keep what the run came to in its summary, and end it."""
        self._run.summary.update(dict(values))
        self._run.finish(exit_code=0 if values else 1)


register(
    TrackerEntry(
        name="wandb",
        summary="an offline run in tracking/wandb, for wandb sync",
        open=WandB,
        install="pip install 'dpfedadamw[wandb]'",
        needs=("wandb",),
        place=2,
    )
)
