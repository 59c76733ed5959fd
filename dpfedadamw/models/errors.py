"""What models complain of."""

from __future__ import annotations

from dpfedadamw.errors import DpfedadamwError


class ModelError(DpfedadamwError):
    """A model cannot be built: it does not fit the data, or what it is built from is missing."""
