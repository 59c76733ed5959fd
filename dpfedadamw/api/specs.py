"""A spec as the functions of this folder take it: a file, a shipped one's name, or a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedadamw import spec as specs
from dpfedadamw.spec import Spec

# A file, the name of a shipped spec, what a YAML file would hold, or a spec that was read before.
SpecLike = str | Path | Mapping[str, Any] | Spec


def read(spec: SpecLike, changes: Sequence[str] = ()) -> Spec:
    """Read a spec and check it.

    Args:
        spec: A file, the name of a shipped spec, or what a YAML file would hold.
        changes: ``dotted.path=value`` each, as ``--set`` takes them.

    Raises:
        SpecError: With all that is wrong.
    """
    if isinstance(spec, Spec):
        spec = spec.to_mapping()
    if isinstance(spec, Mapping):
        return specs.from_mapping(spec, changes)
    return specs.load(spec, changes)
