"""The error of this folder."""

from __future__ import annotations

from dpfedadamw.errors import DpfedadamwError


class DeploymentError(DpfedadamwError):
    """A federation cannot be set up, led, joined or collected."""
