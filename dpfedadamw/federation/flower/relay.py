"""The ClientApp: hands what the server sends to the client's own process, and its answer back.

Flower starts a process for each message, and what it runs there is code that the server sends. So
neither records nor keys are in this process's reach but through the socket of the client's own,
which takes part only in what its spec says.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Client
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpfedadamw.federation.flower.frames import Frame, receive, send

# Seconds that the client's own process may take to start, as after a crash.
_PATIENCE = 20.0
_LOOK = 0.1


def client_app() -> ClientApp:
    """The app of a project: its SuperNode's ``--node-config`` names the client's folder."""
    app = ClientApp()
    app.train()(relay)
    return app


def relay(message: Message, context: Context) -> Message:
    """Hand on a message."""
    place = Path(str(context.node_config.get("site", ""))) / "socket"
    content = message.content
    arrays = {
        name: (one.dtype, tuple(one.shape), one.stype, one.data)
        for record in content.array_records.values()
        for name, one in record.items()
    }
    try:
        found = _asked(place, Frame(dict(content.config_records["asked"]), arrays))
    except (OSError, EOFError, ValueError) as error:
        # The server asks again.
        values = {"away": True, "reason": f"its process cannot be reached ({type(error).__name__})"}
        found = Frame(values)
    records = {"answer": ConfigRecord(dict(found.values))}
    upload = {name: Array(*one) for name, one in found.arrays.items()}
    return Message(RecordDict({**records, "upload": ArrayRecord(upload)}), reply_to=message)


def _asked(place: Path, frame: Frame) -> Frame:
    last = time.monotonic() + _PATIENCE
    while True:
        try:
            connection = Client(str(place), family="AF_UNIX")
            break
        except OSError:
            if time.monotonic() > last:
                raise
            time.sleep(_LOOK)
    with connection:
        send(connection, frame)
        return receive(connection)
