"""The SuperNode: between the SuperLink's Fleet API and the client's own process; it runs no app.

Flower's own command starts a process for each message and runs in it the app that the server names.
This one fetches no app. It hands a message's plain values and arrays to the client's process by a
socket, and the answer back, so that the server decides on values, never on code. It holds the key
by which the SuperLink knows this site, and nothing else that is secret.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.federation.flower.frames import Frame, receive, send
from dpfedadamw.federation.flower.required import guard, quiet, require
from dpfedadamw.storage.disk import PUBLIC_MODE, json_line, write_atomically
from dpfedadamw.storage.foreign import read_mapping

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

# Seconds that the client's own process may take to start, as after a crash.
_PATIENCE = 20.0
_LOOK = 0.2
_MOST_KEY_BYTES = 1 << 16
# Until it tries again to be let in, where the SuperLink is away.
_AGAIN = 2.0
# Flower's shortest: the SuperLink takes a node that was killed back after two of them.
_HEARTBEAT_SECONDS = 10
_OBJECTS = 10_000
# Of one response: Flower cuts arrays into pieces of 5 MiB, one a response.
_MOST_RESPONSE = 8 << 20
_MOST_CODE = 10**6


@dataclass(frozen=True)
class NodeFolder:
    """Paths inside a SuperNode's folder.

    supernode.json       where the SuperLink and the client's socket are
    key, key.pub         by which the SuperLink knows this site
    ca.crt               by which it knows the SuperLink

    Attributes:
        path: The folder.
    """

    path: Path

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.path / "key"

    @property
    def public(self) -> Path:
        """Its public key."""
        return self.path / "key.pub"

    @property
    def authority(self) -> Path:
        """The certificate that signs the SuperLink's."""
        return self.path / "ca.crt"

    def write_settings(self, superlink: str, socket: str, most_bytes: int) -> None:
        """Write where it finds the SuperLink and the client's process.

        Args:
            superlink: HOST:PORT.
            socket: Path of the socket, from this folder.
            most_bytes: What a message of the server may hold.
        """
        settings = json_line({"superlink": superlink, "socket": socket, "most_bytes": most_bytes})
        write_atomically(self.path / "supernode.json", settings, PUBLIC_MODE)

    def settings(self) -> tuple[str, Path, int]:
        """The SuperLink's address, the socket of the client's process, a message's most bytes.

        Raises:
            DeploymentError: If it is no SuperNode's folder.
        """
        try:
            found = read_mapping(self.path / "supernode.json")
            # Resolved here, because a name may hold a null byte.
            place = Path(os.path.realpath(self.path / str(found["socket"])))
            return str(found["superlink"]), place, int(found["most_bytes"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            raise DeploymentError(
                f"{self.path}: is not a SuperNode's folder: its supernode.json cannot be read "
                f"({type(error).__name__}); make one with: dpfedadamw flower new SPEC DIR"
            ) from None


def serve(
    folder: NodeFolder,
    superlink: str = "",
    socket: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> None:
    """Carry messages between the SuperLink and the client's process, without an end.

    Args:
        folder: The SuperNode's.
        superlink: HOST:PORT in place of what its settings say.
        socket: The client's, in place of what its settings say.
        tell: Called with a line when the connection is made or lost.

    Raises:
        DeploymentError: If the folder is not what it should be.
        FlowerError: If Flower is not installed.
    """
    address, place, most = folder.settings()
    address, place = superlink or address, socket.resolve() if socket else place
    keys = _keys(folder.key)
    require()
    import httpx

    quiet()
    last = ""

    def say(line: str) -> None:
        nonlocal last
        if line != last:
            last = line
            tell(line)

    while True:
        try:
            with _connected(address, folder.authority, keys) as link:
                say(f"connected to the SuperLink at {address}")
                while True:
                    _carry_one(link, place, most)
        except httpx.HTTPStatusError as error:
            why = _refusal(error.response)
            say(f"the SuperLink at {address} rejects this SuperNode ({why}); trying again")
        except httpx.TransportError as error:
            say(f"no SuperLink at {address} ({type(error).__name__}); trying again")
        except ImportError:
            raise
        except Exception as error:
            # The server may send anything; nothing that it sends may end this process.
            kind = type(error).__name__
            say(
                f"the SuperLink at {address} sent something that is not a message ({kind}); trying "
                "again"
            )
        time.sleep(_AGAIN)


def _refusal(response: Any) -> str:
    """Why the SuperLink refuses, in a few words, whatever its response holds."""
    from flwr.supercore.error import FlowerError

    try:
        refusal = FlowerError.from_json(response.text)
    except Exception:
        # Flower's reader takes no response for hostile: one may be nested without end.
        refusal = None
    if refusal is not None and abs(refusal.code) < _MOST_CODE:
        return f"Flower's {refusal.code}"
    return f"HTTP {response.status_code}"


def _keys(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        with path.open("rb") as file:
            key = load_ssh_private_key(file.read(_MOST_KEY_BYTES), None)
    except (OSError, ValueError) as error:
        raise DeploymentError(f"{path}: cannot be read as a key ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeploymentError(f"{path}: is not a key on an elliptic curve")
    return key, key.public_key()


@contextlib.contextmanager
def _connected(address: str, authority: Path, keys: Any) -> Iterator[tuple[Any, Any]]:
    """Flower's client of the Fleet API and the number that this node has there, while it is in."""
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    proofs = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(*keys)]
    beats = {"heartbeat_interval": _HEARTBEAT_SECONDS}
    ended = threading.Event()
    with FleetHttpClient.from_server_address(
        address, False, str(authority), interceptors=proofs
    ) as client:
        guard(client._client, _MOST_RESPONSE)
        me = ActivateNodeRequest(public_key=public_key_to_bytes(keys[1]), **beats)
        node = Node(node_id=client.ActivateNode(me).node_id)

        def beat() -> None:
            while not ended.wait(_HEARTBEAT_SECONDS * 0.7):
                # Where it fails, the next message fails too, and the connection is made again.
                with contextlib.suppress(Exception):
                    client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, **beats))

        heart = threading.Thread(target=beat, daemon=True)
        heart.start()
        try:
            yield client, node
        finally:
            ended.set()
            heart.join()
            with contextlib.suppress(Exception):
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _carry_one(link: tuple[Any, Any], place: Path, most: int) -> None:
    """Carry one message and its answer, or wait a moment where there is none."""
    from flwr.app import Message
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto import fleet_pb2, message_pb2
    from flwr.supercore.inflatable import inflatable_object, inflatable_utils
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_pull_object_fn_protobuf,
        make_push_object_fn_protobuf,
    )

    client, node = link
    found = client.PullMessages(fleet_pb2.PullMessagesRequest(node=node))
    if not found.messages_list:
        time.sleep(_LOOK)
        return
    head = message_from_proto(found.messages_list[0])
    run, name = head.metadata.run_id, head.metadata.message_id
    pull, pulled = make_pull_object_fn_protobuf(client.PullObject, node, run), 0

    def bounded(part: str) -> bytes:
        nonlocal pulled
        content: bytes = pull(part)
        pulled += len(content)
        if pulled > most:
            raise ValueError
        return content

    wanted = inflatable_object.iterate_object_tree(found.message_object_trees[0])
    parts = [one.object_id for one in itertools.islice(wanted, _OBJECTS + 1)]
    if len(parts) > _OBJECTS:
        raise ValueError
    contents = inflatable_utils.pull_objects(parts, bounded)
    client.ConfirmMessageReceived(
        message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
    )
    message = inflatable_utils.inflate_object_from_contents(name, contents)
    if not isinstance(message, Message):
        raise ValueError
    message.metadata.__dict__["_message_id"] = name
    answer = Message(relayed(message, place), reply_to=message)
    with inflatable_object.no_object_id_recompute():
        answer.metadata.__dict__["_message_id"] = answer.object_id
        objects = inflatable_object.get_all_nested_objects(answer)
        taken = client.PushMessages(
            fleet_pb2.PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(answer))],
                message_object_trees=[inflatable_object.get_object_tree(answer)],
                clientapp_runtime_list=[0.0],
            )
        )
        push = make_push_object_fn_protobuf(client.PushObject, node, run, taken.session_id)
        for part in taken.objects_to_push:
            push(part, objects[part].deflate())


def relayed(message: Message, place: Path) -> RecordDict:
    """What the client's process answers to a message.

    Args:
        message: The server's.
        place: The socket of the client's process.
    """
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        name: (one.dtype, tuple(one.shape), one.stype, one.data)
        for record in message.content.array_records.values()
        for name, one in record.items()
    }
    asked = dict(message.content.config_records.get("asked") or {})
    try:
        found = _asked(place, Frame(asked, arrays))
    except (OSError, EOFError, ValueError) as error:
        # The server asks again.
        values = {"away": True, "reason": f"its process cannot be reached ({type(error).__name__})"}
        found = Frame(values)
    upload = {name: Array(*one) for name, one in found.arrays.items()}
    return RecordDict({"answer": ConfigRecord(dict(found.values)), "upload": ArrayRecord(upload)})


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
