"""Another name of `dpfedadamw.extensions.recorders.flower`."""

from __future__ import annotations

from dpfedadamw.extensions.recorders.flower import RecordedLocalDp, record_strategy

__all__ = ["RecordedLocalDp", "record_strategy"]
