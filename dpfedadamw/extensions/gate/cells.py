"""Cells: each shard's job code in namespaces of its own, with one way out, the gate's socket.

What the claim rests on: a record is in one shard, and no shard's code can reach another shard's
data or pass it anything. A cell therefore has its own network without an interface but loopback,
its own processes, shared memory and file tree, and no privilege on this machine. `cell` builds it
from inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate import cell

DATA = "/data"
PORT = 9092
"""Of the cell's own loopback; it leads to the gate's socket."""
_DOOR = "/gate"
_UNSHARE = (
    "unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts",
    "--cgroup", "--fork", "--kill-child=KILL",
)  # fmt: skip
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
)  # fmt: skip
# All that a job sees of the gate's environment: none of it is a secret.
_ENVIRONMENT = ("LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_PARENT_DEATH = 1
_TRY_SECONDS = 30.0


class CellError(DpfedadamwError):
    """This machine cannot isolate shards, or a job could read what it must not."""


class Cell:
    """What runs one shard's job code.

    Args:
        data: The shard's folder; the job sees it read-only at ``/data``.
        work: A folder of the cell's own, which this makes; the socket lies in it.
        program: What runs in it, once.
        scratch: Memory that the job's files may take, as ``mount`` has it: ``1g``.
        log: Where everything in the cell writes; None keeps nothing.
        more: Files and folders that the job sees too, read-only, by their places in the cell.
    """

    def __init__(
        self,
        data: Path,
        work: Path,
        program: Sequence[str],
        scratch: str = "1g",
        log: Path | None = None,
        more: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        root, door = work / "root", work / "door"
        root.mkdir(parents=True)
        door.mkdir()
        self.socket = door / "socket"
        self._log = log
        shown = [(str(path), str(path)) for path in visible()]
        shown += [(str(path.resolve()), place) for place, path in more.items()]
        shown += [(str(data.resolve()), DATA), (str(door.resolve()), _DOOR)]
        self._command = _command(root, scratch, shown, program)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it ends when this process does."""
        with contextlib.ExitStack() as stack:
            log: Any = subprocess.DEVNULL
            if self._log is not None:
                log = stack.enter_context(self._log.open("ab"))
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=_environment(), process_group=0, preexec_fn=_end_with_parent,
            )  # fmt: skip

    def end(self) -> None:
        """End every process in it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def check(private: Sequence[Path], work: Path) -> None:
    """Make sure that this machine can isolate shards, and that jobs see nothing private.

    Args:
        private: Files and folders that no job may see: settings, ledger, keys, shards.
        work: An empty folder.

    Raises:
        CellError: If not; the message says what would be right.
    """
    for path in map(Path.resolve, private):
        for place in visible():
            if path.is_relative_to(place.resolve()):
                raise CellError(
                    f"{path}: lies under {place}, which every job can read; move it elsewhere"
                )
    root = work / "try"
    root.mkdir()
    shown = [(str(path), str(path)) for path in visible()]
    tried = _command(root, "1m", shown, [sys.executable, "-c", ""])
    try:
        done = subprocess.run(
            tried, env=_environment(), capture_output=True, timeout=_TRY_SECONDS, check=False
        )
        why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no message"]
        failed = done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        why, failed = [type(error).__name__], True
    if failed:
        raise CellError(
            f"shards cannot be isolated here ({why[0]}); it needs Linux with user namespaces, "
            "util-linux's unshare, and no container that forbids them"
        )


def folders_of(data: Path, wanted: int) -> list[Path]:
    """The shards' folders, by name.

    Raises:
        CellError: If there are not as many as the settings say.
    """
    found = sorted(one for one in data.iterdir() if one.is_dir()) if data.is_dir() else []
    if len(found) != wanted:
        raise CellError(
            f"{data}: holds {len(found)} folders; must hold one a shard, of which gate.yaml has "
            f"{wanted}"
        )
    return found


@functools.cache
def visible() -> Sequence[Path]:
    """What every job can read of this machine: its programs, Python and its packages."""
    # Without the current folder and the user's own packages, which `-I` leaves out.
    asked = [sys.executable, "-I", "-c", "import json, sys; print(json.dumps(sys.path))"]
    found = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    python = [sys.prefix, sys.base_prefix, *found]
    paths: list[Path] = [Path(one) for one in _SYSTEM if os.path.lexists(one)]
    for one in map(Path, python):
        if one.exists() and not any(one.is_relative_to(place) for place in paths):
            paths.append(one)
    return tuple(paths)


def _command(
    root: Path,
    scratch: str,
    shown: Sequence[tuple[str, str]],
    program: Sequence[str],
) -> list[str]:
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    spec = {
        "root": str(root.resolve()), "scratch": scratch, "shown": shown, "port": PORT,
        "socket": f"{_DOOR}/socket", "program": list(program),
        "environment": {**_environment(), "PATH": path, "HOME": "/tmp"},
    }  # fmt: skip
    unshare = shutil.which(_UNSHARE[0]) or _UNSHARE[0]
    return [unshare, *_UNSHARE[1:], sys.executable, "-I", cell.__file__, json.dumps(spec)]


def _environment() -> dict[str, str]:
    return {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
