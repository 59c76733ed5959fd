"""Processes are ended with all that they started, and what passes between them is plain."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.processes import Federation, local_addresses
from dpfedadamw.extensions.deployment.project import Addresses
from dpfedadamw.federation.flower.frames import Frame, receive, send

# A process that starts another, in the same group.
_TWO = (
    "import subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); time.sleep(60)"
)


def members(group):
    """The processes of a group that have not ended."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = status.read_text().rpartition(")")[2].split()
            if int(words[2]) == group and words[0] != "Z":
                found.append(status)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it is asked of Linux")
def test_nothing_is_left_of_a_process_that_started_others(fresh):
    federation = Federation(fresh, local_addresses())
    (fresh.path / "logs").mkdir()
    federation._start("client-00", [sys.executable, "-c", _TWO])
    leader = federation.started["client-00"].process
    last = time.monotonic() + 20.0
    while len(members(leader.pid)) < 2:
        assert time.monotonic() < last
        time.sleep(0.02)
    federation.end()
    assert leader.returncode == -signal.SIGTERM
    last = time.monotonic() + 5.0
    while members(leader.pid):
        assert time.monotonic() < last
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="it is asked of Linux")
def test_a_process_does_not_outlive_the_one_that_started_it(fresh):
    (fresh.path / "logs").mkdir()
    starter, number = os.fork(), fresh.path / "number"
    if not starter:
        with contextlib.suppress(BaseException):
            federation = Federation(fresh, Addresses())
            federation._start("client-00", ["sleep", "600"])
            number.write_text(f"{federation.started['client-00'].process.pid}.")
            signal.pause()
        os._exit(1)
    _wait_for(lambda: number.exists() and number.read_text().endswith("."))
    started = int(number.read_text()[:-1])
    try:
        assert members(started)
        os.kill(starter, signal.SIGKILL)
        os.waitpid(starter, 0)
        _wait_for(lambda: not members(started))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started, signal.SIGKILL)


def _wait_for(true, seconds=20.0):
    last = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < last
        time.sleep(0.02)


def test_a_local_superlink_gets_a_free_port_of_this_machine_alone():
    found = [local_addresses() for _ in range(2)]
    for one in found:
        assert one.host == "127.0.0.1"
        assert one.port > 1023
        with socket.create_server((one.host, one.port)):
            pass


# Stands for Python: notes how it was called. Client 0 ends at its first start, all others stay, and
# the SuperLink does what it is told.
PYTHON = """#!/bin/sh
echo "$@" >> CALLS
case "$4 $5" in
superlink*) . TOLD ;;
"client "*/00) [ "$(grep -c ' client .*/00$' CALLS)" = 2 ] && exec sleep 600 ;;
*) exec sleep 600 ;;
esac
"""
TELLS = "echo '{}' > STATUS.part && mv STATUS.part STATUS\n"
WAITS_FOR_CLIENT_0 = "until [ $(grep -c ' client .*/00$' CALLS) = 2 ]; do sleep 0.1; done\n"
STAYS = "exec sleep 600\n"


def tells(state, **more):
    return TELLS.replace("{}", json.dumps({"state": state, **more}))


@pytest.fixture
def led_by(fresh, monkeypatch):
    """Runs a project's processes, of which the SuperLink does what it is told; the calls."""

    def run(told, on_status=None):
        places = {
            "CALLS": fresh.path / "calls",
            "TOLD": fresh.path / "told",
            "STATUS": fresh.server / "status.json",
        }

        def placed(text):
            for name, path in places.items():
                text = text.replace(name, str(path))
            return text

        places["TOLD"].write_text(placed(told))
        program = fresh.path / "python"
        program.write_text(placed(PYTHON))
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))
        with Federation(fresh, Addresses(port=31337)) as federation:
            names, every = list(federation.started), list(federation.started.values())
            federation.run(on_status)
            every += federation.started.values()
        assert all(one.process.returncode is not None for one in every)
        return names, places["CALLS"].read_text().splitlines()

    return run


def test_a_federation_is_a_superlink_and_two_processes_a_client_until_the_run_is_over(
    led_by, fresh
):
    told, seen = [], fresh.path / "seen"

    def note(status):
        told.append(status)
        seen.touch()

    waits = f"until [ -e {seen} ]; do sleep 0.1; done\n"
    steps = [tells("training", completed=1), waits, tells("finished"), STAYS]
    names, calls = led_by("".join(steps), note)
    both = [f"{kind}-0{client}" for client in range(3) for kind in ("client", "supernode")]
    assert names == ["superlink", *both]
    assert told == [{"state": "training", "completed": 1}, {"state": "finished"}]
    sites = [fresh.site(client).path for client in range(3)]
    assert {one.removeprefix("-m dpfedadamw flower ") for one in calls} == {
        f"superlink {fresh.server} --host 127.0.0.1 --port 31337",
        *(f"client {site}" for site in sites),
        *(f"supernode {site}/supernode" for site in sites),
    }


def test_a_client_that_ends_is_started_again_and_the_others_are_not(led_by, fresh):
    _, calls = led_by(WAITS_FOR_CLIENT_0 + tells("finished") + STAYS)
    sites = [fresh.site(client).path for client in range(3)]
    ends = [[f" client {site}", f" supernode {site}/supernode"] for site in sites]
    counts = [[sum(call.endswith(end) for call in calls) for end in of] for of in ends]
    assert counts == [[2, 1], [1, 1], [1, 1]]


def test_a_run_that_fails_says_why_and_where_the_logs_are(led_by, fresh):
    with pytest.raises(DeploymentError, match="no client answered") as told:
        led_by(tells("failed", reason="no client answered") + STAYS)
    assert str(fresh.path / "logs") in str(told.value)


def test_a_superlink_that_stops_without_a_word_has_finished_no_run(led_by, fresh):
    (fresh.server / "status.json").write_text('{"state": "finished"}')
    with pytest.raises(DeploymentError, match="the SuperLink has stopped"):
        led_by("exit 0\n")


def test_a_frame_comes_back_as_it_was_sent():
    here, there = Pipe()
    frame = Frame(
        {"round": 3, "history": bytes(range(32)), "names": ["a", "b"], "away": False},
        {
            "parameters": ("float32", (2,), "numpy.ndarray", b"\x00\x01"),
            "empty": ("x", (), "", b""),
        },
    )
    send(here, frame)
    assert receive(there) == frame


@pytest.mark.parametrize("content", [b"no json", b"[]", b"{}", b"\x80\x04]."])
def test_what_is_no_frame_is_refused_and_never_unpickled(content):
    here, there = Pipe()
    here.send_bytes(content)
    with pytest.raises((ValueError, KeyError, TypeError)):
        receive(there)
