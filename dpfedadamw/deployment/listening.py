"""The client's own process: answers its machine's SuperNode until it is ended."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from multiprocessing.connection import Listener

from flwr.app import Array, ArrayRecord

from dpfedadamw.deployment.client import Client, plain
from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.deployment.site import Site
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.federation.flower.frames import Frame, receive, send
from dpfedadamw.federation.flower.records import arrays_of, message_of
from dpfedadamw.federation.stations import Asked

# What the name of a socket may have; Linux takes 107 bytes.
_LONGEST = 103


def serve(site: Site, on_ready: Callable[[Client], None] | None = None) -> None:
    """Answer whoever connects to the folder's socket, one after another, without an end.

    Args:
        site: The client's folder.
        on_ready: Called once it listens.

    Raises:
        DpfedadamwError: If the folder is not what it should be, or another process has it.
    """
    place = str(site.socket.resolve())
    if len(place.encode()) > _LONGEST:
        raise DeploymentError(
            f"{place}: is too long a name for a socket ({len(place.encode())} bytes, {_LONGEST} at "
            "most); use a folder with a shorter path"
        )
    client = Client(site)
    try:
        with contextlib.suppress(FileNotFoundError):
            # Of a process that was killed: nobody else has the folder.
            site.socket.unlink()
        with Listener(place, family="AF_UNIX") as listener:
            site.socket.chmod(0o660)
            if on_ready is not None:
                on_ready(client)
            while True:
                with contextlib.suppress(OSError, EOFError, ValueError), listener.accept() as other:
                    send(other, answered(client, receive(other)))
    finally:
        client.close()


def answered(client: Client, frame: Frame) -> Frame:
    """What the client answers to one message."""
    try:
        values = dict(frame.values)
        if "hello" in values:
            return Frame(client.introduce(str(values["hello"])))
        run, remembered = str(values.pop("run")), str(values.pop("remembered"))
        asked = Asked(**{name: values[name] for name in Asked.__dataclass_fields__})
        record = ArrayRecord({name: Array(*one) for name, one in frame.arrays.items()})
        sent = client.take_part(run, asked, message_of(record), remembered)
    except DpfedadamwError as error:
        return Frame({"refused": str(error)})
    except Exception as error:
        # Another's message may hold private values; its kind does not.
        return Frame({"refused": f"{type(error).__name__} in its process"})
    upload = {
        name: (one.dtype, tuple(one.shape), one.stype, one.data)
        for name, one in arrays_of(sent.upload).items()
    }
    digest = hashlib.sha256(sent.upload).hexdigest()
    return Frame({**plain(sent), "upload_sha256": digest}, upload)
