"""The specs that ship with the package, and the JSON Schema they follow.

Resources only: the engine reads and checks them. A spec's name is its path in this folder without
the ending, joined by hyphens: `digits/cnn.yaml` is `digits-cnn`. It is also found as `digits/cnn`.
The folders of `SWEEP_FOLDERS` hold sweeps: each file means many runs.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

_ENDING = ".yaml"
# What the sweeps in each folder are, for lists.
SWEEP_FOLDERS = {
    "paper": "tables and figures of the papers",
    "replication": "comparisons that two cores can run",
}


def spec_files() -> dict[str, Traversable]:
    """Return the file of every shipped spec of one run by name, in alphabetical order."""
    return {name: file for name, file in _all().items() if folder_of(name) not in SWEEP_FOLDERS}


def sweep_files() -> dict[str, Traversable]:
    """Return the file of every shipped sweep by name; tables 2 to 11 in this order."""
    found = {name: file for name, file in _all().items() if folder_of(name) in SWEEP_FOLDERS}
    return dict(sorted(found.items(), key=lambda item: _by_number(item[0])))


def find(name: str) -> Traversable | None:
    """Return the file of the shipped spec or sweep of that name, or None."""
    return _all().get(name.replace("/", "-"))


def folder_of(name: str) -> str:
    """The first folder of a shipped spec's path; its name where it is in none."""
    return name.partition("-")[0]


def _all() -> dict[str, Traversable]:
    return dict(sorted(_walk(files(__name__), "").items()))


def _by_number(name: str) -> list[tuple[int, str]]:
    """What sorts names with numbers in them as their readers count."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split("-")]


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
