"""The numbered sections of a report on one run: one file each, which registers itself.

A file has what its section says (its parts of report.json), shows (its blocks and figures) and
where it stands. Nothing lists them; whatever file lies in this folder is a section.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def load_all() -> None:
    """Import every file of this folder, so that each registers its section."""
    for found in iter_modules(__path__, f"{__name__}."):
        import_module(found.name)
