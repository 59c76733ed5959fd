"""The base of every error that this package raises on purpose."""

from __future__ import annotations


class UntrustedError(ValueError):
    """Something that was read cannot be accepted; the message says why in one line."""
