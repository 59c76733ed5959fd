"""Differentially private federated learning that can be believed.

A YAML spec becomes a plan, the plan a run, the run leaves evidence, an independent auditor (package
``audit``) judges the evidence, and the model gets a signed report (package ``reports``).
"""

from __future__ import annotations

import os
import sys

__version__ = "0.1.0"

# pip refuses older ones; a checkout that is run as it lies meets them.
if sys.version_info < (3, 11):  # noqa: UP036
    found = ".".join(map(str, sys.version_info[:3]))
    sys.exit(f"error: dpfedadamw needs Python 3.11 or newer, and this is Python {found}")

# Where torch computes with GNU OpenMP, an idle OpenMP thread spins for milliseconds before it
# sleeps, on a core that the threads of `workers` need by then. The variable is read when torch is
# loaded: a process that loaded torch first, or has set it, keeps its setting.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def __getattr__(name: str) -> object:
    """``dpfedadamw.api`` after ``import dpfedadamw`` alone, which loads nothing by itself."""
    if name == "api":
        import importlib

        return importlib.import_module("dpfedadamw.api")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
