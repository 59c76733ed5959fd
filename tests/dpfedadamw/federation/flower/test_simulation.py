"""What Flower's simulation is asked and told, with stand-ins for Flower and Ray.

`tests/dpfedadamw/run/test_simulated.py` runs it with both, in an environment of its own.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dpfedadamw.federation.flower import required


class App:
    """An app of Flower's, which keeps what it is to call."""

    def train(self):
        return lambda function: setattr(self, "called", function)

    main = train


class Message:
    def __init__(self, content, node, kind, *, group_id):
        self.content, self.to = content, (node, kind, group_id)


@pytest.fixture
def flower(monkeypatch):
    """The module, imported with stand-ins, and what it has Flower run."""
    stand_ins = {name: ModuleType(name) for name in (
        "ray", "flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation",
    )}  # fmt: skip
    app, told = stand_ins["flwr.app"], {}
    app.Context = app.RecordDict = object
    app.Message = Message
    stand_ins["flwr.clientapp"].ClientApp = App
    stand_ins["flwr.serverapp"].ServerApp = App
    stand_ins["flwr.serverapp"].Grid = object
    stand_ins["flwr.simulation"].run_simulation = lambda **how: told.update(how)
    for name, module in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = Path(required.__file__).with_name("simulation.py")
    place: Any = importlib.util.spec_from_file_location("simulation_with_stand_ins", path)
    found: Any = importlib.util.module_from_spec(place)
    place.loader.exec_module(found)
    found.told = told
    return found


@pytest.mark.parametrize(
    ("processes", "gpus", "share"), [(2, 1, 0.5), (4, 2, 0.5), (3, 3, 1.0), (4, 0, 0.0)]
)
def test_the_processes_of_this_machine_share_its_devices(flower, tmp_path, processes, gpus, share):
    answers = object()
    simulation = flower.Simulation(answers, nodes=5, processes=processes, gpus=gpus)
    simulation._scratch = SimpleNamespace(name=str(tmp_path))
    simulation._simulate()
    told = flower.told
    assert told.pop("client_app").called is answers
    assert told.pop("server_app").called == simulation._serve
    assert told == {
        "num_supernodes": 5,
        "backend_config": {
            "init_args": {
                "address": "local", "_temp_dir": str(tmp_path / "r"), "num_cpus": processes,
                "num_gpus": gpus, "include_dashboard": False, "log_to_driver": False,
                "logging_level": logging.CRITICAL,
            },
            "client_resources": {"num_cpus": 1, "num_gpus": share},
        },
    }  # fmt: skip


def test_of_a_cluster_nothing_is_told_but_where_it_is(flower, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    flower.Simulation(object(), nodes=2, processes=4)._simulate()
    assert flower.told["backend_config"]["init_args"] == {
        "address": "head:6379", "log_to_driver": False, "logging_level": logging.CRITICAL,
    }  # fmt: skip


class Grid:
    """Takes messages, and has the answers ready in the opposite order, one at each look."""

    def __init__(self, broken: str | None = None, most: int = 9) -> None:
        self.sent, self.broken, self.most = {}, broken, most

    def push_messages(self, messages):
        self.sent = {f"m{number}": one for number, one in enumerate(messages)}
        return list(self.sent)[: self.most]

    def pull_messages(self, waiting):
        yield SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=waiting[-1]),
            has_error=lambda: waiting[-1] == self.broken,
            error=SimpleNamespace(code=7),
            content={"answer": self.sent[waiting[-1]].content},
        )


def asking(flower, monkeypatch, grid):
    monkeypatch.setattr(flower, "_LOOK", 0.0)
    simulation = flower.Simulation(object(), nodes=2, processes=1)
    simulation._thread = SimpleNamespace(is_alive=lambda: True)
    simulation._grid, simulation._node_ids = grid, [11, 12]
    return simulation.ask(["a", "b", "c"], "4")


def test_answers_come_in_the_order_of_what_was_asked_of_the_nodes_in_turn(flower, monkeypatch):
    grid = Grid()
    answers = list(asking(flower, monkeypatch, grid))
    assert [one.to for one in grid.sent.values()] == [
        (11, "train", "4"), (12, "train", "4"), (11, "train", "4"),
    ]  # fmt: skip
    assert answers == [{"answer": "a"}, {"answer": "b"}, {"answer": "c"}]


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (Grid(broken="m1"), r"failed and gave no answer \(Flower's error 7\)"),
        (Grid(most=2), "did not take every message of the round"),
    ],
    ids=["an error", "a message too few"],
)
def test_a_message_that_is_lost_ends_the_run(flower, monkeypatch, grid, said):
    with pytest.raises(required.FlowerError, match=said):
        list(asking(flower, monkeypatch, grid))
