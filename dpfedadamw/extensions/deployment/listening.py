"""The client's own process: answers its machine's SuperNode until it is ended.

Nothing that arrives ends it. A message is read within limits that follow from the spec, in a time
that a silent or slow connection cannot stretch, and must be what an honest server asks; all else is
refused in a few fixed words, counted and logged. One connection is served after another.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment.client import Client, plain
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.refusals import RefusalError, Refusals
from dpfedadamw.extensions.deployment.site import Site
from dpfedadamw.federation.flower.arrays import message_of_wires, wires_of
from dpfedadamw.federation.flower.frames import Frame, receive, send
from dpfedadamw.federation.stations import Asked

# What the name of a socket may have; Linux takes 107 bytes.
_LONGEST = 103
# Connections that wait while another is served.
_WAITING = 16
# Seconds for a whole message, and for its answer to be taken.
PATIENCE = 30.0
_LOOK = 1.0
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_NONCE = re.compile(r"[0-9a-f]{32,128}")
_MOST_INTEGER = 2**31


def serve(
    site: Site,
    on_ready: Callable[[Client], None] | None = None,
    on_refusal: Callable[[str], None] | None = None,
    most_charges: int | None = None,
    patience: float = PATIENCE,
) -> None:
    """Answer anyone who connects to the folder's socket, one after another, without an end.

    Args:
        site: The client's folder.
        on_ready: Called once it listens.
        on_refusal: Called with a line for the client's owner when something is refused.
        most_charges: As `Client` takes it.
        patience: Seconds for a whole message, and for its answer to be taken.

    Raises:
        DpfedadamwError: If the folder is not what it should be, or another process has it.
    """
    place = str(site.socket.resolve())
    if len(place.encode()) > _LONGEST:
        raise DeploymentError(
            f"{place}: is too long for a socket ({len(place.encode())} bytes, {_LONGEST} at most); "
            "use a folder with a shorter path"
        )
    client = Client(site, most_charges)
    refusals = Refusals(site.refusals, on_refusal)
    try:
        with contextlib.suppress(FileNotFoundError):
            # Of a process that was killed: nobody else has the folder.
            site.socket.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            _bind(listener, place)
            site.socket.chmod(0o660)
            listener.listen(_WAITING)
            if on_ready is not None:
                on_ready(client)
            while True:
                _wait(listener, refusals)
                try:
                    other, _ = listener.accept()
                except OSError:
                    time.sleep(_LOOK)
                    continue
                with Connection(other.detach()) as connection:
                    answer(client, refusals, connection, patience)
    finally:
        refusals.write(now=True)
        client.close()


def _bind(listener: socket.socket, place: str) -> None:
    try:
        listener.bind(place)
    except OSError as error:
        raise DeploymentError(f"{place}: cannot be listened on ({error.strerror})") from None


def _wait(listener: socket.socket, refusals: Refusals) -> None:
    """Wait for a connection; what was refused is on the disk a second later at most."""
    while not select.select([listener], [], [], _LOOK if refusals.unwritten else None)[0]:
        refusals.write()


def answer(
    client: Client, refusals: Refusals, connection: Connection[Any, Any], patience: float
) -> None:
    """Read one message and answer it; whatever it is, this returns."""
    try:
        with _within(connection, patience):
            frame = receive(connection, client.limits)
    except (EOFError, OSError):
        refusals.note("incomplete", "a message was too long, or did not arrive whole in time")
        return
    except (ValueError, TypeError, MemoryError, RuntimeError) as error:
        refusals.note("message", _kind(error))
        found = Frame({"refused": "message"})
    else:
        found = answered(client, refusals, frame)
    with contextlib.suppress(OSError, EOFError, ValueError), _within(connection, patience):
        send(connection, found)


def answered(client: Client, refusals: Refusals, frame: Frame) -> Frame:
    """What the client answers to one message."""
    try:
        return _answered(client, frame)
    except RefusalError as error:
        refusals.note(error.reason, str(error))
        return Frame({"refused": error.reason})
    except Exception as error:
        # Words of this package's own hold no record; of any other error, its kind alone is logged.
        own = str(error) if isinstance(error, DpfedadamwError) else type(error).__name__
        refusals.note("failed", own)
        # It may have been the ledger that could not be written to.
        client.reopen()
        return Frame({"refused": "failed"})


def _answered(client: Client, frame: Frame) -> Frame:
    values = dict(frame.values)
    if "hello" in values:
        nonce = values["hello"]
        if len(values) > 1 or frame.arrays or not _matches(_NONCE, nonce):
            raise RefusalError("message", "a question of who it is has more than a nonce")
        return Frame(client.introduce(nonce))
    run, remembered, asked = _asked(values)
    try:
        message = message_of_wires(frame.arrays)
    except (ValueError, MemoryError) as error:
        raise RefusalError("message", f"the broadcast holds {_kind(error)}") from None
    sent = client.take_part(run, asked, message, remembered)
    digest = hashlib.sha256(sent.upload).hexdigest()
    return Frame({**plain(sent), "upload_sha256": digest}, wires_of(sent.upload))


def _asked(values: dict[str, Any]) -> tuple[str, str, Asked]:
    """The run, what the client goes on from, and what it is asked.

    Raises:
        RefusalError: If a value is missing, of another type or too large, or there is one more.
    """
    run, remembered = values.pop("run", None), values.pop("remembered", None)
    if not _matches(_RUN, run) or not isinstance(remembered, str) or len(remembered) > 32:
        raise RefusalError("message", "it names no run, or nothing to go on from")
    if values.keys() != Asked.__dataclass_fields__.keys():
        raise RefusalError("message", "it lacks a value, or has one that nobody knows")
    for name, value in values.items():
        if not _IS[str(Asked.__dataclass_fields__[name].type)](value):
            raise RefusalError("message", f"its {name} is no such value")
    return str(run), remembered, Asked(**values)


def _is_integer(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_INTEGER


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]  # a number


def _is_digest(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == 32


# By the types that `Asked` declares.
_IS = {"int": _is_integer, "float": _is_number, "bytes": _is_digest}


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _kind(error: BaseException) -> str:
    # Messages of this package's own checks hold nothing of what arrived.
    return str(error) if type(error) is ValueError else type(error).__name__


@contextlib.contextmanager
def _within(connection: Connection[Any, Any], seconds: float) -> Iterator[None]:
    """End a connection from here if what is done in between takes longer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as other:

        def end() -> None:
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            # The number of a socket that is closed may be another's a moment later.
            timer.join()
