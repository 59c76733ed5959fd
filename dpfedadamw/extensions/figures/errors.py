"""Why a figure cannot be drawn."""

from __future__ import annotations

from dpfedadamw.errors import DpfedadamwError


class FigureError(DpfedadamwError):
    """A run does not have what a figure needs, or it cannot be written; the message says why."""
