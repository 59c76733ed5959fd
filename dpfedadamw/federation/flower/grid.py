"""A run's clients behind Flower's grid: what the server sends them, and what comes back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dpfedadamw.federation.arrivals import ArrivalError
from dpfedadamw.federation.flower.records import arrays_of, message_of
from dpfedadamw.federation.links import Reply

_KIND = "train"


class GridLink:
    """Sends to SuperNodes and looks for their answers.

    Args:
        grid: Flower's, as a ServerApp gets it.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        """SuperNodes that are there, as far as Flower knows."""
        return sorted(self._grid.get_node_ids())

    def send(self, node: int, values: Mapping[str, Any], message: bytes | None) -> str:
        """Send plain values, and a broadcast where there is one; what the answer will name."""
        records = RecordDict({"asked": ConfigRecord(dict(values))})
        if message is not None:
            records["broadcast"] = arrays_of(message)
        return next(iter(self._grid.push_messages([Message(records, node, _KIND)])), "")

    def replies(self, waiting: Collection[str], most: int) -> dict[str, Reply]:
        """What has come of the messages that are waited for, by what `send` gave.

        Args:
            waiting: What `send` gave.
            most: Bytes that an upload may have.
        """
        found = {}
        for reply in self._grid.pull_messages(list(waiting)):
            found[reply.metadata.reply_to_message_id] = _reply(reply, most)
        return found


def _reply(reply: Message, most: int) -> Reply:
    if reply.has_error():
        # Flower's own words may hold anything that a client's error says.
        return Reply({}, b"", away=f"its SuperNode gave no answer (Flower's {reply.error.code})")
    values = dict(reply.content.config_records.get("answer") or {})
    if values.get("away"):
        return Reply({}, b"", away="its own process does not answer its SuperNode")
    record = reply.content.array_records.get("upload")
    try:
        upload = message_of(record, most) if record else b""
    except ArrivalError as error:
        return Reply(values, b"", wrong=str(error))
    return Reply(values, upload)
