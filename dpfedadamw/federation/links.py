"""What the server needs of whatever carries its messages to clients on machines of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Reply:
    """What came back of one message.

    Attributes:
        values: Plain values.
        upload: The upload, serialised; empty where there is none.
        away: Why the client gave no answer, though it may give one when it is asked again.
        wrong: Why what it sent is no upload.
    """

    values: Mapping[str, Any]
    upload: bytes
    away: str = ""
    wrong: str = ""


class Link(Protocol):
    """Carries messages between the server and nodes, behind each of which is one client."""

    def nodes(self) -> Sequence[int]:
        """Nodes that are there, as far as is known."""
        ...

    def send(self, node: int, values: Mapping[str, Any], message: bytes | None) -> str:
        """Send plain values, and a broadcast where there is one; what its reply is known by.

        Empty where the message was not taken.
        """
        ...

    def replies(self, waiting: Collection[str], most: int) -> Mapping[str, Reply]:
        """What has come of messages by what `send` gave; uploads of so many bytes at most."""
        ...
