"""Another name of `dpfedadamw.extensions.recorders.trainer`."""

from __future__ import annotations

from dpfedadamw.extensions.recorders.trainer import RecordingCallback

__all__ = ["RecordingCallback"]
