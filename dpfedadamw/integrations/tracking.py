"""Another name of `dpfedadamw.extensions.trackers.tracking`."""

from __future__ import annotations

from dpfedadamw.extensions.trackers.tracking import (
    Setting,
    Tracker,
    TrackerEntry,
    TrackerError,
    register,
)

__all__ = ["Setting", "Tracker", "TrackerEntry", "TrackerError", "register"]
