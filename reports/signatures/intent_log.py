"""What an auditor remembers of the intents that it challenged, and of what came of them.

A trainer who dislikes a nonce, or what is drawn, could announce the run again, and again. So each
intent that got a nonce is kept, with the draw and the verdict that followed it if they did. An
intent came to nothing while no run of it was opened, computed again and passed; how many did is
counted, and stands in the next challenge. `intents.jsonl`, next to the auditor's keys, has one
line per event, each with the digest of the line before, never rewritten. An intent gets one nonce,
a run one draw.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from reports.errors import EnvelopeError, KeyFileError
from reports.files import mapping, parse_json
from reports.signatures.challenges import NONCE_BYTES, Intent, Seen, now
from reports.signatures.keys import refuse_open
from reports.signatures.statements import written_time

FILE = "intents.jsonl"
# A line of some hundred bytes for each intent, challenge and draw.
_MOST_BYTES = 1 << 26
_GENESIS = "0" * 64


@dataclass(frozen=True)
class Challenged:
    """An intent that got a nonce.

    Attributes:
        nonce: The nonce.
        seen: What had been seen of the trainer by then, this intent included.
        since: When, ISO 8601.
        ledger: Digest of the ledger that a draw was made from; None where there was none.
        draw: That draw's nonce.
    """

    nonce: bytes
    seen: Seen
    since: str
    ledger: str | None
    draw: bytes | None


class IntentLog:
    """The log, open for its one writer. Build it with `opened`."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file, self._path = file, path
        self._previous = _GENESIS
        self._entries: list[dict[str, Any]] = []
        for number, line in enumerate(file.read().splitlines(keepends=True), start=1):
            where = f"{path}, line {number}"
            if not line.endswith(b"\n"):
                # Its writer was killed before anybody was told of it.
                file.seek(-len(line), os.SEEK_END)
                file.truncate()
                break
            entry = mapping(parse_json(line, where))
            if entry.get("previous") != self._previous:
                raise EnvelopeError(
                    f"{where}: does not follow the line before; the log was changed after it was "
                    "written, put back a copy"
                )
            self._previous = hashlib.sha256(line).hexdigest()
            self._entries.append(entry)

    def find(self, intent_sha256: str) -> Challenged | None:
        """What is known of an intent; None if it never got a nonce.

        Raises:
            EnvelopeError: What is known of it is damaged.
        """
        known = self._of("challenged", intent_sha256)
        if known is None:
            return None
        drawn = self._of("drawn", intent_sha256)
        try:
            return Challenged(
                bytes.fromhex(known["nonce"]),
                Seen(**known["seen"]),
                str(known["time"]),
                drawn["ledger"] if drawn is not None else None,
                bytes.fromhex(drawn["nonce"]) if drawn is not None else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise EnvelopeError(f"{self._path}: a line lacks what it should hold") from error

    def challenge(self, intent: Intent) -> Challenged:
        """Give an intent its nonce; the one that it has if it was here before."""
        known = self.find(intent.sha256)
        if known is not None:
            return known
        self._append(
            {
                "kind": "challenged",
                "intent": intent.sha256,
                "run": intent.promised.run,
                "trainer": intent.fingerprint,
                "handle": intent.promised.handle,
                "spec": intent.promised.spec_sha256,
                "seen": vars(self._seen(intent)),
                "nonce": fresh_nonce().hex(),
            }
        )
        made = self.find(intent.sha256)
        assert made is not None
        return made

    def draw(self, intent_sha256: str, ledger_sha256: str, run: str) -> bytes:
        """Return the nonce of a run's draw, the same whenever it is asked for.

        Raises:
            EnvelopeError: The intent never got a nonce here, or another ledger was drawn from.
        """
        known = self.find(intent_sha256)
        if known is None:
            raise EnvelopeError(
                f"{run}: its intent got no nonce from this key folder ({self._path} does not know "
                "it); the auditor who challenged it must draw"
            )
        if known.draw is not None:
            if known.ledger != ledger_sha256:
                raise EnvelopeError(
                    f"{run}: participations were drawn before, from another ledger of the same "
                    "intent; what was drawn must not be known while a ledger is written"
                )
            return known.draw
        nonce = fresh_nonce()
        self._append(
            {
                "kind": "drawn",
                "intent": intent_sha256,
                "run": run,
                "ledger": ledger_sha256,
                "nonce": nonce.hex(),
            }
        )
        return nonce

    def judge(self, intent_sha256: str, ledger_sha256: str, run: str, verdict: str) -> None:
        """Remember what a run came to whose participations were opened and computed again.

        An intent that got no nonce here is none of this auditor's.
        """
        entry = {
            "kind": "judged",
            "intent": intent_sha256,
            "run": run,
            "ledger": ledger_sha256,
            "verdict": verdict,
        }
        last = self._of("judged", intent_sha256)
        known = last is not None and all(last.get(name) == entry[name] for name in entry)
        if self._of("challenged", intent_sha256) is not None and not known:
            self._append(entry)

    def _seen(self, intent: Intent) -> Seen:
        """How many intents were seen, this one included, and how many before came to nothing."""
        before = [
            entry
            for entry in self._entries
            if entry.get("kind") == "challenged" and entry.get("trainer") == intent.fingerprint
        ]
        same = [entry for entry in before if entry.get("handle") == intent.promised.handle]
        came_to = {
            entry.get("intent"): entry.get("verdict")
            for entry in self._entries
            if entry.get("kind") == "judged"
        }

        def dropped(entries: list[dict[str, Any]]) -> int:
            return sum(came_to.get(entry.get("intent")) != "PASS" for entry in entries)

        return Seen(
            of_trainer=1 + len(before),
            for_data=1 + len(same),
            dropped=dropped(same),
            dropped_of_trainer=dropped(before),
        )

    def _of(self, kind: str, intent_sha256: str) -> dict[str, Any] | None:
        """The last entry of a kind for an intent."""
        found = (
            entry
            for entry in reversed(self._entries)
            if entry.get("kind") == kind and entry.get("intent") == intent_sha256
        )
        return next(found, None)

    def _append(self, entry: Mapping[str, Any]) -> None:
        """Add a line, and wait until it is on the disk: only then may anybody learn the nonce."""
        content = {**entry, "time": written_time(now()), "previous": self._previous}
        line = json.dumps(content, sort_keys=True, separators=(",", ":")).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._previous = hashlib.sha256(line).hexdigest()
        self._entries.append(content)


def fresh_nonce() -> bytes:
    """Bits that nobody could know."""
    return os.urandom(NONCE_BYTES)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[IntentLog]:
    """Open the log of a key folder for one writer; made if it is missing.

    Raises:
        KeyFileError: It cannot be written, or others may write to the folder.
        EnvelopeError: It was changed after it was written.
    """
    path = folder / FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        refuse_open(folder)
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
                raise EnvelopeError(f"{path}: is no log of intents; put back a copy")
            _lock(file)
            yield IntentLog(file, path)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be written ({error.strerror})") from error


def _lock(file: IO[bytes]) -> None:
    """Wait for other writers; where there are no locks, nobody else may write."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    fcntl.flock(file, fcntl.LOCK_EX)
