"""What a finished run left for computing it again: its ledger, and the keys that an auditor holds.

`PastLedger` says what stood in the ledger when each round began; `Keys` which participations can be
computed again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dpfedadamw.privacy.ledger import Ledger
from dpfedadamw.privacy.noise.key_tree import NO_COIN, PublicCoin
from dpfedadamw.privacy.noise.randomness import (
    OpenedRandomness,
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
)
from dpfedadamw.reexecution.results import ReexecutionError
from dpfedadamw.storage.disk import Disk, OpenFile
from dpfedadamw.storage.foreign import read_json_lines

_CHAIN = ("kind", "previous", "digest")

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class PastRound:
    """A finished round, as the ledger tells it.

    Attributes:
        entry: Its line.
        before: How many lines stood in the ledger when its last attempt was charged.
        charges: The lines of that charge.
        attempt: Which attempt it was.
        commitment: Of the key that drew its noise; None in reproducible mode.
    """

    entry: Entry
    before: int
    charges: tuple[Entry, ...]
    attempt: int
    commitment: str | None


class PastLedger:
    """The lines of a run's ledger, none of them trusted.

    Args:
        path: The file.

    Raises:
        ReexecutionError: If it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.entries: list[Entry] = list(read_json_lines(path))
            self.header = next(entry for entry in self.entries if entry["kind"] == "header")
            self.claims = [entry for entry in self.entries if entry["kind"] == "claim"]
            self.rounds = dict(_rounds(self.entries))
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ReexecutionError(
                f"{path}: cannot be read ({reason}); audit the run first"
            ) from None

    def state_digest(self, completed: int) -> str | None:
        """Sha256 (hex) of the state after so many rounds; None where the ledger names none."""
        past = self.rounds.get(completed - 1)
        return None if past is None else past.entry.get("state_sha256")

    def as_it_stood(self, before: int, folder: Path) -> Ledger:
        """A ledger of one's own with the first lines of this one.

        Args:
            before: How many.
            folder: Where its file is made.
        """
        handle = Path(tempfile.mkdtemp(dir=folder)) / "ledger.jsonl"
        ledger = Ledger(handle, _Hasty())
        for kind, many in groupby(self.entries[:before], key=lambda entry: entry["kind"]):
            append(ledger, str(kind), many)
        return ledger


def append(ledger: Ledger, kind: str, entries: Iterable[Entry]) -> None:
    """Append entries of another ledger, whose chain is left behind."""
    ledger.append_all(kind, [plain(entry) for entry in entries])


def plain(entry: Entry) -> dict[str, Any]:
    """An entry without its kind and its chain."""
    return {name: value for name, value in entry.items() if name not in _CHAIN}


class _Hasty(Disk):
    """A disk for files that nobody needs after a crash."""

    def sync(self, file: OpenFile) -> None:
        """Do not wait."""

    def sync_folder(self, path: Path) -> None:
        """Do not wait."""


def _rounds(entries: Sequence[Entry]) -> Iterable[tuple[int, PastRound]]:
    """Every finished round by its number; of one that was repeated, the last time."""
    commitment: str | None = None
    charged: dict[int, tuple[int, list[Entry], str | None]] = {}
    for place, entry in enumerate(entries):
        kind = entry["kind"]
        if kind in ("header", "resume"):
            commitment = entry.get("commitment")
        elif kind == "spend":
            index = int(entry["round"])
            at, lines, _ = charged.get(index, (place, [], None))
            if lines and lines[-1]["attempt"] != entry["attempt"]:
                at, lines = place, []
            charged[index] = (at, [*lines, entry], commitment)
        elif kind == "round":
            index = int(entry["round"])
            at, lines, key = charged.pop(index, (place, [], commitment))
            attempt = int(lines[-1]["attempt"]) if lines else 1
            yield index, PastRound(entry, at, tuple(lines), attempt, key)


@dataclass(frozen=True)
class Keys:
    """Gives the streams of a run, as often as they are asked for.

    Attributes:
        source: The streams of the key with a commitment, None in reproducible mode; raises
            ReexecutionError where there is no such key.
        opened: Round and client of the leaf keys that are there, client -1 being the server; None
            where the keys open everything.
    """

    source: Callable[[str | None], RandomSource]
    opened: frozenset[tuple[int, int]] | None = None

    def open(self, round: int, clients: Iterable[int]) -> bool:
        """Whether the streams of all these clients in a round are there."""
        return self.opened is None or self.opened.issuperset((round, one) for one in clients)


def escrowed(files: Sequence[Path], coin: PublicCoin = NO_COIN) -> Keys:
    """Keys from escrow: of a run that was cut off, one for each time that it was taken up.

    Args:
        files: Written by ``run --escrow`` or ``challenge intent --escrow``.
        coin: What an auditor's nonce binds the streams to, if there is one.

    Raises:
        PrivacyError: If a file cannot be read, or holds no key.
    """
    every = [key for path in files for key in ReleaseRandomness.all_from_escrow(path, coin)]
    known = {key.commitment: key for key in every}

    def source(commitment: str | None) -> RandomSource:
        key = known.get(commitment or "")
        if key is None:
            raise ReexecutionError(
                "the escrow holds no key with the commitment that the ledger names; give the file "
                "that `run --escrow` wrote for this run. A run that was cut off draws another key "
                "when it goes on, which `run --resume RUN_DIR --escrow FILE` adds to the file"
            )
        return OpenedRandomness(key.leaf, key.coin)

    return Keys(source)


def opened(leaves: Mapping[tuple[int, int], bytes], coin: PublicCoin) -> Keys:
    """Leaf keys that a trainer opened for a draw, whose commitments whoever read them has checked.

    Args:
        leaves: 32 bytes each, by round and client; client -1 is the server.
        coin: What the streams are bound to.
    """
    source = OpenedRandomness(lambda round, client: leaves.get((round, client)), coin)
    return Keys(lambda _: source, frozenset(leaves))


def published(seed: int) -> Keys:
    """The seed of a reproducible run, which its spec names."""
    return Keys(lambda _: ReproducibleRandomness(seed))


def held(key: RandomSource) -> Keys:
    """The key that this process has trained with.

    Args:
        key: Where the run's streams came from.
    """
    if isinstance(key, ReproducibleRandomness):
        return published(key.seed)

    def source(commitment: str | None) -> RandomSource:
        if not isinstance(key, ReleaseRandomness) or commitment != key.commitment:
            raise ReexecutionError(
                "the key of rounds before the run was cut off is gone; `run --escrow` keeps it"
            )
        return OpenedRandomness(key.leaf, key.coin)

    return Keys(source)
