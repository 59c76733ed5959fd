"""A spec as the functions of this folder take it: a file, a shipped one's name, or a dictionary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfedadamw import spec as specs
from dpfedadamw.errors import SpecError
from dpfedadamw.spec import Spec, checks, overrides, reading

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


def named(spec: SpecLike, changes: Sequence[str], section: str) -> str | None:
    """The name that a section has; None where it has none, or the text cannot be read.

    The spec is not checked: it may be complete only with further changes.

    Args:
        spec: As in `read`.
        changes: As in `read`.
        section: ``model`` or ``algorithm``.
    """
    if isinstance(spec, Spec):
        spec = spec.to_mapping()
    try:
        document = checks.from_mapping(spec) if isinstance(spec, Mapping) else reading.read(spec)
        overrides.apply(document, changes)
    except SpecError:
        return None
    whole: Any = document.value if isinstance(document.value, dict) else {}
    found = whole.get(section)
    name = found.get("name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None
