"""Real texts of several people: the changelogs of installed Debian packages, line by line.

`python -m tests.changelogs TABLE.csv` writes a table of the changelogs under `/usr/share/doc`. Each
row is one item of a changelog ("* d/control: Drop the dependency on …"), its author is the person
whose signature or `[ Name ]` heading it stands under, and its class is the kind of change that its
first word names. An author has one item to many hundreds.

The class is taken from a verb, so the words that name a class are removed wherever they stand. What
is left is counted in columns by a hash of each word, and scaled to length 1. Items without one of
these verbs are left out, and equal items of one author count once.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

COLUMNS = 256
CHANGES = {
    "add": "add adds added adding include includes included enable enables enabled introduce",
    "fix": "fix fixes fixed fixing correct corrects corrected avoid avoids avoided",
    "remove": "remove removes removed removing drop drops dropped dropping disable disables "
    "disabled delete deletes deleted",
    "update": "update updates updated updating bump bumps bumped upgrade upgraded refresh "
    "refreshes refreshed",
}
_CLASS = {verb: change for change, verbs in CHANGES.items() for verb in verbs.split()}
_FIRST = re.compile(r"(\S+) \((\S+)\) [^;]+;")
_SIGNED = re.compile(r" -- (.*?) <[^>]*>  ")
_HEADING = re.compile(r"\s+\[ (.+?) \]\s*$")
_ITEM = re.compile(r"  [*] (.+)$")
_BUGS = re.compile(r"\(?\s*\b(closes?|lp)\b\s*:.*$", re.IGNORECASE)
_PLACE = re.compile(r"^\S+:\s+")
_WORD = re.compile(r"[a-z]{2,}")


@dataclass(frozen=True, order=True)
class Item:
    """One item of a changelog: who wrote it, which kind of change it is, and its other words."""

    author: str
    change: str
    words: tuple[str, ...]


def items(folder: Path = Path("/usr/share/doc")) -> list[Item]:
    """The items of all changelogs in the folders of this folder, each once, in order."""
    files = sorted(folder.glob("*/changelog*.gz"))
    versions = {}
    for file in files:
        for version, found in _versions(
            gzip.decompress(file.read_bytes()).decode(errors="replace")
        ):
            # Packages of one source have the same changelog.
            versions.setdefault(version, found)
    return sorted({item for found in versions.values() for item in found})


def _versions(text: str) -> Iterator[tuple[tuple[str, str], list[Item]]]:
    version, lines = None, []
    for line in text.splitlines():
        first, signed = _FIRST.match(line), _SIGNED.match(line)
        if first:
            version, lines = (first[1], first[2]), []
        elif signed and version:
            yield version, list(_items(lines, signed[1]))
            version = None
        else:
            lines.append(line)


def _items(lines: list[str], author: str) -> Iterator[Item]:
    texts: list[tuple[str, list[str]]] = []
    for line in lines:
        if heading := _HEADING.match(line):
            author = heading[1]
        elif item := _ITEM.match(line):
            texts.append((author, [item[1]]))
        elif texts:
            texts[-1][1].append(line.strip())
    for who, parts in texts:
        text = _PLACE.sub("", _BUGS.sub("", " ".join(parts)))
        first, *others = _WORD.findall(text.lower()) or [""]
        words = tuple(word for word in others if word not in _CLASS)
        if first in _CLASS and words:
            yield Item(who, _CLASS[first], words)


def write_table(stream: TextIO, found: list[Item], columns: int = COLUMNS) -> None:
    """Write a CSV table with author, change and the counts of hashed words."""
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(["author", "change", *(f"w{column}" for column in range(columns))])
    for item in found:
        counts = np.zeros(columns)
        for word in set(item.words):
            counts[zlib.crc32(word.encode()) % columns] += 1.0
        counts /= np.linalg.norm(counts)
        rows.writerow([item.author, item.change, *(f"{count:.4g}" for count in counts)])


def main(arguments: list[str]) -> int:
    """Write the table to the file that is named."""
    found = items()
    with Path(arguments[0]).open("w", encoding="utf-8") as stream:
        write_table(stream, found)
    print(f"{len(found):,} items by {len({item.author for item in found}):,} authors")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
