"""Every query is on the disk before its noise is drawn, in a chain that shows any later change.

It is written ahead: a round's spends are on disk before its first noise is drawn. A crash can make
the ledger count too much, never too little.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfedadamw.errors import PrivacyError
from dpfedadamw.privacy.noise.key_tree import NO_HISTORY
from dpfedadamw.storage.disk import DISK, PUBLIC_MODE, Disk, append, settle
from dpfedadamw.storage.foreign import parse

GENESIS = "0" * 64
# Made once: a short line takes less time than making its encoder.
_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)
_CHAIN = frozenset(("previous", "digest"))
# The part of a finished round that an auditor can recompute, and that is therefore in the history.
_EXCHANGED = (
    "round", "clients", "steps", "queries", "broadcast_sha256", "uploads_sha256", "released_sha256",
)  # fmt: skip
# Names of a line's fields, each combination once.
_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {}


def canonical(entry: Mapping[str, Any]) -> bytes:
    """The one byte form of an entry: sorted keys, no spaces, UTF-8, finite numbers."""
    return _CANONICAL.encode(entry).encode()


def extended(history: bytes, entry: Mapping[str, Any]) -> bytes:
    """The history after one more entry: a hash chain over charges and finished rounds.

    Noise is bound to it, so that none can exist before its round was charged and the round before
    was exchanged. Only what an auditor computes again is in it: of the chain that holds all fields
    a trainer could choose some, such as a time, until the noise suited.

    Args:
        history: The history so far, 32 bytes.
        entry: The ledger's next, with or without its chain.
    """
    if entry["kind"] in ("spend", "query"):
        counted = {name: entry[name] for name in entry if name not in _CHAIN}
    elif entry["kind"] == "round":
        counted = {name: entry[name] for name in _EXCHANGED if name in entry}
    else:
        return history
    return hashlib.sha256(history + canonical(counted)).digest()


class Spend(Mapping[str, Any]):
    """A line that was paid, without its chain, in a third of the memory that a dictionary takes.

    A run has one for each client and round, and keeps them all.
    """

    __slots__ = ("_names", "_values")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        names = tuple(name for name in fields if name not in _CHAIN)
        self._names = _NAMES.setdefault(names, names)
        self._values = tuple(fields[name] for name in names)

    def __getitem__(self, name: str) -> Any:
        """The value of a field."""
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise KeyError(name) from None

    def __iter__(self) -> Iterator[str]:
        """The names of the fields."""
        return iter(self._names)

    def __len__(self) -> int:
        """How many fields there are."""
        return len(self._names)


class Ledger:
    """Appends entries; each carries the hash of the line before and a digest of itself.

    Args:
        path: The file; created empty if missing, continued if it exists.
        disk: Where it lies.
        synced: How many of its first bytes are known to have reached the disk. What a crash left
            torn behind them paid for nothing, and is cut off. None if it is not known; then only a
            last line without its end is.

    Attributes:
        entries: Its lines in order; those of kind "spend" without their chain.
        size: Bytes written.
        history: Digest of what was charged and exchanged so far, 32 bytes; see `extended`.

    Raises:
        PrivacyError: If an existing ledger's chain is broken.
    """

    def __init__(self, path: Path, disk: Disk = DISK, synced: int | None = None) -> None:
        self._path = path
        self._disk = disk
        self._previous = GENESIS
        self.entries: list[Mapping[str, Any]] = []
        self.size = 0
        self.history = NO_HISTORY
        if disk.is_file(path):
            self._recover(synced)
        else:
            disk.close(disk.create(path, PUBLIC_MODE))
            disk.sync_folder(path.parent)

    def append(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append one entry and wait until it is on disk."""
        self.append_all(kind, [fields])

    def append_all(self, kind: str, many: Iterable[Mapping[str, Any]]) -> None:
        """Append entries of one kind and wait, once, until all are on disk."""
        previous, entries, lines, history = self._previous, [], [], self.history
        for fields in many:
            plain = {name: fields[name] for name in fields if name not in _CHAIN}
            entry: dict[str, Any] = {**plain, "kind": kind, "previous": previous}
            entry["digest"] = hashlib.sha256(canonical(entry)).hexdigest()
            line = canonical(entry)
            previous = hashlib.sha256(line).hexdigest()
            entries.append(_kept(entry))
            history = extended(history, entry)
            lines.append(line + b"\n")
        # When this returns, a crash cannot forget the spend. If it fails, what was written of it is
        # dropped or counted when the ledger is opened again, and this one is not used any more.
        content = b"".join(lines)
        append(self._path, content, self.size, self._disk)
        self._previous = previous
        self.history = history
        self.entries += entries
        self.size += len(content)

    def of_kind(self, kind: str) -> list[Mapping[str, Any]]:
        """All entries of one kind, in order."""
        return [entry for entry in self.entries if entry["kind"] == kind]

    def _recover(self, synced: int | None) -> None:
        content = self._disk.read(self._path)
        for number, line in enumerate(content.split(b"\n")[:-1], start=1):
            entry = self._entry(line)
            if entry is None:
                if synced is not None and self.size >= synced:
                    break
                raise PrivacyError(
                    f"{self._path}, line {number}: the hash chain is broken: the file was changed "
                    "after it was written; this run cannot be continued"
                )
            self.entries.append(_kept(entry))
            self._previous = hashlib.sha256(line).hexdigest()
            self.history = extended(self.history, entry)
            self.size += len(line) + 1
        if synced is not None and self.size < synced:
            raise PrivacyError(
                f"{self._path}: {synced - self.size} bytes that were written are missing at its "
                "end; this run cannot be continued"
            )
        # What follows was being written when the run ended: its noise was never drawn, because
        # drawing waits until the line is on the disk.
        if self.size != len(content):
            self._disk.cut(self._path, self.size)
        # Lines of a writer that was killed may have been read from memory alone.
        settle(self._path, self._disk)

    def _entry(self, line: bytes) -> dict[str, Any] | None:
        """The next line's entry; None if it does not continue the chain."""
        try:
            entry: dict[str, Any] = parse(line, self._path.name)
            unsigned = {key: value for key, value in entry.items() if key != "digest"}
            good = (
                entry["previous"] == self._previous
                and entry["digest"] == hashlib.sha256(canonical(unsigned)).hexdigest()
                and canonical(entry) == line
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return entry if good else None


def _kept(entry: dict[str, Any]) -> Mapping[str, Any]:
    """A line as it is kept in memory."""
    return Spend(entry) if entry["kind"] == "spend" else entry
