"""Real texts of several people: the changelogs of installed Debian packages, line by line.

`python -m tests.changelogs TABLE.csv` writes a table of the changelogs under `/usr/share/doc`;
`--texts TABLE.csv` writes the items as they stand, for a language model, and
`--descriptions TABLE.csv` the paragraphs of the packages' descriptions. Of the first table each
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
    found = set()
    for author, written in _written(folder):
        text = _PLACE.sub("", _BUGS.sub("", written))
        first, *others = _WORD.findall(text.lower()) or [""]
        words = tuple(word for word in others if word not in _CLASS)
        if first in _CLASS and words:
            found.add(Item(author, _CLASS[first], words))
    return sorted(found)


def texts(folder: Path = Path("/usr/share/doc"), most: int = 50) -> list[tuple[str, str]]:
    """Author and text of items of five words or more as they were written, sorted.

    A text that several people wrote is the first one's alone, and nobody has more than ``most``.
    """
    authors: dict[str, str] = {}
    for author, written in sorted(_written(folder)):
        text = " ".join(written.split())
        if len(text.split()) >= 5:
            authors.setdefault(text, author)
    by_author: dict[str, list[str]] = {}
    for text, author in authors.items():
        by_author.setdefault(author, []).append(text)
    # Which of an author's texts stay follows from a digest of each, not from the alphabet.
    return sorted(
        (author, text)
        for author, written in by_author.items()
        for text in sorted(written, key=lambda one: zlib.crc32(one.encode()))[:most]
    )


def descriptions(status: Path = Path("/var/lib/dpkg/status")) -> list[tuple[str, str]]:
    """Package and text of each paragraph of five words or more in the descriptions, sorted."""
    found = set()
    for package in status.read_text(encoding="utf-8").split("\n\n"):
        name = re.search(r"^Package: (.+)$", package, re.MULTILINE)
        described = re.search(r"^Description: .*\n((?: .*\n?)*)", package, re.MULTILINE)
        for paragraph in described[1].split("\n .\n") if name and described else ():
            text = " ".join(paragraph.split())
            if len(text.split()) >= 5:
                found.add((name[1], text))
    return sorted(found)


def _written(folder: Path) -> Iterator[tuple[str, str]]:
    """Author and text of each item of each version of a source package."""
    versions: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for file in sorted(folder.glob("*/changelog*.gz")):
        for version, found in _versions(
            gzip.decompress(file.read_bytes()).decode(errors="replace")
        ):
            # Packages of one source have the same changelog.
            versions.setdefault(version, found)
    for found in versions.values():
        yield from found


def _versions(text: str) -> Iterator[tuple[tuple[str, str], list[tuple[str, str]]]]:
    version, lines = None, []
    for line in text.splitlines():
        first, signed = _FIRST.match(line), _SIGNED.match(line)
        if first:
            version, lines = (first[1], first[2]), []
        elif signed and version:
            yield version, _items(lines, signed[1])
            version = None
        else:
            lines.append(line)


def _items(lines: list[str], author: str) -> list[tuple[str, str]]:
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if heading := _HEADING.match(line):
            author = heading[1]
        elif item := _ITEM.match(line):
            found.append((author, [item[1]]))
        elif found:
            found[-1][1].append(line.strip())
    return [(who, " ".join(parts)) for who, parts in found]


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


def write_texts(stream: TextIO, found: list[tuple[str, str]]) -> None:
    """Write a CSV table with author and text, or package and text."""
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(["author", "text"])
    rows.writerows(found)


def main(arguments: list[str]) -> int:
    """Write the table to the file that is named."""
    kind, name = ("", *arguments)[-2:]
    found = {"": items, "--texts": texts, "--descriptions": descriptions}[kind]()
    with Path(name).open("w", encoding="utf-8") as stream:
        (write_texts if kind else write_table)(stream, found)
    authors = {one[0] if kind else one.author for one in found}
    print(f"{len(found):,} items by {len(authors):,} authors")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
