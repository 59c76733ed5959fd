"""Processes are ended with all that they started, and what passes between them is plain."""

from __future__ import annotations

import signal
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest

from dpfedadamw.deployment.processes import Federation, _descendants, free_ports, local_addresses
from dpfedadamw.federation.flower.frames import Frame, receive, send

# A process that starts another, in a group of its own, as Flower does.
_TWO = (
    "import subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], process_group=0); "
    "time.sleep(60)"
)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it is asked of Linux")
def test_nothing_is_left_of_a_process_that_started_others_in_groups_of_their_own(unused, tmp_path):
    federation = Federation(unused, local_addresses(3))
    federation.started.clear()
    logs = unused.path / "logs"
    logs.mkdir()
    federation._start("client-00", [sys.executable, "-c", _TWO], tmp_path)
    leader = federation.started["client-00"].process
    last = time.monotonic() + 20.0
    while not (further := _descendants([leader.pid])):
        assert time.monotonic() < last
        time.sleep(0.02)
    federation.end()
    assert leader.returncode == -signal.SIGTERM
    time.sleep(0.1)
    for process in further:
        state = Path(f"/proc/{process}/stat")
        # Where nobody takes note of its end, its entry stays, as that of one that has ended.
        assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_ports_are_free_and_different():
    assert len(set(free_ports(8))) == 8


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
