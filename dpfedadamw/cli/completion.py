"""What a shell completes: names of specs, keys of ``--set``, folders of runs.

`dpfedadamw --install-completion` sets a shell up for it. A completer may never fail, nor print.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_MOST = 200


def specs(incomplete: str) -> list[str]:
    """Shipped specs by name, and YAML files."""
    from specs import spec_files

    names = [name for name in spec_files() if name.startswith(incomplete)]
    return [*names, *_paths(incomplete, lambda path: path.suffix in (".yaml", ".yml"))][:_MOST]


def keys(incomplete: str) -> list[str]:
    """Dotted keys of a spec, with the equals sign; for a complete key, its possible values."""
    from dpfedadamw import spec
    from dpfedadamw.spec.fields import describe

    name, given, value = incomplete.partition("=")
    found: dict[str, list[str]] = {}
    for field in describe(spec.schema()):
        words = field.range.split(" | ") if " | " in field.range else []
        choices = [one for one in words if one.replace("-", "_").isidentifier()]
        found.setdefault(field.path, []).extend(choices)
    if given:
        choices_of = dict.fromkeys(found.get(name, []))
        return [f"{name}={one}" for one in choices_of if one.startswith(value)]
    # Keys of a list's items follow the item's number, which the shell does not know.
    return [f"{path}=" for path in found if path.startswith(name) and "[]" not in path][:_MOST]


def runs(incomplete: str) -> list[str]:
    """Run directories: below ``runs``, or where the path begins."""
    begun = incomplete or "runs/"
    return _paths(begun, lambda path: (path / "ledger.jsonl").is_file())[:_MOST]


def _paths(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    """Paths with this beginning: folders on the way, and the files that are wanted."""
    folder, _, name = incomplete.rpartition("/")
    place = Path(folder or ("/" if incomplete.startswith("/") else "."))
    prefix = f"{folder}/" if "/" in incomplete else ""
    try:
        entries = sorted(one for one in place.iterdir() if one.name.startswith(name))
        shown = [one for one in entries if name.startswith(".") or not one.name.startswith(".")]
        return [
            f"{prefix}{one.name}{'/' if one.is_dir() and not wanted(one) else ''}"
            for one in shown
            if wanted(one) or one.is_dir()
        ]
    except OSError:
        return []
