"""TensorBoard: event files, by torch's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpfedadamw.extensions.trackers.tracking import Setting, TrackerEntry, register


class TensorBoard:
    """One folder of event files a run.

    Args:
        folder: For all runs.
        run: The run's identifier.
    """

    def __init__(self, folder: Path, run: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Its name would else have the machine's in it.
        self._writer: Any = SummaryWriter(
            str(folder / "tensorboard" / run), filename_suffix=".dpfedadamw"
        )

    def settings(self, values: Mapping[str, Setting]) -> None:
        """Write the settings as a table."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in values.items())
        self._writer.add_text("spec", f"| key | value |\n|---|---|\n{rows}")

    def round(self, completed: int, values: Mapping[str, float]) -> None:
        """Write a point of each curve."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, completed)
        self._writer.flush()

    def finish(self, values: Mapping[str, Setting]) -> None:
        """Write what the run came to."""
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value)
            else:
                self._writer.add_scalar(name, float(value), 0)
        self._writer.close()


register(
    TrackerEntry(
        name="tensorboard",
        summary="event files in tracking/tensorboard/RUN",
        open=TensorBoard,
        install="pip install 'dpfedadamw[tensorboard]'",
        needs=("tensorboard",),
        place=0,
    )
)
