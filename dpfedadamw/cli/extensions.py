"""Commands of the extensions that are installed: found by their folders, named nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).parents[1] / "extensions"


def installed() -> Iterator[ModuleType]:
    """The commands of every extension, by the extensions' names; nothing else of it is imported."""
    found = [*_FOLDER.glob("*/commands.py"), *_FOLDER.glob("*/commands/__init__.py")]
    for name in sorted(path.relative_to(_FOLDER).parts[0] for path in found):
        yield import_module(f"dpfedadamw.extensions.{name}.commands")
