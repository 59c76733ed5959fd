"""A federation's processes on one machine: started together, watched, and ended together.

Each client has two, its own and its SuperNode; the SuperLink's leads the run. Every process is the
leader of a group of its own, which is ended as a whole, and ends by itself when this one dies. Only
the SuperLink listens on a port, on this machine alone, and it knows its SuperNodes by their keys;
all folders are closed to other users of the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.project import Addresses, Project
from dpfedadamw.models.own.permission import OPTION, permission

_LOOK = 0.1
_END_SECONDS = 10.0
_RESTART_SECONDS = 2.0
_PARENT_DEATH = 1


def local_addresses() -> Addresses:
    """A SuperLink on a port of this machine that is free."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return Addresses(port=int(one.getsockname()[1]))


@dataclass
class Started:
    """One process.

    Attributes:
        name: What it is.
        process: Itself, the leader of its group.
        log: Where it writes.
        since: When it was started, in seconds that only grow.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    since: float = field(default_factory=time.monotonic)

    def end(self, how: int = signal.SIGTERM) -> None:
        """Send a signal to all of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, how)


@dataclass
class Federation:
    """The processes of a project, from entering to leaving it.

    Attributes:
        project: What is run.
        addresses: Where the SuperLink listens.
        client_command: The command of one client's own process; that of the command line by
            default.
        superlink_options: Further options of the SuperLink's command.
        started: All that were started, by name.
    """

    project: Project
    addresses: Addresses
    client_command: Callable[[int], Sequence[str]] | None = None
    superlink_options: Sequence[str] = ()
    started: dict[str, Started] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Start the SuperLink, all clients and their SuperNodes.

        Raises:
            DeploymentError: If one of them does not start.
        """
        self._logs.mkdir(exist_ok=True)
        self._status.unlink(missing_ok=True)
        try:
            self.start_superlink()
            for client in range(self.project.clients):
                self.start_client(client)
                self.start_supernode(client)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all of them."""
        self.end()

    @property
    def _status(self) -> Path:
        return self.project.server / "status.json"

    @property
    def _logs(self) -> Path:
        return self.project.path / "logs"

    def start_superlink(self) -> None:
        """Start the SuperLink, which leads the run, or goes on with it."""
        folder, port = str(self.project.server), str(self.addresses.port)
        where = ("--host", "127.0.0.1", "--port", port, *self.superlink_options)
        self._start("superlink", [*_command("superlink", folder, *where), *_allowed()])

    def start_client(self, client: int) -> None:
        """Start one client's own process."""
        folder = str(self.project.site(client).path)
        command: Sequence[str] = [*_command("client", folder), *_allowed()]
        if self.client_command is not None:
            command = self.client_command(client)
        self._start(f"client-{client:02d}", command)

    def start_supernode(self, client: int) -> None:
        """Start one client's SuperNode."""
        folder = str(self.project.supernode(client).path)
        self._start(f"supernode-{client:02d}", _command("supernode", folder))

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, at once; `run` starts it again."""
        one = self.started[name]
        one.end(signal.SIGKILL)
        one.process.wait()

    def run(self, on_status: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        """Wait until the SuperLink has led the run to its end.

        Args:
            on_status: Called with what the server tells, as often as it changes.

        Raises:
            DeploymentError: If the run fails.
        """
        told: Mapping[str, Any] = {}
        while told.get("state") not in ("finished", "failed"):
            over = self.started["superlink"].process.poll() is not None
            self._restart()
            time.sleep(_LOOK)
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(self._status.read_bytes())
                if found != told:
                    told = found
                    if on_status is not None:
                        on_status(told)
            if over and told.get("state") not in ("finished", "failed"):
                raise DeploymentError(f"the SuperLink has stopped; its log is in {self._logs}")
        if told["state"] == "failed":
            raise DeploymentError(f"the run has failed: {told['reason']}; logs: {self._logs}")

    def end(self) -> None:
        """End all processes, clients first: politely, then not."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            for one in reversed(list(self.started.values())):
                one.end(how)
            last = time.monotonic() + _END_SECONDS
            for one in self.started.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.1, last - time.monotonic()))
        self.started.clear()

    def _restart(self) -> None:
        """Start clients and SuperNodes again that have ended."""
        for name, one in list(self.started.items()):
            kind, _, number = name.partition("-")
            over = one.process.poll() is not None
            if not number or not over or time.monotonic() < one.since + _RESTART_SECONDS:
                continue
            # What it started may have outlived it.
            one.end(signal.SIGKILL)
            (self.start_client if kind == "client" else self.start_supernode)(int(number))

    def _start(self, name: str, command: Sequence[str]) -> None:
        log = self._logs / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_end_with_parent,
            )
        self.started[name] = Started(name, process, log)


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dpfedadamw", "flower", *words]


def _allowed() -> list[str]:
    return [f"{OPTION}={name}" for name in permission().handed_on()]


def _end_with_parent() -> None:
    """Have Linux end this process when the one that started it dies, however that is."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)
