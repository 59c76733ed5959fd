"""What a client refuses: said to the server in a few fixed words, and to its owner in detail.

All that comes over the socket is another's. A refusal tells the server one of the words below and
nothing else: no path of the client's machine, no number of its records, nothing of what it has
spent. Its owner reads more in the client's log, which a flood of messages cannot fill a disk with,
and finds in ``refusals.json`` how often each was refused.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.storage.disk import PRIVATE_MODE, json_line, write_atomically

REASONS: Mapping[str, str] = {
    "incomplete": "a message did not arrive whole, or not in time",
    "message": "what arrived is no message of a federation",
    "run": "this client takes part in another run",
    "client": "the message is meant for another client",
    "round": "the spec has no such round, or not so many clients a round",
    "order": "a later round was answered before",
    "attempts": "the round was asked for too often",
    "again": "another broadcast was answered in this attempt",
    "noise": "the spec says other noise, other steps or another rate",
    "broadcast": "the broadcast is not what the spec's server sends",
    "memory": "no such participation of this client came before",
    "spent": "the client's owner allows no more participations",
    "failed": "the client's process could not compute its part",
}
_OTHER = "the client refuses, in words of its own"

_MOST_BYTES = 1 << 16
_MOST_COUNT = 2**53
_LONGEST_LINE = 300
_SECONDS_BETWEEN_WRITES = 1.0
# Lines of the log: some at once, then one in so many seconds.
_LINES, _SECONDS_A_LINE = 10.0, 6.0


class RefusalError(DeploymentError):
    """A client does not do what it is asked.

    Args:
        reason: One of `REASONS`.
        message: What its owner is told.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def told(reason: object) -> str:
    """What a server says of a client's refusal: its own words, whatever the client sent."""
    return REASONS.get(reason, _OTHER) if isinstance(reason, str) else _OTHER


class Refusals:
    """Counts what a client refuses.

    Args:
        path: Where the counts are kept.
        log: Takes a line for the client's owner; None where nobody reads.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        path: Path,
        log: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._log, self._clock = path, log, clock
        self.counts = read_counts(path)
        self._lines, self._since = _LINES, clock()
        self._unsaid = 0
        self._written = -_SECONDS_BETWEEN_WRITES
        self.unwritten = False

    def note(self, reason: str, message: str) -> None:
        """Count a refusal, and log it unless there were too many lines just before."""
        self.counts[reason] = min(self.counts.get(reason, 0) + 1, _MOST_COUNT)
        self.unwritten = True
        self._say(f"refused ({reason}): {message}")
        self.write()

    def write(self, *, now: bool = False) -> None:
        """Keep the counts, once a second at most unless ``now``."""
        if not self.unwritten:
            return
        if not now and self._clock() < self._written + _SECONDS_BETWEEN_WRITES:
            return
        self._written = self._clock()
        last = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        content = json_line({"format": 1, "refused": self.counts, "last": last})
        # A disk that is full does not end the process: it is tried again.
        with contextlib.suppress(OSError):
            write_atomically(self._path, content, PRIVATE_MODE, settle=False)
            self.unwritten = False

    def _say(self, line: str) -> None:
        now = self._clock()
        self._lines = min(_LINES, self._lines + (now - self._since) / _SECONDS_A_LINE)
        self._since = now
        if self._lines < 1.0:
            self._unsaid += 1
            return
        self._lines -= 1.0
        more = f" ({self._unsaid} lines before it were left out)" if self._unsaid else ""
        self._unsaid = 0
        if self._log is not None:
            shown = "".join(one if one.isprintable() else "?" for one in line[:_LONGEST_LINE])
            self._log(shown + more)


def read_counts(path: Path) -> dict[str, int]:
    """How often each was refused, as far as a file says so; nothing where it says nothing."""
    # A folder that was handed in may hold anything under this name.
    if path.is_symlink() or not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES).decode())["refused"]
        return {
            reason: found[reason]
            for reason in REASONS
            if type(found.get(reason)) is int and 0 < found[reason] <= _MOST_COUNT
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
