"""Processes are ended with all that they started, and what passes between them is plain."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

from dpfedadamw.extensions.deployment.processes import Federation, local_addresses
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
