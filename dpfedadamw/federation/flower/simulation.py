"""Flower's simulation: virtual SuperNodes, in processes of Ray, run the clients of one run.

Flower calls the ServerApp, and the ServerApp would lead the run. Here the run leads: Flower runs in
a second thread, and its ServerApp passes on the grid and waits until all rounds are over. So a run
ends, is interrupted, charged and resumed in the same way for every engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self

import ray
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from dpfedadamw.federation.flower.required import FlowerError, cluster, quiet

# Seconds between looks for answers: Flower itself looks ten times a second for messages.
_LOOK = 0.02
_PATIENCE = 30.0
# What the names of Ray's sockets add to its folder's, and what Linux takes.
_SOCKETS, _LONGEST = 75, 107


@contextlib.contextmanager
def _outside_of_the_working_directory() -> Iterator[None]:
    """While this lasts, the working directory is the root of the file system.

    Ray has its processes look for modules in the folder in which it is started, before all others:
    any file there that is called as a library is would be run. Where this package itself is found
    there alone, it stays.
    """
    before = os.getcwd()
    if Path(before).resolve() == Path(__file__).resolve().parents[3]:
        yield
        return
    os.chdir(Path(before).anchor)
    try:
        yield
    finally:
        os.chdir(before)


class Simulation:
    """Virtual SuperNodes that answer messages, from entering to leaving it.

    Args:
        answers: Answers one message, in a process of Ray's; a function of a module, or a partial
            of one, so that every process imports it.
        nodes: How many virtual SuperNodes there are.
        processes: How many processes run them on this machine. A cluster that ``RAY_ADDRESS`` names
            has one for each of its processors.
        gpus: Devices that all of them share.
    """

    def __init__(
        self,
        answers: Callable[[Message, Context], Message],
        *,
        nodes: int,
        processes: int,
        gpus: int = 0,
    ) -> None:
        quiet()
        self._nodes, self._processes, self._gpus = nodes, processes, gpus
        self._cluster = cluster()
        self._client_app, self._server_app = ClientApp(), ServerApp()
        self._client_app.train()(answers)
        self._server_app.main()(self._serve)
        self._grids: SimpleQueue[Grid] = SimpleQueue()
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._thread = threading.Thread(target=self._simulate, name="flower", daemon=True)
        self._grid: Grid | None = None
        self._node_ids: list[int] = []

    def __enter__(self) -> Self:
        """Start Flower and Ray.

        Raises:
            FlowerError: If they do not start.
        """
        _guarded()
        if self._cluster is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="ray-", dir=_short())
        with _outside_of_the_working_directory():
            self._thread.start()
            while self._grid is None:
                try:
                    self._grid = self._grids.get(timeout=_LOOK)
                except Empty:
                    self._check()
            while len(self._node_ids) < self._nodes:
                self._check()
                self._node_ids = sorted(self._grid.get_node_ids())
            # Flower starts Ray after its SuperNodes.
            while not ray.is_initialized():
                self._check()
                time.sleep(_LOOK)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End Flower and Ray."""
        self._over.set()
        self._thread.join(_PATIENCE)
        if self._scratch is not None:
            self._scratch.cleanup()

    def ask(self, contents: Sequence[RecordDict], group: str) -> Iterator[RecordDict]:
        """Send messages, each to the SuperNode of its place; what each is answered, in order.

        Args:
            contents: What is sent.
            group: What Flower calls the messages' group: the round.

        Raises:
            FlowerError: If Flower ends, or a client fails.
        """
        assert self._grid is not None
        sent = list(
            self._grid.push_messages(
                Message(
                    content,
                    self._node_ids[place % len(self._node_ids)],
                    "train",
                    group_id=group,
                )
                for place, content in enumerate(contents)
            )
        )
        if len(sent) != len(contents):
            raise FlowerError("Flower did not take every message of the round")
        arrived: dict[str, RecordDict] = {}
        for identifier in sent:
            while identifier not in arrived:
                self._check()
                waiting = [one for one in sent if one not in arrived]
                for reply in self._grid.pull_messages(waiting):
                    arrived[reply.metadata.reply_to_message_id] = _content(reply)
                if identifier not in arrived:
                    time.sleep(_LOOK)
            yield arrived[identifier]
            arrived[identifier] = RecordDict()

    def _serve(self, grid: Grid, _context: Context) -> None:
        """The ServerApp: lend the grid to the run until that is over."""
        self._grids.put(grid)
        self._over.wait()

    def _simulate(self) -> None:
        resources = {"num_cpus": 1, "num_gpus": self._gpus / self._processes}
        try:
            run_simulation(
                server_app=self._server_app,
                client_app=self._client_app,
                num_supernodes=self._nodes,
                backend_config={
                    "init_args": {
                        **self._where(),
                        "log_to_driver": False,
                        "logging_level": logging.CRITICAL,
                    },
                    "client_resources": resources,
                },
            )
        except BaseException as error:
            # The thread's own; the run's finds it when it next looks.
            self._failure = error

    def _where(self) -> dict[str, Any]:
        """What Ray is told of the machines it uses."""
        if self._scratch is None:
            return {"address": self._cluster}
        return {
            # Never a cluster that another user says is there.
            "address": "local",
            # Ray lets all users into the folder that it is given, none into this one.
            "_temp_dir": str(Path(self._scratch.name) / "r"),
            "num_cpus": self._processes,
            "num_gpus": self._gpus,
            "include_dashboard": False,
        }

    def _check(self) -> None:
        if self._thread.is_alive():
            return
        kind = type(self._failure).__name__ if self._failure is not None else "it stopped"
        needs = f"memory, and room in {_short()}"
        if self._cluster is not None:
            needs = (
                f"the cluster at {self._cluster} (RAY_ADDRESS), of which this machine is a part, "
                "its token, and its versions of Python and Ray"
            )
        raise FlowerError(
            f"Flower's simulation has ended before the run ({kind}); it needs {needs}"
        )


def _guarded() -> None:
    """Refuse a Ray that was imported before it was told to ask for a token.

    Raises:
        FlowerError: If other users of the machine could send code to its processes.
    """
    from ray._raylet import AuthenticationMode, get_authentication_mode

    if ray.is_initialized() or get_authentication_mode() != AuthenticationMode.TOKEN:
        raise FlowerError(
            "Ray is already in use in this process, without the token that keeps other users of "
            "the machine out; start the run in a separate process"
        )


def _short() -> str:
    """The system's temporary folder, or one with a name short enough for Ray's sockets."""
    found = tempfile.gettempdir()
    return found if len(found.encode()) + _SOCKETS <= _LONGEST else "/tmp"


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        # Flower's own words may hold anything that a client's error says.
        raise FlowerError(
            "a process of Flower's simulation failed and gave no answer (Flower's error "
            f"{reply.error.code}); it may have run out of memory, or its machine is lost"
        )
    return reply.content
