"""A run by Flower's simulation, with stand-ins for Flower: what is sent, noted, read and removed.

`test_simulated.py` runs the same through Flower itself, in an environment of its own. Here its
messages are plain records and its simulation answers in this process, so that each step is seen.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.evidence import exchanges
from dpfedadamw.federation.arrivals import ArrivalError
from dpfedadamw.federation.flower.required import FlowerError
from dpfedadamw.federation.stations import Asked
from dpfedadamw.run import simulated
from dpfedadamw.run import training as engine_run
from tests import runs


class Record(dict):
    """A record of configurations, as Flower has them."""


class RecordDict:
    """Records by name, as Flower sorts them: arrays here, configurations there."""

    def __init__(self, records):
        self.config_records = {k: v for k, v in records.items() if isinstance(v, Record)}
        self.array_records = {k: v for k, v in records.items() if not isinstance(v, Record)}


class Message:
    def __init__(self, content, reply_to=None):
        self.content, self.reply_to = content, reply_to


class Simulation:
    """Answers each message in this process, and remembers how it was made."""

    made: ClassVar[list[Simulation]] = []

    def __init__(self, answer, **how):
        self.answer, self.how, self.groups, self.ended = answer, how, [], False
        self.failing = None
        Simulation.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True

    def ask(self, contents, group):
        self.groups.append((group, len(contents)))
        for content in contents:
            message = Message(content)
            reply = self.answer(message, None)
            assert reply.reply_to is message
            yield reply.content


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    app, records, simulation = (ModuleType(name) for name in ("app", "records", "simulation"))
    app.ConfigRecord, app.RecordDict, app.Message = Record, RecordDict, Message
    records.arrays_of = lambda message: message
    records.message_of = lambda arrays, size=None: bytes(arrays)
    records.config_of = lambda asked: Record(dataclasses.asdict(asked))
    records.asked_of = lambda record: Asked(**record)
    simulation.Simulation = Simulation
    flwr = ModuleType("flwr")
    flwr.app = app
    monkeypatch.setitem(sys.modules, "flwr", flwr)
    monkeypatch.setitem(sys.modules, "flwr.app", app)
    monkeypatch.setitem(sys.modules, "dpfedadamw.federation.flower.records", records)
    monkeypatch.setitem(sys.modules, "dpfedadamw.federation.flower.simulation", simulation)
    asked = []
    monkeypatch.setattr(simulated, "require", lambda **how: asked.append(how))
    monkeypatch.setattr(Simulation, "made", [])
    simulated._this_process.cache_clear()
    yield asked
    simulated._this_process.cache_clear()


def started(spec, folder):
    training = runs.begin(spec, folder)
    worker = training.federation.worker
    clients = simulated.SimulatedClients(training.run, spec, worker, "blake3")
    training.federation = dataclasses.replace(training.federation, elsewhere=clients)
    return training, clients


def trained(spec, folder, *, by_flower):
    training = started(spec, folder)[0] if by_flower else runs.begin(spec, folder)
    with training.lock:
        engine_run.train(training)
    return training.run


def left(run):
    own = {
        "digest",
        "previous",
        "created",
        "run",
        "spec_sha256",
        "selection_sha256",
        "contents_sha256",
    }
    own |= {"participations_sha256"}
    lines = [json.loads(line) for line in run.ledger.read_text().splitlines()]
    model = hashlib.sha256(run.weights.read_bytes()).hexdigest()
    return model, [{k: v for k, v in line.items() if k not in own} for line in lines]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("algorithm", "clients"),
    [("dp-scaffold", 4), ("blur", 4), ("dp-fedadamw", 4), ("dp-fedavg", 1)],
)
def test_the_model_the_charges_and_the_files_are_those_of_one_process(
    algorithm, clients, tmp_path, stand_ins
):
    spec = runs.small_spec(algorithm, rounds=2, clients_per_round=clients)
    there = trained(spec, tmp_path / "there", by_flower=True)
    here = trained(spec, tmp_path / "here", by_flower=False)
    assert left(there) == left(here)
    names = [sorted(path.name for path in run.evidence.iterdir()) for run in (there, here)]
    assert names[0] == names[1]
    assert not there.stations.exists()
    assert stand_ins == [{"simulation": True}]
    (simulation,) = Simulation.made
    assert simulation.groups == [("0", clients), ("1", clients)]
    assert simulation.ended


def test_a_simulation_has_a_node_a_client_and_as_many_processes_as_there_are_processors(
    tmp_path, monkeypatch
):
    for available, processes in ((3, 3), (9, 4)):
        monkeypatch.setattr(simulated, "processors", lambda available=available: available)
        training, clients = started(runs.small_spec(rounds=1), tmp_path / str(available))
        (training.run.stations).mkdir(parents=True)
        (training.run.stations / "left").write_text("by a process that was killed")
        found = clients._started()
        assert found.how == {"nodes": 4, "processes": processes, "gpus": 0}
        assert clients._started() is found
        assert list(training.run.stations.iterdir()) == []
        assert stat.S_IMODE(training.run.stations.stat().st_mode) == 0o700
        opening = simulated.Opening.from_json(found.answer.args[0])
        assert opening == simulated.Opening(
            run=str(training.run.path.resolve()),
            place=os.getcwd(),
            device="cpu",
            engine=training.federation.worker.performance.engine,
            threads=torch.get_num_threads(),
            commitments="blake3",
        )
        clients.close()
        assert found.ended
        assert not training.run.stations.exists()
        clients.close()
        training.lock.release()


@pytest.mark.parametrize(("device", "gpus"), [("cuda", 1), ("mps", 0)])
def test_many_clients_share_256_nodes_and_a_process_of_an_accelerator_has_one(
    device, gpus, tmp_path
):
    spec = SimpleNamespace(federation=SimpleNamespace(clients_per_round=1000))
    training = runs.begin(runs.small_spec(rounds=1), tmp_path)
    vector = SimpleNamespace(device=SimpleNamespace(type=device))
    worker = SimpleNamespace(
        flat=SimpleNamespace(vector=vector), performance=SimpleNamespace(engine="loop")
    )
    clients = simulated.SimulatedClients(training.run, spec, worker, "blake3")
    how = clients._started().how
    assert (how["nodes"], how["gpus"]) == (256, gpus)
    assert how["processes"] == min(1000, simulated.processors())
    clients.close()
    training.lock.release()


def test_a_round_without_clients_starts_nothing(tmp_path):
    training, clients = started(runs.small_spec(rounds=1), tmp_path)
    assert list(clients.answers([])) == []
    assert Simulation.made == []
    clients.close()
    training.lock.release()


def test_what_a_client_remembers_is_handed_over_for_its_owner_alone_and_is_gone_when_read(
    tmp_path, monkeypatch
):
    handed, settled = [], []
    write = simulated.write_atomically

    def writing(path, content, mode, **how):
        write(path, content, mode, **how)
        handed.append((path.name, stat.S_IMODE(path.stat().st_mode)))
        settled.append(how)

    monkeypatch.setattr(simulated, "write_atomically", writing)
    trained(runs.small_spec("dp-scaffold", rounds=2), tmp_path, by_flower=True)
    assert handed
    assert {mode for _, mode in handed} == {0o600}
    assert all(name.startswith("memory-00001-1-") for name, _ in handed)
    assert settled == [{"lasting": False}] * len(handed)


def test_points_and_gradients_are_handed_over_of_participations_that_are_kept_alone(
    tmp_path, monkeypatch
):
    # The first and the last always are.
    monkeypatch.setattr(exchanges, "MOST_FILES", 0)
    handed, read = [], simulated._read

    def reading(path):
        arrays = read(path)
        handed.append((len(arrays["exchange.points"]), len(arrays["exchange.gradients"])))
        return arrays

    monkeypatch.setattr(simulated, "_read", reading)
    run = trained(runs.small_spec(rounds=2), tmp_path, by_flower=True)
    assert handed == [handed[0], *[(0, 0)] * 6, handed[0]]
    assert min(handed[0]) > 0
    for path in run.evidence.glob("upload-*"):
        with np.load(path) as kept:
            assert len(kept["points"]) == handed[0][0]


def test_a_client_that_fails_ends_the_run_with_its_reason_and_tells_no_value(tmp_path, monkeypatch):
    secret = "".join(("a private ", "value"))
    for error, said in (
        (DpfedadamwError("data.path: is gone"), "data.path: is gone"),
        (KeyError(secret), "KeyError in its process"),
    ):

        def failing(*_, error=error):
            raise error

        monkeypatch.setattr(simulated, "_answered", failing)
        training, _ = started(runs.small_spec(rounds=1), tmp_path / type(error).__name__)
        with training.lock, pytest.raises(FlowerError) as caught:
            engine_run.train(training)
        assert str(caught.value) == f"a client of Flower's simulation: {said}"
        assert not training.run.stations.exists()


def test_an_upload_of_another_likeness_is_refused_by_its_round(tmp_path, monkeypatch):
    training, _ = started(runs.small_spec(rounds=1), tmp_path)
    records = sys.modules["dpfedadamw.federation.flower.records"]
    sizes = []

    def message_of(arrays, size=None):
        sizes.append(size)
        return bytes(arrays)

    def broken(self, message, whose):
        assert self.size == len(message) == sizes[-1]
        raise ArrivalError(f"{whose}: is another")

    monkeypatch.setattr(records, "message_of", message_of)
    monkeypatch.setattr("dpfedadamw.federation.arrivals.Likeness.check", broken)
    with training.lock, pytest.raises(ArrivalError, match="a client of round 0: is another"):
        engine_run.train(training)


def test_a_process_opens_the_run_once_and_leaves_no_copy_of_its_salt(tmp_path):
    training, clients = started(runs.small_spec(rounds=1), tmp_path)
    opening = clients._started().answer.args[0]
    opened = simulated._this_process(opening)
    assert opened.folder == training.run.stations
    assert opened.spec == training.experiment.spec
    assert list(training.run.stations.iterdir()) == []
    assert simulated._this_process(opening) is opened
    clients.close()
    training.lock.release()


def test_a_machine_without_the_runs_folder_says_so_and_which_folder_it_lacks(tmp_path):
    training, clients = started(runs.small_spec(rounds=1), tmp_path / "runs")
    opening = simulated.Opening.from_json(clients._started().answer.args[0])
    for lacking in ({"run": str(tmp_path / "gone")}, {"place": str(tmp_path / "gone")}):
        elsewhere = dataclasses.replace(opening, **lacking).to_json()
        with pytest.raises(FlowerError, match=r"gone.* is not on the machine"):
            simulated._this_process(elsewhere)
    clients.close()
    training.lock.release()


def test_files_of_a_participation_are_named_by_round_attempt_and_place():
    asked = SimpleNamespace(round=3, attempt=2, place=4)
    folder = Path("there")
    assert simulated._noted_by(folder, asked) == folder / "noted-00003-2-00004.npz"
    assert simulated._memory_of(folder, asked) == folder / "memory-00003-2-00004.safetensors"


def test_what_was_noted_is_read_without_unpickling(tmp_path):
    np.savez(tmp_path / "plain.npz", a=np.arange(3), b=np.ones(2))
    found = simulated._read(tmp_path / "plain.npz")
    assert {name: one.tolist() for name, one in found.items()} == {"a": [0, 1, 2], "b": [1.0, 1.0]}
    np.savez(tmp_path / "odd.npz", a=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle"):
        simulated._read(tmp_path / "odd.npz")
