"""A disk in memory that distinguishes what is read from what would survive the power going.

The model is the weakest that POSIX allows, and weaker than ext4 or XFS, with two mercies that all
file systems in use grant: a sector of 512 bytes is old or new, and a rename is one step.

* Content is safe after the file was synced. Before that, each sector that differs may hold the old
  bytes or the new ones, and beyond the old end zeros or another file's bytes; the file may have any
  length between the old and the new. Syncing a file does not save its name.
* A name that is made, changed or removed is safe after its folder was synced. Before that, each
  change may be there or not, whichever came first: ext4 and XFS would keep their order.
* A process that is killed takes nothing with it: others read what it wrote, synced or not.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from typing import Any

SECTOR = 512


class StoredPath:
    """What the product asks of a path, put together once: pathlib would be half of a schedule.

    Args:
        parts: All its names, "/" first.
        parent: The folder's path; None for the first that is made, below which all others are.
    """

    __slots__ = ("_children", "_hash", "_parent", "below", "name", "parts")

    def __init__(self, parts: tuple[str, ...], parent: StoredPath | None = None) -> None:
        self.parts, self.name, self._parent = parts, parts[-1], parent
        self.below = parts[1:]
        self._hash = hash(parts)
        self._children: dict[str, StoredPath] = {}

    @property
    def parent(self) -> StoredPath:
        if self._parent is None:
            self._parent = StoredPath(self.parts[:-1] or self.parts)
        return self._parent

    @property
    def parents(self) -> list[StoredPath]:
        return [self.parent, *self.parent.parents] if len(self.parts) > 1 else []

    def with_name(self, name: str) -> StoredPath:
        return self.parent / name

    def is_file(self) -> bool:
        """Whether the operating system has such a file, which messages alone are made of: never."""
        return False

    def forget(self) -> None:
        """Forget the paths below, which no later schedule will ask for again."""
        self._children = {}

    def __truediv__(self, name: str) -> StoredPath:
        found = self._children.get(name)
        if found is None:
            found = self._children[name] = StoredPath((*self.parts, name), self)
        return found

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, StoredPath) and self.parts == other.parts)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return "/" + "/".join(self.parts[1:])


class File:
    """A file's bytes: as they are read, and as they are safe."""

    __slots__ = ("content", "durable")

    def __init__(self) -> None:
        self.content = self.durable = b""


class Folder:
    """A folder's names: as they are read, and as they are safe."""

    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = File | Folder
# One step on names: in these folders these names lead to these nodes, or to none, all or nothing.
Change = list[tuple[Folder, str, Node | None]]


def failure(number: int, path: StoredPath) -> OSError:
    """What the operating system would raise."""
    return OSError(number, os.strerror(number), str(path))


class Storage:
    """All files and folders of one machine."""

    def __init__(self) -> None:
        self.root = Folder()
        self.unsafe: list[Change] = []
        self.dirty: set[File] = set()

    def find(self, path: StoredPath) -> Node | None:
        """What is there."""
        node: Any = self.root
        try:
            for name in path.below:
                node = node.names[name]
        except (KeyError, AttributeError):
            # No such name, or it is a file that should be a folder.
            return None
        return node

    def file(self, path: StoredPath) -> File:
        """The file that is there.

        Raises:
            OSError: If there is none.
        """
        node = self.find(path)
        if not isinstance(node, File):
            raise failure(errno.ENOENT if node is None else errno.EISDIR, path)
        return node

    def folder(self, path: StoredPath) -> Folder:
        """The folder that is there.

        Raises:
            OSError: If there is none.
        """
        node = self.find(path)
        if not isinstance(node, Folder):
            raise failure(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def link(
        self, path: StoredPath, node: Node | None, moved_from: StoredPath | None = None
    ) -> None:
        """Let a name lead to a node, or to nothing; the node may lose another name at once."""
        change: Change = []
        if moved_from is not None:
            folder = self.folder(moved_from.parent)
            del folder.names[moved_from.name]
            change.append((folder, moved_from.name, None))
        folder = self.folder(path.parent)
        if node is None:
            del folder.names[path.name]
        else:
            folder.names[path.name] = node
        change.append((folder, path.name, node))
        self.unsafe.append(change)

    def change(self, file: File, content: bytes) -> None:
        """Let a file have other bytes, which are not safe yet."""
        file.content = content
        self.dirty.add(file)

    def sync(self, file: File) -> None:
        """Make a file's bytes safe."""
        file.durable = file.content
        self.dirty.discard(file)

    def sync_folder(self, folder: Folder) -> None:
        """Make a folder's names safe, and with each rename its other end."""
        settled: set[tuple[int, str]] = set()
        left: list[Change] = []
        for change in reversed(self.unsafe):
            for where, _, _ in change:
                if where is folder:
                    break
            else:
                # What a later change has replaced cannot come back.
                if settled:
                    change = [one for one in change if (id(one[0]), one[1]) not in settled]
                if change:
                    left.append(change)
                continue
            for where, name, node in change:
                if (id(where), name) not in settled:
                    _put(where, name, node)
                    settled.add((id(where), name))
        if settled:
            self.unsafe = left[::-1]

    def lose_power(self, rng: random.Random) -> None:
        """Keep what is safe, and of all else what chance keeps."""
        kept = rng.choice((0.0, 0.5, 0.5, 1.0))
        for change in self.unsafe:
            if rng.random() < kept:
                for where, name, node in change:
                    _put(where, name, node)
        self.unsafe = []
        for file in _in_order(self.dirty, self.root):
            file.durable = _torn(file.durable, file.content, rng)
        self.dirty = set()
        for node in _below(self.root):
            if isinstance(node, Folder):
                node.names = dict(node.durable)
            else:
                node.content = node.durable

    def durable(self, path: StoredPath) -> bytes | None:
        """A file's bytes that no crash can take; None if a crash could take or change them."""
        node: Node | None = self.root
        for name in path.below:
            if not isinstance(node, Folder):
                return None
            found = node.durable.get(name)
            for change in self.unsafe:
                for where, changed, other in change:
                    if where is node and changed == name and other is not found:
                        return None
            node = found
        return node.durable if isinstance(node, File) else None


def _put(folder: Folder, name: str, node: Node | None) -> None:
    if node is None:
        folder.durable.pop(name, None)
    else:
        folder.durable[name] = node


def _below(folder: Folder) -> Iterator[Node]:
    """A folder and all in it, by what is safe."""
    yield folder
    for node in folder.durable.values():
        if isinstance(node, Folder):
            yield from _below(node)
        else:
            yield node


def _in_order(files: set[File], root: Folder) -> list[File]:
    """Those of the files that still have a name, in an order that does not depend on addresses."""
    return [node for node in _below(root) if isinstance(node, File) and node in files]


def _torn(old: bytes, new: bytes, rng: random.Random) -> bytes:
    """What the power left of a file that was not synced."""
    drawn = rng.random()
    if drawn < 0.2:
        return old
    if drawn < 0.5:
        return new
    low, high = sorted((len(old), len(new)))
    size = rng.choice((low, high, rng.randint(low, high), rng.randint(low, high)))
    content = bytearray()
    for start in range(0, size, SECTOR):
        before, after = old[start : start + SECTOR], new[start : start + SECTOR]
        sectors = [before, after, after]
        if start >= len(old):
            sectors.append(rng.randbytes(SECTOR))
        content += rng.choice(sectors)[:SECTOR].ljust(SECTOR, b"\0")
    return bytes(content[:size])
