"""Another name of `dpfedadamw.extensions.recorders.gradients`."""

from __future__ import annotations

from dpfedadamw.extensions.recorders.gradients import GradientRecorder, MeanOfRecords

__all__ = ["GradientRecorder", "MeanOfRecords"]
