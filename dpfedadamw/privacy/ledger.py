"""The privacy ledger: an append-only, hash-chained record of every query that was paid for.

It is written ahead: a round's spends are on disk before its first noise is drawn. A crash can make
the ledger count too much, never too little.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpfedadamw.errors import PrivacyError

GENESIS = "0" * 64


def canonical(entry: Mapping[str, Any]) -> bytes:
    """The one byte form of an entry: sorted keys, no spaces, UTF-8, finite numbers."""
    text = json.dumps(
        entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


class Ledger:
    """Appends entries; each carries the hash of the line before and a digest of itself.

    Args:
        path: The file; created empty if missing, continued if it exists.

    Raises:
        PrivacyError: If an existing ledger's chain is broken.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._previous = GENESIS
        self.entries: list[dict[str, Any]] = []
        if path.exists():
            self._recover()
        else:
            path.touch()

    def append(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Append one entry and wait until it is on disk."""
        self.append_all(kind, [fields])

    def append_all(self, kind: str, many: Iterable[Mapping[str, Any]]) -> None:
        """Append entries of one kind and wait, once, until all are on disk."""
        lines = []
        for fields in many:
            entry: dict[str, Any] = {**fields, "kind": kind, "previous": self._previous}
            entry["digest"] = hashlib.sha256(canonical(entry)).hexdigest()
            line = canonical(entry)
            self._previous = hashlib.sha256(line).hexdigest()
            self.entries.append(entry)
            lines.append(line + b"\n")
        # Unbuffered append and fsync: when this returns, a crash cannot forget the spend.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            content = b"".join(lines)
            if os.write(descriptor, content) != len(content):
                raise PrivacyError(f"{self._path}: the disk is full; no query was made")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """All entries of one kind, in order."""
        return [entry for entry in self.entries if entry["kind"] == kind]

    def _recover(self) -> None:
        content = self._path.read_bytes()
        # A last line without its newline was being written when the run ended: its noise was never
        # drawn, because drawing waits for the line. It is dropped.
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with self._path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                unsigned = {key: value for key, value in entry.items() if key != "digest"}
                good = (
                    entry["previous"] == self._previous
                    and entry["digest"] == hashlib.sha256(canonical(unsigned)).hexdigest()
                )
            except (ValueError, KeyError, TypeError, AttributeError):
                good = False
            if not good:
                raise PrivacyError(
                    f"{self._path}, line {number}: the hash chain is broken, it was changed "
                    "after it was written; this run cannot be continued"
                )
            self.entries.append(entry)
            self._previous = hashlib.sha256(line).hexdigest()
