"""Processes of this machine that make a federation with gated sites, and the sites' data."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfedadamw.extensions.gate.cells import CellError, check

# So little noise that the training shows through it; nobody is protected by it.
EPSILON, DELTA = 20_000, 1e-5


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def shards_of(folder, images, labels, count):
    for shard in range(count):
        place = folder / f"{shard:04d}"
        place.mkdir(parents=True)
        np.savez(place / "records.npz", images=images[shard::count], labels=labels[shard::count])


# What a cell asks of the system, by the system's own programs.
_ISOLATES = """
set -e
mount -t tmpfs cell "$1"
mkdir "$1/proc" "$1/usr" "$1/old"
touch "$1/null"
mount --bind /dev/null "$1/null"
mount --bind /usr "$1/usr"
mount -t proc -o nosuid,nodev,noexec proc "$1/proc"
echo 0 > "$1/proc/sys/user/max_user_namespaces"
umount "$1/proc"
mount -t proc -o ro,nosuid,nodev,noexec,subset=pid proc "$1/proc"
hostname cell
cd "$1"
pivot_root . old
"""


def isolates(place):
    """Whether this machine lets a user make a cell, as programs of the system find."""
    root = place / "isolates"
    root.mkdir()
    spaces = ("user", "mount", "net", "pid", "ipc", "uts", "cgroup")
    command = ["unshare", "--map-root-user", *(f"--{one}" for one in spaces), "--fork"]
    try:
        done = subprocess.run(
            [*command, "sh", "-c", _ISOLATES, "sh", str(root)],
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0


def needs_cells(place):
    """Skip where the machine has no cells; a fault of the gate is no reason to skip."""
    try:
        check([], place)
    except CellError as error:
        if isolates(place):
            raise
        pytest.skip(str(error))


def seconds_of(command, count):
    """What so many of a command take at once, as busy as this machine is."""
    started = time.monotonic()
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]
    assert [one.wait(120) for one in processes] == [0] * count
    return time.monotonic() - started


class Processes:
    """What was started, by name, with a log each.

    Args:
        place: A folder.
        python: Of the environment that they run in.
        more: For their environment.
    """

    def __init__(self, place, python=sys.executable, **more):
        self.place, self.python, self._started = place, str(python), {}
        (place / "home").mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "HOME": str(place / "home"),
            "PATH": f"{Path(self.python).parent}:{os.environ['PATH']}",
            "DPFEDADAMW_KEYS": str(place / "keys"), **more,
        }  # fmt: skip

    def start(self, name, *command):
        with (self.place / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, cwd=self.place,
                start_new_session=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def call(self, *words, code=0):
        """Run Python with these words to its end."""
        done = subprocess.run(
            [self.python, *words], env=self.environment, capture_output=True, text=True,
            timeout=300, check=False, stdin=subprocess.DEVNULL, cwd=self.place,
        )  # fmt: skip
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def gate(self, *words):
        return self.call("-m", "dpfedadamw", "gate", *map(str, words))

    def begin(self, site, releases, shards):
        """A gate for the digits in a site's folder; its settings are returned."""
        model = self.place / "model.safetensors"
        save_file(
            {"weights": np.zeros((64, 10), np.float32), "bias": np.zeros(10, np.float32)}, model
        )
        self.gate(
            "init", site / "gate", "--unit", "record", "--shards", shards, "--model", model,
            "--clip", 1, "--epsilon", EPSILON, "--delta", DELTA, "--releases", releases,
            "--anchor", site / "anchor" / "head.json",
        )  # fmt: skip
        return site / "gate" / "gate.yaml"

    def log(self, name):
        return (self.place / f"{name}.log").read_text(errors="replace")

    def wait(self, true, name, seconds=240.0):
        last = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < last, self.log(name)[-4000:]
            assert all(one.poll() is None for one in self._started.values()), self.log(name)[-4000:]
            time.sleep(0.2)

    def kill(self, name):
        """As a crash ends it."""
        one = self._started.pop(name)
        one.kill()
        one.wait()

    def end(self):
        for one in reversed(self._started.values()):
            one.terminate()
        for one in self._started.values():
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
