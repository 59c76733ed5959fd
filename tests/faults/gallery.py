"""The gallery: every fault that the audit must catch, in groups.

A file of this folder whose name ends in `_faults` declares one group, as `GROUP`; it is found by
its name, so that a new group is one new file.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.faults.fault import Fault, FaultGroup

_FILES = Path(__file__).parent.glob("*_faults.py")
_DECLARED: list[FaultGroup] = [
    import_module(f"tests.faults.{path.stem}").GROUP
    for path in sorted(_FILES)
    if not path.stem.startswith("test_")
]
GROUPS: tuple[FaultGroup, ...] = tuple(sorted(_DECLARED, key=lambda group: group.place))
GALLERY: tuple[Fault, ...] = tuple(fault for group in GROUPS for fault in group.faults)
