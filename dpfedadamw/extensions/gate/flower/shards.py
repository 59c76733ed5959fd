"""The Fleet API as one shard's SuperNode sees it: a socket, one question at a time, one answer.

Each shard has a socket of its own, so a connection says which shard it is; its cell holds no other.
Whatever a job sends here stays here: an answer is a set of objects under a limit, which `relay`
reads for the model's arrays, and nothing else of a request is kept.
"""

from __future__ import annotations

import http.server
import socketserver
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpfedadamw.extensions.gate.flower import objects

_FORM = "application/protobuf"
# Flower cuts arrays into chunks of 5 MiB, one a request.
_MOST_BODY = 8 << 20
# A SuperNode asks again after three seconds; a question that arrives while it waits here goes out
# at once. Flower gives up on a request after thirty.
_WAIT = 10.0
_NODE = 1


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the researcher's server asks, as it came.

    Attributes:
        name: The message's.
        run: The run's number.
        message: Flower's Message, without content.
        tree: Flower's ObjectTree of it.
        contents: Its objects by name.
        about: Flower's answers to GetRun and GetFab.
    """

    name: str
    run: int
    message: Any
    tree: Any
    contents: Mapping[str, bytes]
    about: tuple[Any, Any]


@dataclass
class Answer:
    """A shard's objects; complete once all that its tree names are there.

    Attributes:
        name: The message's.
        wanted: Names that are missing.
        contents: By name.
        size: Bytes of all of them.
    """

    name: str
    wanted: set[str]
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0


class Shard:
    """Serves the Fleet API to one SuperNode.

    Args:
        place: Path of the socket.
        most: Bytes that an answer's objects may have together.
        on_answer: Called whenever an answer is complete.
    """

    def __init__(self, place: Path, most: int, on_answer: Callable[[], None]) -> None:
        self._most = most
        self._on_answer = on_answer
        self._changed = threading.Condition()
        self._question: Question | None = None
        self._pulled = False
        self._turn = 0
        self._answer: Answer | None = None
        self._joined = threading.Event()
        # Here, because threads that import Flower's messages at the same time find them half made.
        self._known = self._requests()
        self._server = _Server(str(place), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def ask(self, question: Question | None) -> None:
        """Put a question, in place of the one before; None takes that one back."""
        with self._changed:
            self._question, self._pulled, self._answer = question, False, None
            self._turn += 1
            self._changed.notify_all()

    def answered(self) -> Answer | None:
        """The answer to what was asked last, once it is complete."""
        with self._changed:
            answer = self._answer
            return answer if answer is not None and not answer.wanted else None

    def respond(self, path: str, body: bytes) -> bytes | None:
        """The response to a request; None where it is none of the Fleet API's."""
        kind, does = self._known.get(path.removeprefix("/v1/fleet/"), (None, None))
        if kind is None or does is None:
            return None
        response: bytes = does(kind.FromString(body)).SerializeToString()
        return response

    def _requests(self) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
        """What a SuperNode may ask for: the request's type, and what answers it."""
        from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2

        return {
            "register-node": (
                fleet_pb2.RegisterNodeFleetRequest,
                lambda _: fleet_pb2.RegisterNodeFleetResponse(node_id=_NODE),
            ),
            "activate-node": (
                fleet_pb2.ActivateNodeRequest,
                self._activate,
            ),
            "deactivate-node": (
                fleet_pb2.DeactivateNodeRequest,
                lambda _: fleet_pb2.DeactivateNodeResponse(),
            ),
            "unregister-node": (
                fleet_pb2.UnregisterNodeFleetRequest,
                lambda _: fleet_pb2.UnregisterNodeFleetResponse(),
            ),
            "send-node-heartbeat": (
                heartbeat_pb2.SendNodeHeartbeatRequest,
                lambda _: heartbeat_pb2.SendNodeHeartbeatResponse(success=True),
            ),
            "pull-messages": (fleet_pb2.PullMessagesRequest, self._pull_messages),
            "get-run": (run_pb2.GetRunRequest, lambda _: self._asked().about[0]),
            "get-fab": (fab_pb2.GetFabRequest, lambda _: self._asked().about[1]),
            "pull-object": (message_pb2.PullObjectRequest, self._pull_object),
            "confirm-message-received": (
                message_pb2.ConfirmMessageReceivedRequest,
                lambda _: message_pb2.ConfirmMessageReceivedResponse(),
            ),
            "push-messages": (fleet_pb2.PushMessagesRequest, self._push_messages),
            "push-object": (message_pb2.PushObjectRequest, self._push_object),
        }

    def has_joined(self, seconds: float) -> bool:
        """Whether a SuperNode is there, after so many seconds at most."""
        return self._joined.wait(seconds)

    def _activate(self, _: Any) -> Any:
        from flwr.proto.fleet_pb2 import ActivateNodeResponse

        self._joined.set()
        return ActivateNodeResponse(node_id=_NODE)

    def _asked(self) -> Question:
        if self._question is None:
            raise ValueError("nothing was asked")
        return self._question

    def _pull_messages(self, _: Any) -> Any:
        from flwr.proto import fleet_pb2

        with self._changed:
            turn = self._turn
            self._changed.wait_for(lambda: turn != self._turn or self._may_pull(), _WAIT)
            # A request that waits from before the question is that of a cell that has ended.
            if turn != self._turn or self._question is None or not self._may_pull():
                return fleet_pb2.PullMessagesResponse()
            self._pulled = True
            return fleet_pb2.PullMessagesResponse(
                messages_list=[self._question.message], message_object_trees=[self._question.tree]
            )

    def _may_pull(self) -> bool:
        return self._question is not None and not self._pulled

    def _pull_object(self, request: Any) -> Any:
        from flwr.proto import message_pb2

        content = self._asked().contents.get(request.object_id)
        if content is None:
            return message_pb2.PullObjectResponse(object_found=False, object_available=False)
        return message_pb2.PullObjectResponse(
            object_found=True, object_available=True, object_content=content
        )

    def _push_messages(self, request: Any) -> Any:
        from flwr.proto import fleet_pb2

        (message,), (tree,) = request.messages_list, request.message_object_trees
        names = objects.names_in(tree)
        with self._changed:
            if message.metadata.reply_to_message_id != self._asked().name or self._answer:
                raise ValueError("answers something else, or a second time")
            self._answer = Answer(str(tree.object_id), set(names))
        return fleet_pb2.PushMessagesResponse(
            results={message.metadata.message_id: 0}, objects_to_push=names, session_id="gate"
        )

    def _push_object(self, request: Any) -> Any:
        from flwr.proto import message_pb2

        name, content = request.object_id, request.object_content
        if not objects.is_named(name, content):
            raise ValueError("has another name than its content gives it")
        with self._changed:
            answer = self._answer
            stored = answer is not None and (
                name in answer.contents
                or (name in answer.wanted and answer.size + len(content) <= self._most)
            )
            if answer is not None and stored and name in answer.wanted:
                answer.wanted.discard(name)
                answer.contents[name] = content
                answer.size += len(content)
            complete = answer is not None and not answer.wanted
        if complete:
            self._on_answer()
        return message_pb2.PushObjectResponse(stored=stored)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 16

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks off is no error of the gate's."""


def _handler(shard: Shard) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Seconds that a silent connection may hold a thread.
        timeout = 120

        def do_POST(self) -> None:
            try:
                size = int(self.headers.get("Content-Length", ""))
                if not 0 <= size <= _MOST_BODY:
                    raise ValueError
                found = shard.respond(self.path, self.rfile.read(size))
            except Exception:
                # Whatever the job sent: it learns nothing from here, and the gate goes on.
                found = None
                self.close_connection = True
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", _FORM)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_: Any) -> None:
            """Requests are the job's words: none is logged."""

    return Handler
