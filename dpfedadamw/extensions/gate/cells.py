"""Cells: each shard's job code in namespaces of its own, with one way out, the gate's socket.

What the claim rests on: a record is in one shard, and no shard's code may reach another shard's
data or pass it anything. A cell therefore has its own network without an interface but loopback,
its own processes, shared memory and file tree, no privilege on this machine, and none of the
kernel's calls by which processes share something outside of namespaces. `cell` builds it from
inside. What remains is what processors, memory and caches show of each other's work.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.gate import cell

DATA = "/data"
_DOOR = "/gate"
SOCKET = f"{_DOOR}/socket"
"""Where a cell has the gate's socket."""
_SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
)  # fmt: skip
# All that a job sees of the gate's environment: none of it is a secret.
_ENVIRONMENT = ("LANG", "LC_ALL", "TZ", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_HOME = "/tmp"
# Of what a cell writes, from its start; the rest is dropped.
_MOST_LOG = 1 << 18
_PIECE = 1 << 16
# Of a cell, from its start; and of all in it, to its end.
_TRY_SECONDS, _END_SECONDS = 30.0, 10.0


class CellError(DpfedadamwError):
    """This machine cannot isolate shards, or a job could read what it must not."""


class Cells:
    """The process that cells are copies of, so that each begins with its libraries loaded.

    Args:
        trainer: The module whose ``run`` is called in each cell; "" runs a program instead.
    """

    def __init__(self, trainer: str = "") -> None:
        self._trainer = trainer
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it. Cells that run still go on until they are ended."""
        if self._orders is not None and self._process is not None:
            self._orders.close()
            self._process.wait()
        self._orders = self._process = None

    def begin(self, order: bytes, files: Sequence[int]) -> None:
        """Start a cell by an order, with the files of its line and its log."""
        try:
            socket.send_fds(self._begun(), [order], files)
        except OSError:
            # It has been ended from outside. No job can do so, and the next cell needs one.
            self.__exit__()
            socket.send_fds(self._begun(), [order], files)

    def _begun(self) -> socket.socket:
        if self._orders is None:
            self._orders, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with its:
                command = [sys.executable, "-I", cell.__file__, str(its.fileno()), self._trainer]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, env={**_environment(), "HOME": _HOME},
                    pass_fds=[its.fileno()], process_group=0, cwd="/",
                )  # fmt: skip
        return self._orders


class Cell:
    """What runs one shard's job code.

    Args:
        cells: What starts it.
        data: The shard's folder; the job sees it read-only at ``/data``.
        work: A folder of the cell's own, which this makes; the socket lies in it.
        words: What the trainer is told, or the program with its arguments.
        scratch: Memory that the job's files may take, as ``mount`` has it: ``1g``.
        log: A file for what anything in the cell writes, 256 KiB from each start; one that has
            as much is begun again. None keeps nothing.
        more: Files and folders that the job sees too, read-only, by their places in the cell.
    """

    def __init__(
        self,
        cells: Cells,
        data: Path,
        work: Path,
        words: Sequence[str],
        scratch: str = "1g",
        log: Path | None = None,
        more: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        door = work / "door"
        door.mkdir(parents=True)
        self.socket = door / "socket"
        shown = {place: path.resolve() for place, path in more.items()}
        shown |= {DATA: data.resolve(), _DOOR: door.resolve()}
        self._cells, self._log = cells, log
        self._order = _order(work / "root", scratch, shown, words)
        self._line: socket.socket | None = None
        self._copy = threading.Thread()

    def start(self) -> None:
        """Start it; it ends when this process does."""
        self._line, its = socket.socketpair()
        # A file itself would be a way to the machine: a job could empty it, fill the disk or read
        # it again in another round.
        written, log = os.pipe()
        try:
            with its:
                self._cells.begin(self._order, [its.fileno(), log])
        finally:
            os.close(log)
            self._copy = threading.Thread(target=_keep, args=(written, self._log), daemon=True)
            self._copy.start()

    def ended(self, seconds: float) -> bool:
        """Whether its program has ended without an error, after so many seconds at most."""
        assert self._line is not None
        self._line.settimeout(seconds)
        with contextlib.suppress(OSError):
            return self._line.recv(1) == b"\0"
        return False

    def stop(self) -> None:
        """Kill every process in it, without waiting for the system to take them away."""
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)

    def end(self, seconds: float = _END_SECONDS) -> None:
        """Kill every process in it, and wait so long at most until they are gone."""
        if self._line is not None:
            self.stop()
            last = time.monotonic() + seconds
            with self._line:
                self.ended(seconds)
            self._copy.join(max(0.0, last - time.monotonic()))
            self._line = None


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
    log = work / "log"
    with Cells() as cells:
        tried = Cell(cells, work, work / "try", [sys.executable, "-c", ""], "1m", log)
        tried.start()
        ended = tried.ended(_TRY_SECONDS)
        tried.end()
    if not ended:
        why = log.read_text("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
        raise CellError(
            f"shards cannot be isolated here ({why[0]}); it needs Linux 5.8 or newer with user "
            "namespaces, and no container that forbids them"
        )
    log.unlink()


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


def _keep(written: int, log: Path | None) -> None:
    """Copy what a cell writes, up to the limit, and read the rest, so that no job waits for it."""
    left = _MOST_LOG
    with open(written, "rb", buffering=0) as pipe, contextlib.ExitStack() as stack:
        kept = None
        with contextlib.suppress(OSError):
            full = log is not None and log.exists() and log.stat().st_size >= _MOST_LOG
            kept = log and stack.enter_context(log.open("wb" if full else "ab", buffering=0))
        while piece := pipe.read(_PIECE):
            if kept and left:
                # A full disk costs the rest of the log and nothing else.
                with contextlib.suppress(OSError):
                    kept.write(piece[:left])
                left -= min(left, len(piece))


def _order(root: Path, scratch: str, shown: Mapping[str, Path], words: Sequence[str]) -> bytes:
    """What `cell` makes a cell by."""
    root.mkdir()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    places = [*((path, str(path)) for path in visible()), *((one, at) for at, one in shown.items())]
    return json.dumps({
        "root": str(root.resolve()), "scratch": scratch, "program": list(words),
        "shown": [[str(one), place] for one, place in places],
        "environment": {**_environment(), "PATH": path, "HOME": _HOME},
    }).encode()  # fmt: skip


def _environment() -> dict[str, str]:
    return {key: os.environ[key] for key in _ENVIRONMENT if key in os.environ}
