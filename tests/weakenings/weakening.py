"""One edit that must not pass, and how it is made in a copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Weakening:
    """One edit that must not pass.

    Attributes:
        name: What it is called.
        file: The file, from the repository's root.
        old: Text that stands there once.
        new: What takes its place.
        loses: What a user loses by it.
        tests: Files of tests, or single tests, one of which fails. They run in this order, so the
            one that is meant for it comes first.
    """

    name: str
    file: str
    old: str
    new: str
    loses: str
    tests: tuple[str, ...]


def applied(one: Weakening, folder: Path) -> None:
    """Make the edit in a copy.

    Raises:
        ValueError: If its text does not stand in the file exactly once.
    """
    path = folder / one.file
    text = path.read_text("utf-8")
    if text.count(one.old) != 1:
        raise ValueError(f"{one.name}: its text stands {text.count(one.old)} times in {one.file}")
    path.write_text(text.replace(one.old, one.new), "utf-8")
