"""Strangers before a federation's door, with real processes; `tox run -e flower` runs this.

An outsider has the SuperLink's address and its public certificate. A thief has one SuperNode's key.
A lying server has the SuperLink's certificate and key, and runs Flower's own command with them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfedadamw.extensions.deployment.processes import Federation, local_addresses
from dpfedadamw.extensions.deployment.superlink import FLEET
from tests.dpfedadamw.extensions.deployment.conftest import SPEC
from tests.dpfedadamw.extensions.deployment.loops import made

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

pytestmark = pytest.mark.flower

_APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "attacker"
version = "1.0.0"
description = ""
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "attacker"
[tool.flwr.app.components]
serverapp = "attacker_app.server:app"
clientapp = "attacker_app.client:app"
"""
_SERVER = """\
import pathlib, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    pathlib.Path({canary!r}, "server").touch()
    answers = pathlib.Path({canary!r}, "answers")
    for _ in range(600):
        nodes = list(grid.get_node_ids())
        if nodes:
            break
        time.sleep(0.1)
    hello, train = dict(hello="0" * 32), dict(run="x", remembered="")
    for values in (hello, train, dict(read="share.npz"), dict()):
        sent = Message(RecordDict({{"asked": ConfigRecord(values)}}), nodes[0], "train")
        for reply in grid.send_and_receive([sent], timeout=60):
            said = "error" if reply.has_error() else repr(dict(reply.content["answer"]))
            with answers.open("a") as file:
                file.write(said + "\\n")
    pathlib.Path({canary!r}, "done").touch()
"""
_CLIENT = """\
import pathlib
pathlib.Path({canary!r}, "client").touch()
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train()
def train(message, context):
    pathlib.Path({canary!r}, "client").touch()
"""


def app_of(place, canary):
    """An attacker's app, which leaves files in a folder wherever it runs."""
    package = place / "attacker_app"
    package.mkdir(parents=True)
    canary.mkdir()
    (place / "pyproject.toml").write_text(_APP)
    (package / "__init__.py").touch()
    (package / "server.py").write_text(_SERVER.format(canary=str(canary)))
    (package / "client.py").write_text(_CLIENT.format(canary=str(canary)))
    return place


def flwr(home, *arguments, program="flwr"):
    """Run one of Flower's commands with a home of its own."""
    return subprocess.run(
        [Path(sys.executable).parent / program, *map(str, arguments)],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=120,
    )


def environment(home):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    return {**os.environ, **quiet, "FLWR_HOME": str(home), "PATH": path}


def home_of(place, authority, port):
    """A home of Flower's that holds the address and the public certificate, and nothing else."""
    place.mkdir()
    shutil.copy(authority, place / "ca.crt")
    (place / "config.toml").write_text(
        f'[superlink]\ndefault = "federation"\n\n[superlink.federation]\n'
        f'address = "127.0.0.1:{port}"\nroot-certificates = "{place / "ca.crt"}"\n'
    )
    return place


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """A federation that waits for its third client, whose key is a thief's."""
    place = tmp_path_factory.mktemp("federation")
    addresses = local_addresses()
    project = made(SPEC, place / "p", addresses)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Federation, "start_client", _but_the_last(Federation.start_client))
        patch.setattr(Federation, "start_supernode", _but_the_last(Federation.start_supernode))
        with Federation(project, addresses) as federation:
            wait_until(lambda: "connected" in log_of(project, "supernode-01"))
            yield federation


def _but_the_last(start):
    def started(self, client):
        if client < 2:
            start(self, client)

    return started


def log_of(project, name):
    path = project.path / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


def wait_until(true, seconds=120.0):
    last = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < last
        time.sleep(0.1)


def context_of(federation):
    authority = federation.project.supernode(0).authority
    return ssl.create_default_context(cafile=str(authority))


def secrets_of(project):
    """Digests of all that strangers must neither read nor change."""
    names = ("share.npz", "key", "salt", "ledger.jsonl", "spec.yaml", "site.json")
    files = [project.site(client).path / name for client in range(2) for name in names]
    return [hashlib.sha256(one.read_bytes()).hexdigest() for one in files if one.exists()]


def test_an_outsider_runs_nothing_registers_nothing_and_sees_no_list(meeting, tmp_path):
    port, authority = meeting.addresses.port, meeting.project.supernode(0).authority
    home, canary = home_of(tmp_path / "home", authority, port), tmp_path / "canary"
    app = app_of(tmp_path / "app", canary)
    before = secrets_of(meeting.project)
    ran = flwr(home, "run", app, "federation")
    assert ran.returncode != 0, ran.stdout
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", tmp_path / "mine"],
        check=True,
    )
    registered = flwr(home, "supernode", "register", tmp_path / "mine.pub", "federation")
    assert registered.returncode != 0, registered.stdout
    assert flwr(home, "supernode", "ls", "federation").returncode != 0
    assert flwr(home, "ls", "federation").returncode != 0
    time.sleep(3.0)
    assert list(canary.iterdir()) == []
    assert secrets_of(meeting.project) == before
    assert meeting.started["superlink"].process.poll() is None


def test_of_all_that_flower_serves_an_outsider_reaches_nothing(meeting):
    import httpx
    from flwr.superlink.main import create_app

    routes = {
        (method, route.path)
        for route in create_app().routes
        for method in getattr(route, "methods", None) or ()
    }
    # Flower nests routers; what it documents of itself names them all.
    routes |= {
        (method.upper(), path)
        for path, operations in create_app().openapi()["paths"].items()
        for method in operations
    }
    assert len(routes) > 60
    assert {path for _, path in routes} >= FLEET
    with httpx.Client(verify=context_of(meeting)) as client:
        for method, path in sorted(routes):
            where = f"https://127.0.0.1:{meeting.addresses.port}{path}"
            for body in (b"", b"\x0a\x02hi", b"\xff" * 100):
                status = client.request(method, where, content=body).status_code
                if method == "POST" and path in FLEET:
                    assert status in (400, 401, 415, 422), (method, path, status)
                else:
                    assert status == 404, (method, path, status)


def test_a_supernode_whose_key_nobody_named_is_not_let_in(meeting, tmp_path):
    from cryptography.hazmat.primitives.asymmetric import ec
    from httpx import HTTPStatusError

    from dpfedadamw.extensions.deployment.supernode import _connected

    own = ec.generate_private_key(ec.SECP384R1())
    address = f"127.0.0.1:{meeting.addresses.port}"
    with (
        pytest.raises(HTTPStatusError),
        _connected(address, meeting.project.supernode(0).authority, (own, own.public_key())),
    ):
        raise AssertionError


def test_a_thief_of_a_supernodes_key_gets_only_what_that_supernode_is_sent(meeting):
    from flwr.proto import fab_pb2, fleet_pb2, message_pb2, run_pb2
    from flwr.proto.node_pb2 import Node
    from httpx import HTTPStatusError

    from dpfedadamw.extensions.deployment.supernode import _connected, _keys

    stolen = meeting.project.supernode(2)
    before = secrets_of(meeting.project)
    address = f"127.0.0.1:{meeting.addresses.port}"
    with _connected(address, stolen.authority, _keys(stolen.key)) as (client, node):
        got = []
        wait_until(
            lambda: (
                got.extend(
                    client.PullMessages(fleet_pb2.PullMessagesRequest(node=node)).messages_list
                )
                or got
            )
        )
        run = got[0].metadata.run_id
        # As another node, whatever its number, it is nobody.
        for other in (node.node_id + 1, 1, 0):
            with pytest.raises(HTTPStatusError, match="401"):
                client.PullMessages(fleet_pb2.PullMessagesRequest(node=Node(node_id=other)))
        with pytest.raises(HTTPStatusError, match="404"):
            client.GetFab(fab_pb2.GetFabRequest(node=node, hash_str="00", run_id=run))
        with pytest.raises(HTTPStatusError, match="404"):
            client.RegisterNode(fleet_pb2.RegisterNodeFleetRequest(public_key=b"x"))
        described = client.GetRun(run_pb2.GetRunRequest(node=node, run_id=run)).run
        assert not described.fab_hash
        found = client.PullObject(
            message_pb2.PullObjectRequest(node=node, run_id=run, object_id="0" * 64)
        )
        assert not found.object_found
    assert secrets_of(meeting.project) == before
    assert meeting.started["superlink"].process.poll() is None


@contextlib.contextmanager
def lying_superlink(project, port, home):
    """Flower's own SuperLink with the server's certificate and key."""
    server = project.server
    command = [
        Path(sys.executable).parent / "flower-superlink", "--host", "127.0.0.1", "--port", port,
        "--ssl-ca-certfile", project.supernode(0).authority,
        "--ssl-certfile", server / "superlink.crt", "--ssl-keyfile", server / "superlink.key",
        "--enable-supernode-auth", "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    process = subprocess.Popen(
        list(map(str, command)), env=environment(home), start_new_session=True
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_lying_server_runs_its_app_on_its_own_machine_and_nothing_on_a_supernodes(tmp_path):
    addresses = local_addresses()
    project = made(SPEC, tmp_path / "p", addresses)
    home = home_of(tmp_path / "home", project.supernode(0).authority, addresses.port)
    canary = tmp_path / "canary"
    app = app_of(tmp_path / "app", canary)
    federation = Federation(project, addresses)
    (project.path / "logs").mkdir()
    with lying_superlink(project, addresses.port, home):
        try:
            federation.start_client(0)
            wait_until(project.site(0).socket.exists)
            before = secrets_of(project)
            key = project.server / "nodes" / "00.pub"
            wait_until(
                lambda: flwr(home, "supernode", "register", key, "federation").returncode == 0
            )
            federation.start_supernode(0)
            wait_until(lambda: "connected" in log_of(project, "supernode-00"))
            assert flwr(home, "run", app, "federation").returncode == 0
            wait_until((canary / "done").exists, 300.0)
            # The app does run where its owner may run it: the attack is a real one.
            assert (canary / "server").exists()
            assert not (canary / "client").exists()
            introduced, *others = (canary / "answers").read_text().splitlines()
            # It may learn who the client is, by a signature; nothing else.
            assert "'signature'" in introduced
            assert len(others) == 3
            assert all("'refused'" in one for one in others), others
            assert federation.started["supernode-00"].process.poll() is None
            assert federation.started["client-00"].process.poll() is None
            assert secrets_of(project) == before
        finally:
            federation.end()
