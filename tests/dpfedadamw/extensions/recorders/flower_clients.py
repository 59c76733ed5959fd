"""Two clients that train with Opacus inside Flower's own simulation: a correct and a broken one.

    python -m tests.dpfedadamw.extensions.recorders.flower_clients FOLDER ROUNDS keeps|forgets

A round is a call of a function in some process of Ray's; nothing of it lasts but what the client
writes: its recording, and in Flower's context what its accountant counted. The broken one makes its
accountant anew in each round, as published examples do.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpfedadamw.extensions.recorders.opacus import Recorder

CLIENTS, RECORDS, BATCH, DELTA = 2, 120, 24, 1e-5


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


def records_of(client: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(977 + client)
    inputs = 3.0 * torch.randn(RECORDS, 6, generator=generator)
    return TensorDataset(inputs, torch.randint(0, 3, (RECORDS,), generator=generator))


def fit(message: Message, context: Context, folder: str, keeps: bool) -> Message:
    """One round of one client."""
    warnings.filterwarnings("ignore")
    client = int(context.node_config["partition-id"])
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    engine = PrivacyEngine(accountant="rdp")
    if keeps and "privacy" in context.state:
        history = json.loads(str(context.state["privacy"]["history"]))
        engine.accountant.load_state_dict(
            {"history": [tuple(one) for one in history], "mechanism": "rdp"}
        )
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
        data_loader=DataLoader(records_of(client), batch_size=BATCH, shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=0.5,
    )
    recorder = Recorder(Path(folder) / f"client-{client}", delta=DELTA, continued=True)
    recorder.attach(optimizer, loader, model)
    for inputs, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    recorder.pause()
    history = [list(one) for one in engine.accountant.history]
    context.state["privacy"] = ConfigRecord({"history": json.dumps(history)})
    (Path(folder) / f"processes-{client}").open("a").write(f"{os.getpid()}\n")
    reply = {
        "arrays": ArrayRecord(model._module.state_dict()),
        "metrics": MetricRecord({"num-examples": RECORDS, "epsilon": engine.get_epsilon(DELTA)}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def simulate(folder: Path, rounds: int, *, keeps: bool) -> None:
    """Run all rounds in Flower's simulation, each client in some process of Ray's."""
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        return fit(message, context, str(folder), keeps)

    @server_app.main()
    def main(grid: Grid, _context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0,
            min_train_nodes=CLIENTS, min_available_nodes=CLIENTS,
        )  # fmt: skip
        arrays = ArrayRecord(network().state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)

    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=CLIENTS,
        backend_config={
            "init_args": {"num_cpus": 2, **quiet},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    simulate(Path(sys.argv[1]), int(sys.argv[2]), keeps=sys.argv[3] == "keeps")
