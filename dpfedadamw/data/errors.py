"""The name by which data sets of other packages import their error; nothing here does."""

from __future__ import annotations

from dpfedadamw.errors import DataError

__all__ = ["DataError"]
