"""Commands of the extensions that are installed: found by their folders, named nowhere else."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parents[1] / "extensions"
_PACKAGE = "dpfedadamw.extensions"


def commands_of(name: str) -> ModuleType | None:
    """The commands of an extension; None where it is not there or has none."""
    if not (_FOLDER / name).is_dir() or find_spec(f"{_PACKAGE}.{name}.commands") is None:
        return None
    return import_module(f"{_PACKAGE}.{name}.commands")


def installed() -> Iterator[ModuleType]:
    """The commands of every extension, by the extensions' names."""
    for name in sorted(found.name for found in pkgutil.iter_modules([str(_FOLDER)])):
        if (commands := commands_of(name)) is not None:
            yield commands
