"""A run whose clients are run by Flower's simulation (``federation.engine: flower``).

Flower's messages hold what a server and a client of a real federation would send each other: the
round's broadcast, what a client is asked, its upload. What a client notes for the auditor and keeps
for itself passes through files of ``evidence/`` that are gone when it is read, not through Flower.
Nothing waits until these are on the disk: a run that goes on after a crash asks all clients again.

The keys that open one participation's noise are sent with it, because the run's own key decides the
noise of a simulation; where clients are on machines of their own, each has a key of its own.
"""

from __future__ import annotations

import functools
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.federation.arrivals import Likeness, expected
from dpfedadamw.federation.flower.required import FlowerError, require
from dpfedadamw.federation.participation import Answer, Participation
from dpfedadamw.federation.recorded import answered, recorded
from dpfedadamw.federation.stations import Asked, Station
from dpfedadamw.federation.worker import Worker
from dpfedadamw.models.own.permission import permission
from dpfedadamw.run.computing import determinism, processors
from dpfedadamw.run.stations import Opening, keys_of, open_station, source_of
from dpfedadamw.rundir import RunDirectory, write_arrays
from dpfedadamw.spec import Spec
from dpfedadamw.storage.disk import PRIVATE_MODE, write_atomically
from dpfedadamw.vectors.packing import packed, views

if TYPE_CHECKING:
    from flwr.app import Context, Message

    from dpfedadamw.federation.flower.simulation import Simulation


class SimulatedClients:
    """Runs clients by Flower's simulation, which starts with the first round that has clients.

    Args:
        run: The run's directory.
        spec: The run's spec.
        worker: What clients of this process would share: its unit gets what clients noted.
        commitments: How participations are hashed.

    Raises:
        FlowerError: If Flower or its simulation is not installed.
    """

    def __init__(self, run: RunDirectory, spec: Spec, worker: Worker, commitments: str) -> None:
        require(simulation=True)
        self._run, self._spec, self._worker = run, spec, worker
        self._commitments = commitments
        self._simulation: Simulation | None = None
        self._expected: Likeness | None = None

    def answers(self, parts: Sequence[Participation]) -> Iterator[Answer]:
        """What each client's part comes to, in the order of ``parts``."""
        if not parts:
            return
        from flwr.app import ConfigRecord, RecordDict

        from dpfedadamw.federation.flower.records import arrays_of, config_of, message_of

        current = parts[0].current
        if self._expected is None:
            self._expected = expected(self._worker, current)
        simulation = self._started()
        broadcast = arrays_of(current.message)
        contents = []
        for part in parts:
            self._hand_memory(part)
            records = {"broadcast": broadcast, "asked": config_of(Asked.of(part))}
            keys = keys_of(part, self._worker.randomness)
            contents.append(RecordDict({**records, "keys": ConfigRecord(dict(keys))}))
        group = str(current.index)
        for part, reply in zip(parts, simulation.ask(contents, group), strict=True):
            failure = reply.config_records.get("failure")
            if failure is not None:
                raise FlowerError(f"a client of Flower's simulation: {failure['reason']}")
            message = message_of(reply.array_records["upload"], self._expected.size)
            self._expected.check(message, f"a client of round {current.index}")
            path = _noted_by(self._run.stations, Asked.of(part))
            arrays = _read(path)
            path.unlink()
            unit, device = self._worker.unit, self._worker.flat.vector.device
            answer = answered(message, arrays, unit.evidence_of_client(), device)
            unit.add_shared(
                {
                    name.removeprefix(_SHARED): value
                    for name, value in arrays.items()
                    if name.startswith(_SHARED)
                }
            )
            yield answer
            del answer, arrays

    def close(self) -> None:
        """End the simulation; what its processes left is removed."""
        if self._simulation is not None:
            self._simulation.__exit__(None, None, None)
            self._simulation = None
        self._run.disk.remove_tree(self._run.stations)

    def _started(self) -> Simulation:
        if self._simulation is None:
            from dpfedadamw.federation.flower.simulation import Simulation

            folder = self._run.stations
            # What a process left that was killed.
            self._run.disk.remove_tree(folder)
            self._run.disk.make_folder(folder)
            device = self._worker.flat.vector.device
            opening = Opening(
                run=str(self._run.path.resolve()),
                place=os.getcwd(),
                device=device.type,
                engine=self._worker.performance.engine,
                threads=torch.get_num_threads(),
                commitments=self._commitments,
                allow_code=permission().handed_on(),
            )
            clients = self._spec.federation.clients_per_round
            processes = min(clients, processors())
            simulation = Simulation(
                functools.partial(answer, opening.to_json()),
                # A SuperNode stands for whomever a round draws. Flower hands each at most one
                # message in a tenth of a second, and looks at every one of them as often.
                nodes=min(clients, _MOST_NODES),
                processes=processes,
                gpus=int(device.type == "cuda"),
            )
            self._simulation = simulation.__enter__()
        return self._simulation

    def _hand_memory(self, part: Participation) -> None:
        if part.memory:
            path = _memory_of(self._run.stations, Asked.of(part))
            write_atomically(path, packed(part.memory), PRIVATE_MODE, lasting=False)


_SHARED = "shared."
_MOST_NODES = 256


def answer(opening: str, message: Message, _context: Context) -> Message:
    """Answer a message of a run's simulation: the ClientApp, in a process of Ray's.

    Args:
        opening: What opens the station, as JSON.
        message: What a client is asked.
    """
    from flwr.app import ConfigRecord, RecordDict
    from flwr.app import Message as Reply

    try:
        return Reply(_answered(opening, message.content), reply_to=message)
    except DpfedadamwError as error:
        reason = str(error)
    except Exception as error:
        # Another's message may hold private values; its kind does not.
        reason = f"{type(error).__name__} in its process"
    failure = ConfigRecord({"reason": reason})
    return Reply(RecordDict({"failure": failure}), reply_to=message)


@dataclass(frozen=True)
class _ThisProcess:
    station: Station
    spec: Spec
    folder: Path


@functools.lru_cache(maxsize=1)
def _this_process(opening: str) -> _ThisProcess:
    given = Opening.from_json(opening)
    stations = RunDirectory(Path(given.run)).stations
    for folder in (stations, Path(given.place)):
        if not folder.is_dir():
            raise FlowerError(
                f"{folder} is not on the machine {platform.node()}: all machines of a Ray cluster "
                "need the folder of the runs, the one where the run was begun, and the data"
            )
    # Nothing is read from the folder once the unit is open.
    with tempfile.TemporaryDirectory(prefix="dpfedadamw-station-") as scratch:
        station, spec = open_station(given, Path(scratch))
    return _ThisProcess(station, spec, stations)


def _answered(opening: str, content: Any) -> Any:
    from flwr.app import RecordDict

    from dpfedadamw.federation.flower.records import arrays_of, asked_of, message_of

    process = _this_process(opening)
    asked = asked_of(content.config_records["asked"])
    memory: Mapping[str, Tensor] = {}
    remembered = _memory_of(process.folder, asked)
    if remembered.is_file():
        memory = {name: one.clone() for name, one in views(remembered.read_bytes()).items()}
        remembered.unlink()
    source = source_of(process.spec, content.config_records["keys"])
    unit = process.station.worker.unit
    with determinism(process.spec):
        found = process.station.answer(
            asked, message_of(content.array_records["broadcast"]), memory, source
        )
    # Before what was noted is written down: a short model's sums are looked at many at once.
    shared = {f"{_SHARED}{name}": value for name, value in unit.take_shared().items()}
    write_arrays(_noted_by(process.folder, asked), {**recorded(found), **shared}, lasting=False)
    return RecordDict({"upload": arrays_of(found.message)})


def _noted_by(folder: Path, asked: Asked) -> Path:
    return folder / f"noted-{asked.round:05d}-{asked.attempt}-{asked.place:05d}.npz"


def _memory_of(folder: Path, asked: Asked) -> Path:
    return folder / f"memory-{asked.round:05d}-{asked.attempt}-{asked.place:05d}.safetensors"


def _read(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}
