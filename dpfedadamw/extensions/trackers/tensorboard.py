"""TensorBoard: event files."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfedadamw.extensions.trackers.tracking import Setting, TrackerEntry, register


class TensorBoard:
    """One folder of event files a run.

    The library's own writers name a file after the machine, which nobody is told here.

    Args:
        folder: For all runs.
        run: The run's identifier.
    """

    def __init__(self, folder: Path, run: str) -> None:
        event: Any = import_module("tensorboard.compat.proto.event_pb2")
        writer: Any = import_module("tensorboard.summary.writer.record_writer")
        form: Any = import_module("torch.utils.tensorboard.summary")
        place = folder / "tensorboard" / run
        place.mkdir(parents=True, exist_ok=True)
        # The time comes first: files are read in the order of their names.
        name = f"events.out.tfevents.{time.time():.0f}.{secrets.token_hex(4)}.dpfedadamw"
        self._event, self._form = event.Event, form
        self._file = writer.RecordWriter((place / name).open("xb"))
        self._write(file_version="brain.Event:2")

    def settings(self, values: Mapping[str, Setting]) -> None:
        """Write the settings as a table."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in values.items())
        self._write(summary=self._form.text("spec", f"| key | value |\n|---|---|\n{rows}"))

    def round(self, completed: int, values: Mapping[str, float]) -> None:
        """Write a point of each curve."""
        for name, value in values.items():
            self._write(step=completed, summary=self._form.scalar(name, value))
        self._file.flush()

    def finish(self, values: Mapping[str, Setting]) -> None:
        """Write what the run came to."""
        for name, value in values.items():
            if isinstance(value, str):
                self._write(summary=self._form.text(name, value))
            else:
                self._write(summary=self._form.scalar(name, float(value)))
        self._file.close()

    def _write(self, **content: Any) -> None:
        event = self._event(wall_time=time.time(), **content)
        self._file.write(event.SerializeToString())


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
