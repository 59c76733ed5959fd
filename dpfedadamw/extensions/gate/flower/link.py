"""The researcher's SuperLink, as its one SuperNode of this site sees it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate.exchange import Question
from dpfedadamw.extensions.gate.flower import objects
from dpfedadamw.federation.flower.required import guard

# The SuperLink gives a node up after two of them.
_HEARTBEAT_SECONDS = 30
_MOST_KEY_BYTES = 1 << 16
# Of one response: Flower allows an app 10 MiB, and cuts arrays into pieces of 5 MiB.
_MOST_RESPONSE = 16 << 20


class LinkError(DpfedadamwError):
    """The SuperLink cannot be spoken to as it was asked."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the researcher's server asks, as it came.

    Attributes:
        name: The message's.
        run: The run's number.
        message: Flower's Message, without content.
        contents: Its objects by name.
        about: Flower's answers to GetRun and GetFab.
    """

    name: str
    run: int
    message: Any
    contents: Mapping[str, bytes]
    about: tuple[Any, Any]

    def question(self, model: objects.Model) -> Question:
        """As `trainer` reads it: the run, the app and the objects, and the model's arrays."""
        run, app = self.about
        told = {
            "message": self.name,
            "arrays": [[name, one.dtype, one.shape] for name, one in model.items()],
        }
        parts = [run.run.SerializeToString(), app.fab.content, *self.contents.values()]
        return Question(told, parts)


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the SuperLink is and how it is known.

    Attributes:
        superlink: HOST:PORT.
        insecure: Whether it is spoken to without TLS.
        authority: The certificate that signs the SuperLink's; None trusts the system's.
        key: The key by which the SuperLink knows this site; None makes a new one each time.
    """

    superlink: str
    insecure: bool = False
    authority: Path | None = None
    key: Path | None = None


class Link:
    """An open connection.

    Args:
        client: Flower's client of the Fleet API.
        node: This site's Node.
        most: Bytes that a message's objects may have together.
    """

    def __init__(self, client: Any, node: Any, most: int) -> None:
        self._client, self._node, self._most = client, node, most
        self._about: dict[int, tuple[Any, Any]] = {}

    def pull(self) -> Asked | None:
        """The next message; None where there is none.

        Its contents are empty where they are more than the model's message can need.
        """
        import httpx
        from flwr.proto import fab_pb2, fleet_pb2, message_pb2, run_pb2
        from flwr.supercore.inflatable import inflatable_utils
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf

        node = self._node
        found = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=node))
        if not found.messages_list:
            return None
        (message,), (tree,) = found.messages_list, found.message_object_trees
        name, run = message.metadata.message_id, message.metadata.run_id
        pull, sizes = make_pull_object_fn_protobuf(self._client.PullObject, node, run), [0]

        def bounded(part: str) -> bytes:
            content: bytes = pull(part)
            sizes[0] += len(content)
            if sizes[0] > self._most or not objects.is_named(part, content):
                raise ValueError("is too long, or has another name than its content gives it")
            return content

        contents: dict[str, bytes] = {}
        with contextlib.suppress(ValueError):
            contents = inflatable_utils.pull_objects(objects.names_in(tree), bounded)
        self._client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
        )
        if run not in self._about:
            try:
                about = self._client.GetRun(run_pb2.GetRunRequest(node=node, run_id=run))
                digest = about.run.fab_hash
                asked = fab_pb2.GetFabRequest(node=node, hash_str=digest, run_id=run)
                self._about = {run: (about, self._client.GetFab(asked))}
            except httpx.HTTPStatusError:
                # The run has ended meanwhile: nobody waits for a reply.
                return None
        return Asked(name=name, run=run, message=message, contents=contents, about=self._about[run])

    def push(self, answer: Any) -> None:
        """Send Flower's Message, which is all that leaves."""
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable import inflatable_object
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf

        with inflatable_object.no_object_id_recompute():
            answer.metadata.__dict__["_message_id"] = answer.object_id
            nested = inflatable_object.get_all_nested_objects(answer)
            tree = inflatable_object.get_object_tree(answer)
            head = remove_content_from_message(answer) if answer.has_content() else answer
            # The time that the job took is no part of a reply.
            taken = self._client.PushMessages(
                PushMessagesRequest(
                    node=self._node, messages_list=[message_to_proto(head)],
                    message_object_trees=[tree], clientapp_runtime_list=[0.0],
                )
            )  # fmt: skip
            run = answer.metadata.run_id
            push = make_push_object_fn_protobuf(
                self._client.PushObject, self._node, run, taken.session_id
            )
            for part in taken.objects_to_push:
                push(part, nested[part].deflate())


@contextlib.contextmanager
def connected(address: Address, most: int) -> Iterator[Link]:
    """This site as a SuperNode of the SuperLink, while it is in.

    Args:
        address: The SuperLink's.
        most: Bytes that a message's objects may have together.

    Raises:
        LinkError: If a key or certificate cannot be read.
    """
    from flwr.proto import fleet_pb2
    from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    keys = generate_key_pairs() if address.key is None else _keys(address.key)
    public = public_key_to_bytes(keys[1])
    authority = None if address.authority is None else str(address.authority)
    beats = {"heartbeat_interval": _HEARTBEAT_SECONDS}
    ended = threading.Event()
    with FleetHttpClient.from_server_address(
        address.superlink, address.insecure, authority,
        interceptors=[RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(*keys)],
    ) as client:  # fmt: skip
        guard(client._client, _MOST_RESPONSE)
        if address.key is None:
            client.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=public))
        me = fleet_pb2.ActivateNodeRequest(public_key=public, **beats)
        node = Node(node_id=client.ActivateNode(me).node_id)

        def beat() -> None:
            while not ended.wait(_HEARTBEAT_SECONDS / 3):
                # Where it fails, the next message fails too, and the connection is made again.
                with contextlib.suppress(Exception):
                    client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, **beats))

        heart = threading.Thread(target=beat, daemon=True)
        heart.start()
        try:
            yield Link(client, node, most)
        finally:
            ended.set()
            heart.join()
            with contextlib.suppress(Exception):
                client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=node.node_id))
            if address.key is None:
                with contextlib.suppress(Exception):
                    client.UnregisterNode(
                        fleet_pb2.UnregisterNodeFleetRequest(node_id=node.node_id)
                    )


def _keys(path: Path) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        with path.open("rb") as file:
            key = load_ssh_private_key(file.read(_MOST_KEY_BYTES), None)
    except (OSError, ValueError) as error:
        raise LinkError(f"{path}: cannot be read as a key ({type(error).__name__})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise LinkError(f"{path}: is not a key on an elliptic curve")
    return key, key.public_key()
