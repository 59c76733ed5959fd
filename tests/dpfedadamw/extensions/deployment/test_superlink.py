"""The SuperLink's door: what is passed on to Flower, and what is answered before it."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from dpfedadamw.extensions.deployment import superlink
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.superlink import FLEET, Door, FleetOnly, _listener, _run, grid

LONGEST = 8 << 20


class Application:
    """Notes what reaches it."""

    def __init__(self):
        self.got = []

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"] if scope["type"] == "http" else None
        self.got.append((scope["type"], scope.get("path"), body))
        await send({"type": "http.response.start", "status": 200, "headers": []})


KEY = (b"flwr-public-key", b"bmFtZWQ=")


def door_of(application):
    return FleetOnly(application, KEY[0], frozenset({KEY[1]}))


def asked(path, method="POST", parts=(b"",), kind="http", headers=(KEY,)):
    """The statuses that one request is answered with, and what reached the application."""
    application, sent = Application(), []
    waiting = [
        {"type": "http.request", "body": one, "more_body": index + 1 < len(parts)}
        for index, one in enumerate(parts)
    ]

    async def receive():
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    door = door_of(application)
    scope = {"type": kind, "method": method, "path": path, "headers": list(headers)}
    asyncio.run(door(scope, receive, send))
    return [one["status"] for one in sent if "status" in one], application.got, door


@pytest.mark.parametrize(
    "name",
    [
        "activate-node", "confirm-message-received", "deactivate-node", "get-run", "pull-messages",
        "pull-object", "push-messages", "push-object", "send-node-heartbeat",
    ],
)  # fmt: skip
def test_what_a_supernode_asks_for_is_passed_on_whole(name):
    path = f"/v1/fleet/{name}"
    assert len(FLEET) == 9
    statuses, got, door = asked(path, parts=(b"ab", b"", b"c"))
    assert (statuses, got, door.refused) == ([200], [("http", path, b"abc")], 0)


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/control/start-run", "POST"),
        ("/v1/control/register-node", "POST"),
        ("/v1/runtime/acquire-task", "POST"),
        ("/v1/fleet/register-node", "POST"),
        ("/v1/fleet/unregister-node", "POST"),
        ("/v1/fleet/get-fab", "POST"),
        ("/v1/fleet/pull-messages", "GET"),
        ("/v1/fleet/pull-messages/", "POST"),
        ("//v1/fleet/pull-messages", "POST"),
        ("/v1/fleet/../control/start-run", "POST"),
        ("/v1/fleet/%70ull-messages", "POST"),
        ("/V1/fleet/pull-messages", "POST"),
        ("/openapi.json", "GET"),
        ("/docs", "GET"),
        ("/health", "GET"),
        ("/", "POST"),
    ],
)
def test_everything_else_is_answered_without_flower(path, method):
    statuses, got, door = asked(path, method)
    assert (statuses, got, door.refused) == ([404], [], 1)


def test_a_body_longer_than_any_supernode_sends_is_refused_however_it_is_cut():
    for parts in ((b"x" * (LONGEST + 1),), (b"x" * LONGEST, b"x"), (b"x",) * 3 + (b"y" * LONGEST,)):
        statuses, got, _ = asked("/v1/fleet/push-object", parts=parts)
        assert (statuses, got) == ([413], [])
    statuses, got, _ = asked("/v1/fleet/push-object", parts=(b"x" * LONGEST,))
    assert statuses == [200]
    assert len(got[0][2]) == LONGEST


@pytest.mark.parametrize(
    "headers", [(), ((b"flwr-public-key", b"other"),), ((b"another", KEY[1]),), (KEY, KEY)]
)
def test_of_a_request_without_a_key_that_was_named_no_body_is_read(headers):
    async def receive():
        raise AssertionError

    sent, application = [], Application()

    async def send(message):
        sent.append(message)

    path = "/v1/fleet/push-object"
    scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
    asyncio.run(door_of(application)(scope, receive, send))
    assert (sent[0]["status"], application.got) == (401, [])


def test_a_body_that_does_not_arrive_in_time_is_given_up(monkeypatch):
    monkeypatch.setattr(superlink, "_BODY_SECONDS", 0.05)
    sent, application = [], Application()

    async def receive():
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message):
        sent.append(message)

    path = "/v1/fleet/push-object"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [KEY]}
    asyncio.run(door_of(application)(scope, receive, send))
    assert (sent[0]["status"], application.got) == (408, [])


def test_a_websocket_reaches_nothing():
    statuses, got, door = asked("/v1/fleet/pull-messages", kind="websocket")
    assert (statuses, got, door.refused) == ([], [], 1)


def test_what_begins_and_ends_a_server_reaches_flower():
    statuses, got, door = asked("/", kind="lifespan")
    assert (statuses, got, door.refused) == ([200], [("lifespan", "/", None)], 0)


def test_a_refusal_says_in_json_what_it_is_and_ends_the_connection():
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/docs", "headers": []}
    asyncio.run(door_of(Application())(scope, None, send))
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert dict(start["headers"]) == {b"content-type": b"application/json", b"connection": b"close"}
    assert json.loads(body["body"]) == {"detail": "a request for what is not served"}


def test_a_request_whose_sender_goes_is_no_request():
    statuses, got, door = asked("/v1/fleet/push-object", parts=())
    assert (statuses, got, door.refused) == ([413], [], 1)


def test_what_flower_reads_after_a_body_is_what_comes_on_the_connection():
    class Reading(Application):
        async def __call__(self, scope, receive, send):
            self.got += [await receive(), await receive()]

    application = Reading()
    waiting = [
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request"},
        {"type": "http.disconnect"},
    ]

    async def receive():
        return waiting.pop(0)

    path = "/v1/fleet/push-object"
    scope = {"type": "http", "method": "POST", "path": path, "headers": [KEY]}
    asyncio.run(door_of(application)(scope, receive, None))
    assert application.got == [
        {"type": "http.request", "body": b"ab", "more_body": False},
        {"type": "http.disconnect"},
    ]


def test_a_flood_of_refusals_is_a_handful_of_log_lines(caplog):
    door = door_of(Application())
    with caplog.at_level("WARNING"):
        for _ in range(1000):
            door._note("a request")
    assert door.refused == 1000
    assert len(caplog.records) == 10


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        door = Door(host="127.0.0.1", port=port, certificate=tmp_path, key=tmp_path)
        with pytest.raises(DeploymentError, match=rf"127\.0\.0\.1:{port}: cannot listen there"):
            _listener(door)


@pytest.mark.parametrize(("token", "active"), [(None, True), ("token", False), (None, False)])
def test_a_run_that_flower_does_not_begin_is_one_line(token, active, monkeypatch):
    for module in (
        "flwr.common.constant", "flwr.supercore.constant", "flwr.supercore.task_identity",
        "flwr.superlink.grid.http_grid",
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, module, Mock())
    state = SimpleNamespace(
        create_run=lambda *_: 7,
        get_tasks=lambda run_ids: [SimpleNamespace(task_id=3)],
        claim_task=lambda task: token,
        activate_task=lambda task: active,
    )
    ended = threading.Event()
    ended.set()
    with pytest.raises(DeploymentError, match=r"^Flower does not start a run$"):
        _run(state, ended)


def test_a_certificate_that_is_missing_or_none_is_one_line_before_anything_listens(fresh, tmp_path):
    home = fresh.server

    def refused(folder):
        door = Door(
            host="127.0.0.1", port=0, certificate=folder / "superlink.crt",
            key=folder / "superlink.key",
        )  # fmt: skip
        with pytest.raises(DeploymentError) as error, grid(door, home / "nodes"):
            pass
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "superlink.crt: is missing; give the server's folder" in refused(tmp_path)
    for name in ("superlink.crt", "superlink.key"):
        shutil.copyfile(home / name, tmp_path / name)
    (tmp_path / "superlink.crt").write_text("none")
    assert "are not a certificate and its key" in refused(tmp_path)
