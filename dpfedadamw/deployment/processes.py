"""A federation's processes on one machine: started together, watched, and ended together.

Each client has two, its own and its SuperNode; the SuperLink starts the server's. Every process is
the leader of a group of its own, which is ended as a whole, and ends by itself when this one dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
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

from dpfedadamw.deployment.errors import DeploymentError
from dpfedadamw.deployment.project import (
    Addresses,
    Project,
    superlink_command,
    supernode_command,
)

_LOOK = 0.1
_START_SECONDS = 120.0
_END_SECONDS = 10.0
_RESTART_SECONDS = 2.0
# Also how often Flower looks for a message that has come, in seconds, where that can be set.
_FLOWER = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
_PARENT_DEATH = 1


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on at this moment."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found.append(int(one.getsockname()[1]))
    return found


def local_addresses(clients: int) -> Addresses:
    """A SuperLink and SuperNodes on ports of this machine that are free."""
    link, *nodes = free_ports(1 + clients)
    return Addresses(port=link, node_ports=tuple(nodes))


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
        addresses: Where processes listen.
        client_command: The command of one client's own process; that of the command line by
            default.
        node_program: What is started in place of ``flower-supernode``, with its arguments.
        started: All that were started, by name.
    """

    project: Project
    addresses: Addresses
    client_command: Callable[[int], Sequence[str]] | None = None
    node_program: Sequence[str] = ()
    started: dict[str, Started] = field(default_factory=dict)

    def __enter__(self) -> Self:
        """Start the SuperLink, tell it the SuperNodes' keys, and start all clients.

        Raises:
            DeploymentError: If one of them does not start.
        """
        self._logs.mkdir(exist_ok=True)
        try:
            link = superlink_command(self.project, self.addresses.port)
            link[link.index("--host") + 1] = "127.0.0.1"
            self._start("superlink", link, self._home)
            for client in range(self.project.clients):
                self.start_client(client)
            self._wait_for_superlink()
            for client in range(self.project.clients):
                self._register(client)
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
    def _home(self) -> Path:
        return self.project.server

    @property
    def _logs(self) -> Path:
        return self.project.path / "logs"

    def start_client(self, client: int) -> None:
        """Start one client's own process."""
        folder = str(self.project.site(client).path)
        command: Sequence[str] = (
            sys.executable, "-m", "dpfedadamw", "flower", "client", folder,
        )  # fmt: skip
        if self.client_command is not None:
            command = self.client_command(client)
        self._start(f"client-{client:02d}", command, self.project.path)

    def start_supernode(self, client: int) -> None:
        """Start one client's SuperNode."""
        command = supernode_command(self.project, client, self.addresses)
        command = [*(self.node_program or command[:1]), *command[1:]]
        home = self.project.site(client).path / "flower"
        home.mkdir(exist_ok=True)
        self._start(f"supernode-{client:02d}", command, home)

    def kill(self, name: str) -> None:
        """Kill a process and all that it started, at once; `run` starts it again."""
        one = self.started[name]
        one.end(signal.SIGKILL)
        one.process.wait()

    def run(self, on_status: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        """Have the ServerApp lead the run to its end.

        Args:
            on_status: Called with what the server tells, as often as it changes.

        Raises:
            DeploymentError: If the run fails.
        """
        status = self._home / "status.json"
        status.unlink(missing_ok=True)
        self._flwr("run", str(self.project.app), "federation")
        told: Mapping[str, Any] = {}
        while told.get("state") not in ("finished", "failed"):
            self._check()
            time.sleep(_LOOK)
            with contextlib.suppress(OSError, ValueError):
                found = json.loads(status.read_bytes())
                if found != told:
                    told = found
                    if on_status is not None:
                        on_status(told)
        if told["state"] == "failed":
            raise DeploymentError(f"the run has failed: {told['reason']}; logs: {self._logs}")

    def end(self) -> None:
        """End all processes and what they started, clients first: politely, then not."""
        # Flower gives some of its processes groups of their own.
        further = _descendants([one.process.pid for one in self.started.values()])
        for how in (signal.SIGTERM, signal.SIGKILL):
            for one in reversed(list(self.started.values())):
                one.end(how)
            last = time.monotonic() + _END_SECONDS
            for one in self.started.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(max(0.1, last - time.monotonic()))
        for process, began in further.items():
            # Its number may be another's by now.
            if _parent_and_start(process)[1] == began:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)
        self.started.clear()

    def _check(self) -> None:
        """Refuse to go on without the SuperLink; start clients again that have ended.

        Flower takes a SuperNode that was killed back only once it holds it to be gone, a minute
        after it was last heard of; until then the new one ends too, and is started again.
        """
        for name, one in list(self.started.items()):
            kind, _, number = name.partition("-")
            over = one.process.poll() is not None
            if not number or not over or time.monotonic() < one.since + _RESTART_SECONDS:
                continue
            # What it started may have outlived it.
            one.end(signal.SIGKILL)
            (self.start_client if kind == "client" else self.start_supernode)(int(number))
        one = self.started["superlink"]
        if one.process.poll() is not None:
            raise DeploymentError(f"the SuperLink has ended; its log is {one.log}")

    def _start(self, name: str, command: Sequence[str], home: Path) -> None:
        log = self._logs / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                _found(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self._environment(home),
                process_group=0,
                preexec_fn=_end_with_parent,
            )
        self.started[name] = Started(name, process, log)

    def _environment(self, home: Path) -> dict[str, str]:
        # Flower starts its own commands by name.
        places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {**os.environ, **_FLOWER, "FLWR_HOME": str(home), "PATH": places}

    def _wait_for_superlink(self) -> None:
        last = time.monotonic() + _START_SECONDS
        while True:
            self._check()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.addresses.port), 1.0).close()
                return
            if time.monotonic() > last:
                raise DeploymentError(f"the SuperLink does not start; logs: {self._logs}")
            time.sleep(_LOOK)

    def _register(self, client: int) -> None:
        key = self._home / "nodes" / f"{client:02d}.pub"
        self._flwr("supernode", "register", str(key), "federation")

    def _flwr(self, *arguments: str) -> None:
        """Run one of Flower's commands to its end."""
        done = subprocess.run(
            _found(["flwr", *arguments]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self._environment(self._home),
            check=False,
        )
        with (self._logs / "flwr.log").open("ab") as file:
            file.write(done.stdout + done.stderr)
        if done.returncode:
            raise DeploymentError(
                f"flwr {arguments[0]} ended with {done.returncode}; logs: {self._logs}"
            )


def _found(command: Sequence[str]) -> list[str]:
    """A command whose program is this environment's, whatever the search path."""
    program, *rest = command
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.is_file() else shutil.which(program)
    if found is None:
        raise DeploymentError(f"{program}: is not installed here; pip install 'dpfedadamw[flower]'")
    return [found, *rest]


def _descendants(parents: Sequence[int]) -> dict[int, str]:
    """Processes that others started, and those that these started, with when each began."""
    children: dict[int, list[int]] = {}
    began: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        process = int(folder.name)
        parent, began[process] = _parent_and_start(process)
        children.setdefault(parent, []).append(process)
    found: dict[int, str] = {}
    waiting = list(parents)
    while waiting:
        for process in children.get(waiting.pop(), ()):
            found[process] = began[process]
            waiting.append(process)
    return found


def _parent_and_start(process: int) -> tuple[int, str]:
    """A process's parent and when it began, as Linux tells it; where it does not, nobody's."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The name before it may hold anything.
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(words[1]), words[19]
    return -1, ""


def _end_with_parent() -> None:
    """Have Linux end this process when the one that started it dies, however that is."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)
