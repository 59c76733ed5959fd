"""Other users of the machine: what each can reach of a federation's folders and processes.

Root alone can become them, so that without it these tests are skipped.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest

from dpfedadamw import spec as specs
from tests.dpfedadamw.extensions.deployment.conftest import SPEC
from tests.dpfedadamw.extensions.deployment.loops import made
from tests.runs import small_spec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")

SUPERLINK, CLIENT, SUPERNODE, DOOR, STRANGER = range(71001, 71006)


def as_user(user, groups, work):
    """What ``work`` gives, as JSON, in a child that is another user and has nothing of root's."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        # The child calls the system and no library that has threads.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups(groups)
            os.setresgid(groups[0], groups[0], groups[0])
            os.setresuid(user, user, user)
            os.write(theirs, json.dumps(work()).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found)


def can(action):
    try:
        action()
    except OSError:
        return False
    return True


def connects(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(path))


def kind_of(path):
    return stat.S_IFMT(os.lstat(path).st_mode) if can(lambda: os.lstat(path)) else 0


def readable(path):
    if kind_of(path) == stat.S_IFSOCK:
        return can(lambda: connects(path))
    return can(lambda: os.listdir(path)) or can(lambda: os.close(os.open(path, 0)))


def reached(paths):
    """Of some paths, what this user can read and what it can change, both as text.

    What it can change is changed. So this is nothing to be done as root.
    """
    assert os.geteuid() != 0
    found = {"read": [], "changed": []}
    for path in map(str, paths):
        if readable(path):
            found["read"].append(path)
        if (
            can(lambda p=path: os.close(os.open(p, os.O_WRONLY)))
            or can(lambda p=path: os.mkdir(f"{p}/new"))
            or can(lambda p=path: os.chmod(p, 0o777))
            or can(lambda p=path: os.rename(p, f"{p}-old"))
            or can(lambda p=path: os.unlink(p))
        ):
            found["changed"].append(path)
    return found


@pytest.fixture
def outer():
    """A folder into which every user of the machine may look; those of pytest are closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "public").write_text("for all")
        yield Path(folder)


def prepare(project):
    users = map(str, (SUPERLINK, CLIENT, SUPERNODE, DOOR))
    return subprocess.run(["sh", project.path / "prepare", *users], capture_output=True, text=True)


@pytest.fixture
def project(outer):
    """A project of three clients, each folder of it given to the user of its process."""
    project = made(SPEC, outer / "project")
    assert prepare(project).returncode == 0
    return project


@pytest.fixture
def listening(project):
    """A socket that the client's user has made in the first client's door."""
    place = project.site(0).socket
    listener = socket.socket(socket.AF_UNIX)
    child_ready, ready = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setresgid(CLIENT, CLIENT, CLIENT)
            os.setresuid(CLIENT, CLIENT, CLIENT)
            os.umask(0o077)
            listener.bind(str(place))
            place.chmod(0o660)
            listener.listen()
            os.write(ready, b"1")
            while True:
                listener.accept()[0].close()
        os._exit(0)
    os.close(ready)
    assert os.read(child_ready, 1) == b"1"
    os.close(child_ready)
    yield place
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def inside(folder):
    return sorted([folder, *folder.rglob("*")], key=lambda path: -len(path.parts))


def test_the_supernodes_user_reaches_its_own_folder_and_the_clients_socket_and_nothing_else(
    project, listening
):
    everything = inside(project.path)
    nodes = {str(path) for one in range(3) for path in inside(project.supernode(one).path)}
    found = as_user(SUPERNODE, [SUPERNODE, DOOR], lambda: reached(everything))
    doors = {str(project.site(one).socket.parent) for one in range(3)}
    assert set(found["read"]) == nodes | doors | {str(listening)}
    # A socket's mode lets it be written to; it can be neither removed nor moved.
    assert set(found["changed"]) <= nodes
    assert stat.S_ISSOCK(listening.lstat().st_mode)


def test_a_stranger_on_the_machine_reads_changes_and_connects_to_nothing(project, listening):
    everything = inside(project.path)
    assert listening in everything
    found = as_user(STRANGER, [STRANGER], lambda: reached(everything))
    assert found == {"read": [], "changed": []}
    # It was a user that can read what is for all.
    public = project.path.parent / "public"
    assert as_user(STRANGER, [STRANGER], lambda: reached([public]))["read"] == [str(public)]


def test_client_and_superlink_reach_nothing_of_each_other_nor_the_supernodes_key(project):
    everything = inside(project.path)
    server = as_user(SUPERLINK, [SUPERLINK], lambda: reached(everything))
    assert {Path(one).is_relative_to(project.server) for one in server["read"]} == {True}
    client = as_user(CLIENT, [CLIENT], lambda: reached(everything))
    foreign = [project.server, *(project.supernode(one).path for one in range(3))]
    for path in client["read"]:
        assert not any(Path(path).is_relative_to(one) for one in foreign), path
    assert str(project.site(0).share) in client["read"]


def test_a_clients_process_is_no_way_around_what_its_supernode_does_not_see(project):
    """Of one user with it, whatever a unit hides was open behind ``/proc/PID/root``."""
    site = project.site(0)
    process = subprocess.Popen(
        ["sleep", "60"], user=CLIENT, group=CLIENT, extra_groups=[], cwd=site.path
    )
    try:
        behind = [f"/proc/{process.pid}/{way}" for way in (f"root{site.path}", "cwd")]
        parts = [f"/proc/{process.pid}/{part}" for part in ("environ", "mem", "maps", "fd", "io")]
        secrets = [f"{one}/{name}" for one in behind for name in ("share.npz", "key", "salt")]
        for user, groups, finds in (
            (CLIENT, [CLIENT], True),
            (SUPERNODE, [SUPERNODE, DOOR], False),
        ):
            read = as_user(user, groups, lambda: [one for one in secrets + parts if readable(one)])
            assert set(read) == (set(secrets + parts) if finds else set())
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", ["door", "supernode"])
def test_prepare_follows_no_link_that_a_client_has_put_in_place_of_a_folder(name, project, outer):
    victim = outer / "victim"
    victim.mkdir(mode=0o755)
    place = project.site(0).path / name
    place.rename(outer / "away")
    place.symlink_to(victim)
    ended = prepare(project)
    assert ended.returncode == 2
    assert "is a link; put the folder back" in ended.stderr
    after = victim.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (0, 0, 0o755)


def asked(port, path, body=b""):
    """The status by which a port answers a POST; its certificate is not looked at."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10.0, context=trusting)
    with contextlib.closing(connection):
        connection.request("POST", path, body)
        return connection.getresponse().status


@pytest.mark.flower
def test_a_stranger_gets_nowhere_while_poc_runs(outer):
    pytest.importorskip(
        "flwr.app", reason="Flower has an environment of its own: tox run -e flower"
    )
    from dpfedadamw.extensions.deployment.superlink import FLEET

    path = outer / "spec.yaml"
    path.write_text(
        specs.dump(small_spec(rounds=500, clients_per_round=2, overrides=("data.clients=2",)))
    )
    poc = subprocess.Popen(
        [sys.executable, "-m", "dpfedadamw", "flower", "poc", path, "--out", outer / "out"],
        env={**os.environ, "TMPDIR": str(outer)},
    )
    try:
        last = time.monotonic() + 240.0
        while len(list(outer.glob("poc-*/p/clients/*/door/socket"))) < 2 or not list(
            outer.glob("poc-*/p/server/runs/*/ledger.jsonl")
        ):
            assert poc.poll() is None
            assert time.monotonic() < last
            time.sleep(0.1)
        (place,) = outer.glob("poc-*")
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        commands = {
            int(one.parent.name): one.read_bytes()
            for one in Path("/proc").glob("[0-9]*/cmdline")
            if can(one.read_bytes) and bytes(place) in one.read_bytes()
        }
        assert len(commands) >= 5
        (port,) = (
            int(one.split(b"\0")[one.split(b"\0").index(b"--port") + 1])
            for one in commands.values()
            if b"superlink" in one.split(b"\0")
        )
        secrets = [
            content
            for name in ("key", "salt", "supernode/key")
            for content in (one.read_bytes() for one in place.glob(f"p/clients/*/{name}"))
        ]
        everything = inside(place)
        parts = [
            f"/proc/{one}/{part}"
            for one in commands
            for part in ("environ", "mem", "maps", "cwd", "root", "fd", "io")
        ]
        assert all(map(readable, parts))

        def attack():
            named = [f"/v1/control/{one}" for one in ("start-run", "register-node", "list-runs")]
            named += ["/v1/runtime/pull-app-inputs", "/flwr.proto.Control/StartRun", "/"]
            return {
                "files": reached(everything),
                "processes": reached(parts)["read"],
                "answers": sorted({asked(port, one) for one in (*sorted(FLEET), *named)}),
                "killed": [one for one in commands if can(lambda p=one: os.kill(p, 9))],
            }

        found = as_user(STRANGER, [STRANGER], attack)
        assert found["files"] == {"read": [], "changed": []}
        assert found["processes"] == []
        assert found["killed"] == []
        assert min(found["answers"]) >= 400
        for command in commands.values():
            assert not any(one in command or one.hex().encode() in command for one in secrets)
        assert poc.poll() is None
    finally:
        poc.terminate()
        poc.wait(60.0)
    assert not place.exists()
