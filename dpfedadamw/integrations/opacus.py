"""Another name of `dpfedadamw.extensions.recorders.opacus`."""

from __future__ import annotations

from dpfedadamw.extensions.recorders.opacus import Recorder, RecorderError

__all__ = ["Recorder", "RecorderError"]
