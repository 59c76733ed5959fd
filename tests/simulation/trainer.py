"""A toy in the place of everything that computes, under the product's own start, resume and train.

The order of all that reaches the disk is the product's: `run.setup` opens and resumes the
run, `run.training` finishes it, `federation.rounds` charges each round and then lets clients work,
the units of protection say what is charged, `run.journal` writes. What a client answers is one
digest over what it was sent and what it drew; the model is a digest over all answers, so that it
tells its whole history.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast
from unittest import mock

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from dpfedadamw import rundir
from dpfedadamw.algorithms.base import ServerState, Upload
from dpfedadamw.evidence.states import state_file
from dpfedadamw.federation import rounds, unprotected
from dpfedadamw.federation.client import ClientLevel
from dpfedadamw.federation.participation import Answer, LocalResult, Participation, Round
from dpfedadamw.federation.record import RecordLevel
from dpfedadamw.federation.unprotected import UnitSetup
from dpfedadamw.privacy.noise.key_tree import NO_HISTORY
from dpfedadamw.privacy.noise.randomness import (
    RandomSource,
    ReleaseRandomness,
    ReproducibleRandomness,
    Stream,
)
from dpfedadamw.privacy.sampling import PoissonSampling
from dpfedadamw.run import checkpoints, computing, setup, training
from dpfedadamw.run.evaluation import Evaluation
from dpfedadamw.run.journal import Journal
from dpfedadamw.run.start_options import StartOptions
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage import disk as storage
from dpfedadamw.storage import lock
from dpfedadamw.storage.disk import PRIVATE_MODE, write_atomically
from dpfedadamw.storage.lock import RunLock
from dpfedadamw.units.client import WholeClients
from dpfedadamw.units.plan import RunPlan
from dpfedadamw.units.record import SingleRecords
from tests.simulation.machine import Machine, SimulatedDisk
from tests.simulation.storage import StoredPath

_STORED = StoredPath(("/", "of", "runs"))
PARENT = cast(Path, _STORED)
CLIENTS = 3
_WIDTH = 16


@dataclass(frozen=True)
class Toy:
    """What is trained.

    Attributes:
        unit: What is protected, "record" or "client".
        rounds: T.
        per_round: S of three clients.
        cohort: How clients are drawn, "fixed-size" or "poisson".
        mode: "release" or "reproducible".
    """

    unit: str
    rounds: int
    per_round: int
    cohort: str
    mode: str

    @functools.cached_property
    def plan(self) -> RunPlan:
        """The product's plan, but for its accountants."""
        return _Plan(
            unit=_SingleRecords() if self.unit == "record" else _WholeClients(),
            adjacency="add-remove",
            clipping_norm=1.0,
            noise_multiplier=1.0,
            delta=1e-5,
            sampling=PoissonSampling(10),
            records=(100,) * CLIENTS,
            rounds=self.rounds,
            local_steps=1,
            clients_per_round=self.per_round,
            queries_per_step=1,
            client_sampling=self.cohort,
            noise_added_by="clients" if self.unit == "client" else None,
        )

    def experiment(self) -> Any:
        """What `experiment.prepare` would give."""
        spec = SimpleNamespace(
            name="toy",
            model=SimpleNamespace(name="mlp"),
            algorithm=SimpleNamespace(learning_rate=0.1, schedule="constant"),
            federation=SimpleNamespace(
                rounds=self.rounds, engine="inline", workers=1, clients_per_round=1
            ),
            evaluation=SimpleNamespace(every=1, training=False, metrics=()),
            budget=SimpleNamespace(file=None),
            tune=SimpleNamespace(score=None),
            randomness=SimpleNamespace(mode=self.mode, seed=1),
            compute=SimpleNamespace(physical_batch_size=1, precision="float32"),
        )
        server = SimpleNamespace(
            start=lambda vector: ServerState(vector.clone(), {}), combine=_combine
        )
        records = SimpleNamespace(inputs=None, labels=None)
        return SimpleNamespace(
            spec=spec,
            plan=self.plan,
            model=SimpleNamespace(train=lambda: None, flat=None),
            dataset=SimpleNamespace(
                sha256="records", train=records, test=records, strata=None, people=None
            ),
            owner=np.zeros(0, np.int64),
            people=None,
            device=None,
            algorithm=SimpleNamespace(server=server, local=None, round_schedule=None),
        )


class _SingleRecords(SingleRecords):
    def realised_claim(self, plan: RunPlan, entries: Any) -> dict[str, Any]:
        return _counted(entries)


class _WholeClients(WholeClients):
    def realised_claim(self, plan: RunPlan, entries: Any) -> dict[str, Any]:
        return _counted(entries)


def _counted(entries: Any) -> dict[str, Any]:
    return {"spends": sum(entry["kind"] == "spend" for entry in entries)}


class _Plan(RunPlan):
    def epsilon_after(self, completed: int, again: int = 0) -> float:
        return float(completed + again)


@dataclass(frozen=True)
class Draw:
    """Noise that was drawn.

    Attributes:
        run: The run's name.
        round: From 0.
        client: Its index; -1 for the server.
        attempt: From 1.
        purpose: What for.
        commitment: Of the key; None for the seed.
    """

    run: str
    round: int
    client: int
    attempt: int
    purpose: str
    commitment: str | None


@dataclass
class World:
    """What the toys share with whoever watches them.

    Attributes:
        machine: Where they run.
        toy: What they train.
        now: The clock.
        evidence: What was written into evidence, by path.
        follows: The model before, by run, round and the model after it.
        noted: Called with every draw, and what is noised by it, before it is made.
    """

    machine: Machine
    toy: Toy
    now: datetime = datetime(2026, 1, 2, tzinfo=UTC)
    evidence: dict[Path, bytes] = field(default_factory=dict)
    follows: dict[tuple[str, int, bytes], bytes] = field(default_factory=dict)
    noted: Callable[[Draw, bytes], None] = lambda draw, data: None

    def __post_init__(self) -> None:
        _STORED.forget()

    @property
    def disk(self) -> SimulatedDisk:
        """The disk as the process sees it whose turn it is."""
        return SimulatedDisk(self.machine, self.machine.current)

    def write_evidence(self, path: Path, content: bytes) -> None:
        """Write a file as `rundir.write_arrays` does."""
        self.evidence[path] = content
        write_atomically(path, content, PRIVATE_MODE, self.disk, settle=False)

    def set_clock(self) -> None:
        """Move the clock on, or to where somebody sets it."""
        days = self.machine.rng.choice((0, 0, 0, 1, -400, 20000))
        self.now = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(days=days)


WORLD = World(Machine(random.Random(0)), Toy("record", 1, 1, "fixed-size", "release"))


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content[:_WIDTH]), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


@functools.cache
def _frame(metadata: str | None) -> bytes:
    """What safetensors puts before a vector of this size, so that files have the real length."""
    vector = torch.zeros(_WIDTH, dtype=torch.uint8)
    noted = {"round": metadata} if metadata is not None else None
    return safetensors.torch.save({"parameters": vector}, noted)[:-_WIDTH]


def _save(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """What safetensors makes of a toy's state, in a tenth of the time."""
    assert tensors.keys() == {"parameters"}
    assert metadata.keys() == {"round"}
    return _frame(metadata["round"]) + _bytes(tensors["parameters"])


def _pack(principal: Tensor, state: Mapping[str, Tensor]) -> bytes:
    """What `messages.pack` makes of a toy."""
    assert not state
    return _frame(None) + _bytes(principal)


def _unpack(message: bytes, _like: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    frame, principal = message[:-_WIDTH], message[-_WIDTH:]
    assert frame == _frame(None)
    return _tensor(principal), {}


def _combine(state: ServerState, uploads: list[Upload], _broadcast: object) -> ServerState:
    after = _digest(_bytes(state.parameters), *(_bytes(upload.update) for upload in uploads))
    return ServerState(_tensor(after), {})


class _Flat:
    """The model as one vector."""

    def __init__(self, model: Any) -> None:
        self.vector = torch.zeros(_WIDTH, dtype=torch.uint8)
        model.flat = self

    def assign(self, vector: Tensor) -> None:
        self.vector = vector

    let_go = assign


class _Randomness:
    """The product's source, which says who draws what for which data."""

    def __init__(self, source: RandomSource) -> None:
        self._source = source
        self.mode, self.commitment = source.mode, source.commitment

    def stream(
        self, purpose: str, round: int, client: int, attempt: int = 1, history: bytes = NO_HISTORY
    ) -> Stream:
        return self._source.stream(purpose, round, client, attempt, history)

    def noise(self, run: str, current: Round, client: int, purpose: str, data: bytes) -> bytes:
        draw = Draw(run, current.index, client, current.attempt, purpose, self.commitment)
        WORLD.noted(draw, data)
        return current.stream(self, purpose, client).bytes(8)


class _Worker:
    """Runs clients, as `federation.worker.Worker` does."""

    def __init__(self, **parts: Any) -> None:
        self.unit, self.engine, self.flat = parts["unit"], parts["engine"], parts["flat"]
        self.randomness = parts["randomness"]

    def take_part(self, part: Participation) -> Answer:
        current, client = part.current, part.client
        data = _digest(current.message, b"%d" % client)
        drawn = data
        if isinstance(self.unit, RecordLevel):
            run = self.unit.directory.parent.name
            drawn += self.randomness.noise(run, current, client, "noise", data)
        result = LocalResult(
            upload=Upload(_tensor(_digest(drawn))), state={}, steps=1, queries=1, evidence=None
        )
        return self.unit.answer(part, result)


class _Evidence:
    """What both units write down, where and when the product does."""

    directory: Path
    randomness: _Randomness

    @classmethod
    def open(cls, setup: UnitSetup) -> Any:
        unit = cls()
        vars(unit).update(directory=setup.directory, randomness=setup.randomness)
        if setup.completed:
            last = setup.directory / f"round-{setup.completed - 1:05d}.npz"
            assert WORLD.disk.read(last) == WORLD.evidence[last]
        WORLD.write_evidence(setup.directory / "layout.json", b"layout")
        return unit

    @staticmethod
    def engine(*_: object) -> Any:
        return SimpleNamespace(explain=lambda: "toy")

    def note(self, name: str, content: bytes) -> None:
        WORLD.write_evidence(self.directory / name, content)

    def close(self, current: Round) -> Mapping[str, str]:
        after = current.state.parameters
        before, _ = _unpack(current.message, after)
        run = self.directory.parent.name
        WORLD.follows[run, current.index, _bytes(after)] = _bytes(before)
        self.note(f"round-{current.index:05d}.npz", b"attempt %d" % current.attempt)
        return {}


class _Records(_Evidence, RecordLevel):
    """Each client's gradients are noised."""

    def __init__(self) -> None:
        pass

    def took_part(self, part: Participation, answer: Answer) -> None:
        self.note(f"upload-{part.current.index:05d}-{part.client:05d}.npz", answer.message)


class _Clients(_Evidence, ClientLevel):
    """The clients add their noise to their updates, and the server its own where there are none."""

    moved_by_empty_rounds: ClassVar[bool] = True

    def __init__(self) -> None:
        pass

    def answer(self, part: Participation, result: LocalResult) -> Answer:
        sent, run = _bytes(result.upload.update), self.directory.parent.name
        noise = self.randomness.noise(run, part.current, part.client, "upload noise", sent)
        return Answer(message=_pack(_tensor(_digest(sent, noise)), {}), result=result)

    def receive(self, current: Round) -> list[Upload]:
        data = _digest(current.message, *(answer.message for answer in current.answers))
        run = self.directory.parent.name
        noise = self.randomness.noise(run, current, -1, "release noise", data)
        return [Upload(_tensor(_digest(data, noise)))]

    def traffic(self, current: Round) -> tuple[int | None, int | None]:
        return None, None


@dataclass(frozen=True)
class _Keeper:
    """Keeps states as `evidence.states` does, where clients are drawn independently."""

    directory: Path
    rounds: int
    disk: SimulatedDisk

    def keep(self, round_index: int, content: bytes, largest: int) -> bool:
        kept = WORLD.toy.cohort == "poisson" and round_index + 1 < self.rounds
        if kept:
            WORLD.write_evidence(self.directory / state_file(round_index), content)
        return kept


def _source(spec: Any) -> _Randomness:
    if spec.randomness.mode == "reproducible":
        return _Randomness(ReproducibleRandomness(spec.randomness.seed))
    return _Randomness(ReleaseRandomness(WORLD.machine.rng.randbytes(32)))


def _evaluate(model: Any, *_: object, finished: object = None) -> Evaluation:
    return Evaluation(told(_bytes(model.flat.vector)), None)


def told(model: bytes) -> float:
    """What metrics say of a model: another number for each."""
    return int.from_bytes(model[:6], "big") / 2**48


def _write_weights(path: Path, model: Any) -> None:
    write_atomically(path, _bytes(model.flat.vector), disk=WORLD.disk)


def first_run() -> RunDirectory:
    """Start a run and finish it."""
    opened = setup.start(WORLD.toy.experiment(), PARENT, options=StartOptions(created=WORLD.now))
    with opened.lock:
        training.train(opened, before_claim=_probe)
    return opened.run


def resumed(path: Path) -> None:
    """Finish a run as `run --resume` does."""
    run = RunDirectory(path, WORLD.disk)
    with RunLock(path, run.disk) as held:
        journal = Journal(run)
        if journal.claim is not None:
            journal.tidy()
            return
        opened = setup.resume(run, torch.device("cpu"), lock=held)
        training.train(opened, before_claim=_probe)


def _probe(opened: training.Training) -> None:
    """Leave what the claim must not precede."""
    WORLD.write_evidence(opened.run.evidence / "probe.npz", b"probe")


@contextlib.contextmanager
def toys() -> Iterator[None]:
    """Let the product train toys, in this process, until the end of the block."""

    def unit_of(_: Any) -> Any:
        return SimpleNamespace(rounds=_Records if WORLD.toy.unit == "record" else _Clients)

    replaced: dict[Any, dict[str, Any]] = {
        computing: {"unit_of": unit_of},
        setup: {
            "specs": SimpleNamespace(
                filed=lambda _: "toy: 1\n", load_filed=lambda _: WORLD.toy.experiment().spec
            ),
            "prepare": lambda *_: WORLD.toy.experiment(),
            "FlatParameters": _Flat,
            "header": lambda experiment, run, text, *_, **__: {
                "spec_sha256": hashlib.sha256(text).hexdigest(),
                "data_sha256": experiment.dataset.sha256,
                "created": f"{WORLD.now:%Y-%m-%d}",
            },
            "contents_committed": lambda *_: {},
            "write_model_config": lambda _, run, __: write_atomically(
                run.model_config, b"{}", disk=WORLD.disk
            ),
            "origin_of": lambda _: None,
            "recorded_origin": lambda _: None,
            "point_latest": lambda _: None,
            "divided": lambda *_: [SimpleNamespace(inputs=None)] * CLIENTS,
            "write_partition": lambda folder, *_: WORLD.write_evidence(
                folder / "partition.npz", b"partition"
            ),
            "write_inputs": lambda *_: None,
            "write_records": lambda *_: None,
            "write_environment": lambda *_: None,
            # The toy's model has no source that could change.
            "refuse_changed_source": lambda *_: None,
            "StateKeeper": _Keeper,
            "unit_of": unit_of,
            "Worker": _Worker,
            "_randomness": _source,
            "starting": lambda name, parent, created, identifier: rundir.starting(
                name, parent, created, WORLD.disk, identifier
            ),
        },
        training: {
            "evaluate": _evaluate,
            # The toy's claim counts lines, and has no epsilon.
            "with_dp_accounting": lambda _plan, claim, _entries: claim,
            "determinism": lambda _: contextlib.nullcontext(),
        },
        checkpoints: {"write_weights": _write_weights, "packed": _save},
        unprotected: {"pack": _pack, "view": _unpack},
        rounds: {
            "pack": _pack,
            "view": _unpack,
            "time": SimpleNamespace(perf_counter=lambda: 0.0),
        },
        lock: {"datetime": SimpleNamespace(now=lambda _: WORLD.now)},
    }
    with contextlib.ExitStack() as stack:
        for module, names in replaced.items():
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value))
        tokens = SimpleNamespace(
            token_hex=lambda count: WORLD.machine.rng.randbytes(count).hex(),
            token_bytes=lambda count: WORLD.machine.rng.randbytes(count),
        )
        for module in (storage, rundir, setup):
            stack.enter_context(mock.patch.object(module, "secrets", tokens))
        yield
