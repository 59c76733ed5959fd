"""Loads all modules of the product into a process, of which tests are then forks.

To start Python and load torch takes seconds, and what a command loads when it needs it takes most
of the rest; a fork of a process that has loaded everything takes milliseconds.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

from dpfedadamw import cli


def load_every_module() -> None:
    """Load all commands and modules, and compute nothing, so that no thread is started.

    Modules for what is not installed are left out.
    """
    cli.every_command()
    for package in ("audit", "dpfedadamw", "reports"):
        folder = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(folder, f"{package}.", onerror=lambda name: None):
            if not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
