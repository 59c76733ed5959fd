"""The error of this package: a data set that cannot be read or used, told in one line."""

from __future__ import annotations

from dpfedadamw.errors import DpfedadamwError


class DataError(DpfedadamwError):
    """A data set cannot be read or used."""
