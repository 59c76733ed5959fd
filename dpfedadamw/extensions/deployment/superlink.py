"""The SuperLink: Flower's, in this process, with its Fleet API and no other on the network.

Flower's own command serves three interfaces on one port, and two of them ask nobody who they are:
the Control API runs any app that it is sent, and the Runtime API gives out the tasks of a run. Here
both have no socket at all. The run is led in this process, so nothing has to be submitted; its
SuperNodes are those whose keys lie in the server's folder, so nothing has to be registered; and no
app is sent to them (`dpfedadamw.extensions.deployment.supernode` runs none).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.templates import host_and_port

# What a SuperNode asks for. Not among them: registering a node, and the app of a run.
FLEET: Final = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages",
        "get-run", "push-object", "pull-object", "confirm-message-received",
    )
)  # fmt: skip
# Flower cuts arrays into pieces of 5 MiB, one a request.
_MOST_BODY = 8 << 20
# For a whole body; Flower's client waits half a minute for each part of one.
_BODY_SECONDS = 300.0
# Connections of strangers; each takes 64 KiB at most before its key is looked at.
_STRANGERS = 1000
_OF_ONE_NODE = 8
_HEARTBEAT_SECONDS = 20.0
_START_SECONDS = 60.0
_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class FleetOnly:
    """Passes on what SuperNodes ask for, and answers everything else itself.

    Whose public key nobody named is refused before any of its body is read. That a request is
    signed by the key is for Flower to check, which reads the body first.

    Args:
        application: Flower's.
        header: Where a SuperNode says its public key.
        keys: Those of the SuperNodes that may come in, as the header has them.

    Attributes:
        refused: Requests that were not passed on.
    """

    def __init__(self, application: Application, header: bytes, keys: frozenset[bytes]) -> None:
        self._application, self._header, self._keys = application, header, keys
        self.refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
        elif scope["type"] != "http":
            # Nothing else is spoken here; the server ends what gets no answer.
            self._note("a connection that is no request")
        elif scope["method"] != "POST" or scope["path"] not in FLEET:
            await self._refuse(send, 404, "a request for what is not served")
        elif not self._knows(scope):
            await self._refuse(send, 401, "a request without the key of any SuperNode")
        else:
            try:
                body = await asyncio.wait_for(_body(receive), _BODY_SECONDS)
            except TimeoutError:
                await self._refuse(send, 408, "a request that does not arrive whole in time")
                return
            if body is None:
                await self._refuse(send, 413, "a request that is too long")
            else:
                await self._application(scope, _replay(body, receive), send)

    def _knows(self, scope: Scope) -> bool:
        said = [value for name, value in scope["headers"] if name == self._header]
        return len(said) == 1 and said[0] in self._keys

    async def _refuse(self, send: Send, status: int, what: str) -> None:
        self._note(what)
        content = json.dumps({"detail": what}).encode()
        head = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})

    def _note(self, what: str) -> None:
        """Count a refusal; log the first, second, fourth and so on, so that a flood is no log."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            _log.warning("refused %s (%d so far)", what, self.refused)


async def _body(receive: Receive) -> bytes | None:
    """A request's body; None where it is longer than any that a SuperNode sends."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _MOST_BODY:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return again


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where the SuperLink listens, and what it shows there.

    Attributes:
        host: Address of this machine; ``0.0.0.0`` for all of them.
        port: Its port.
        certificate: Its certificate.
        key: The certificate's key.
    """

    host: str
    port: int
    certificate: Path
    key: Path

    @property
    def address(self) -> str:
        """Where it listens, in one word."""
        return host_and_port(self.host, self.port)


@contextlib.contextmanager
def grid(door: Door, nodes: Path) -> Iterator[Any]:
    """Serve SuperNodes until it is left; gives Flower's grid, as a ServerApp would get it.

    Args:
        door: Where it listens.
        nodes: Folder of the public keys of the SuperNodes that may come in (``*.pub``).

    Raises:
        DeploymentError: If a key or the certificate cannot be read, or the port cannot be had.
    """
    _check_certificate(door)
    import uvicorn
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.superlink.main import create_app

    application = create_app()
    application.state.enable_supernode_auth = True
    state = application.state.linkstate_factory.state()
    keys = _admit(state, nodes)
    config = uvicorn.Config(
        FleetOnly(application, FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode(), keys),
        host=door.host,
        port=door.port,
        ssl_certfile=str(door.certificate),
        ssl_keyfile=str(door.key),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_STRANGERS + _OF_ONE_NODE * len(keys),
        timeout_graceful_shutdown=5,
    )
    listener = _listener(door)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    ended = threading.Event()
    try:
        thread.start()
        last = time.monotonic() + _START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > last:
                raise DeploymentError(f"the SuperLink does not start on {door.address}")
            time.sleep(0.01)
        yield _run(state, ended)
    finally:
        ended.set()
        server.should_exit = True
        thread.join(10.0)
        listener.close()


def _check_certificate(door: Door) -> None:
    """Refuse in one line what uvicorn's thread would print a traceback for."""
    for path in (door.certificate, door.key):
        if not path.is_file():
            raise DeploymentError(
                f"{path}: is missing; give the server's folder of a project, as `dpfedadamw "
                "flower new` wrote it"
            )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(door.certificate, door.key)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise DeploymentError(
            f"{door.certificate}, {door.key}: are not a certificate and its key ({reason}); "
            "restore the files that `dpfedadamw flower new` wrote"
        ) from error


def _listener(door: Door) -> socket.socket:
    family = socket.AF_INET6 if ":" in door.host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((door.host, door.port))
    except OSError as error:
        listener.close()
        raise DeploymentError(
            f"{door.address}: cannot listen there ({error.strerror}); give another --host or --port"
        ) from None
    return listener


def _admit(state: Any, folder: Path) -> frozenset[bytes]:
    """Tell the SuperLink which SuperNodes there are; their keys, as they say them of themselves."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys = set[bytes]()
    for path in sorted(folder.glob("*.pub")):
        try:
            key = load_ssh_public_key(path.read_bytes())
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError
            public = public_key_to_bytes(key)
            state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public, 0)
            keys.add(base64.b64encode(public))
        except (OSError, ValueError) as error:
            raise DeploymentError(
                f"{path}: is not a separate SuperNode's public key ({type(error).__name__})"
            ) from None
    return frozenset(keys)


def _run(state: Any, ended: threading.Event) -> Any:
    """A run of Flower's, which is kept alive until it has ended, and its grid."""
    from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
    from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid.http_grid import HttpGrid

    number = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    (task,) = state.get_tasks(run_ids=[number])
    if state.claim_task(task.task_id) is None or not state.activate_task(task.task_id):
        raise DeploymentError("Flower does not start a run")

    def beat() -> None:
        while not ended.wait(_HEARTBEAT_SECONDS):
            state.acknowledge_task_heartbeat(task.task_id)

    threading.Thread(target=beat, daemon=True).start()
    # What Flower writes into the messages of its task's process.
    TaskIdentity.task_id, TaskIdentity.run_id = task.task_id, number
    TaskIdentity.node_id = SUPERLINK_NODE_ID
    found = HttpGrid(token="none: it is called in this process")
    found.set_run(state.get_run_info(run_ids=[number])[0])
    found._client = _InProcess(state, task)
    return found


class _InProcess:
    """Stands where Flower's grid expects its connection to the Runtime API."""

    def __init__(self, state: Any, task: Any) -> None:
        self._state, self._task = state, task

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        from flwr.superlink.servicer.runtime import runtime_handlers

        words = "".join(f"_{one.lower()}" if one.isupper() else one for one in name)
        handler = getattr(runtime_handlers, words.lstrip("_"))
        return lambda request: handler(request, self._state, self._task)
