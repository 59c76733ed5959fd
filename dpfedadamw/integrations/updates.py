"""Another name of `dpfedadamw.extensions.recorders.updates`."""

from __future__ import annotations

from dpfedadamw.extensions.recorders.updates import (
    SumOfUpdates,
    UpdateRecorder,
    UpdateRecorderError,
)

__all__ = ["SumOfUpdates", "UpdateRecorder", "UpdateRecorderError"]
