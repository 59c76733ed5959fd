"""The specs that ship with the package, and the JSON Schema they follow.

Resources only: the engine reads and checks them. A spec's name is its path in this folder without
the ending, joined by hyphens: `digits/cnn.yaml` is `digits-cnn`. It is also found as `digits/cnn`.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

_ENDING = ".yaml"


def spec_files() -> dict[str, Traversable]:
    """Return every shipped spec's file by name, in alphabetical order."""
    return dict(sorted(_walk(files(__name__), "").items()))


def find(name: str) -> Traversable | None:
    """Return the file of the shipped spec of that name, or None."""
    return spec_files().get(name.replace("/", "-"))


def schema_text() -> str:
    """Return the text of the JSON Schema of a spec."""
    schema = files(__name__).joinpath("schema", "experiment.schema.json")
    return schema.read_text(encoding="utf-8")


def _walk(folder: Traversable, prefix: str) -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for entry in folder.iterdir():
        if entry.is_dir():
            found |= _walk(entry, f"{prefix}{entry.name}-")
        elif entry.name.endswith(_ENDING):
            found[prefix + entry.name.removesuffix(_ENDING)] = entry
    return found
