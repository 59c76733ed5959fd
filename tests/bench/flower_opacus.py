"""A round of Flower whose clients train with Opacus, as their users write it: see `bench_round`.

Needs flwr with its simulation, and Opacus, which have an environment of their own. Each client is a
`NumPyClient` that wraps model, optimiser and loader by `PrivacyEngine.make_private`; the server
averages by Flower's own `FedAvg`. Clients run in processes of Flower's simulation.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_round as bench
import ray
import torch
import torch.nn.functional as F
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from opacus import PrivacyEngine

_ROUNDS = 10_000


@functools.cache
def _loaded(name: str, clients: int, folder: str) -> tuple[Any, list[tuple[Any, Any]]]:
    """The model and all clients' records, once in each process."""
    torch.set_num_threads(1)
    model, held = bench._parts(name, clients, Path(folder))
    bench.freeze_unknown(model)
    return model, held


def _trainable(model: Any) -> list[Any]:
    return [value for value in model.parameters() if value.requires_grad]


class _Client(NumPyClient):
    """One client of a round."""

    def __init__(self, model: Any, own: tuple[Any, Any]) -> None:
        self._model = copy.deepcopy(model).train()
        self._own = own

    def fit(self, parameters: list[Any], config: Any) -> tuple[list[Any], int, dict[str, Any]]:
        """Take the local steps from the server's parameters."""
        model = self._model
        with torch.no_grad():
            for value, given in zip(_trainable(model), parameters, strict=True):
                value.copy_(torch.from_numpy(given))
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(*self._own), batch_size=bench.BATCH
        )
        private, optimiser, batches = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(_trainable(model), lr=0.01),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        steps = 0
        while steps < bench.LOCAL_STEPS:
            for inputs, labels in batches:
                if steps == bench.LOCAL_STEPS:
                    break
                optimiser.zero_grad()
                F.cross_entropy(private(inputs), labels).backward()
                optimiser.step()
                steps += 1
        found = [value.detach().numpy().copy() for value in _trainable(model)]
        return found, len(self._own[1]), {}


def client_app(name: str, clients: int, folder: str) -> ClientApp:
    """The clients; each finds its records by Flower's number of its partition."""

    def client_fn(context: Context) -> Any:
        warnings.filterwarnings("ignore")
        model, held = _loaded(name, clients, folder)
        return _Client(model, held[int(context.node_config["partition-id"])]).to_client()

    return ClientApp(client_fn=client_fn)


def rounds(
    name: str, clients: int, folder: Path, turns: bench.Turns, ended: Callable[[], None]
) -> None:
    """Run rounds in turns until none is wanted, then call ``ended`` and leave the process."""
    model, _ = _loaded(name, clients, str(folder))
    first = [value.detach().numpy().copy() for value in _trainable(model)]

    class InTurns(FedAvg):
        def configure_fit(self, *given: Any, **options: Any) -> Any:
            try:
                turns.wait()
            except bench.EndedError:
                ended()
                ray.shutdown()
                os._exit(0)
            return super().configure_fit(*given, **options)

        def aggregate_fit(self, *given: Any, **options: Any) -> Any:
            averaged = super().aggregate_fit(*given, **options)
            # A failed client would make a round cheap.
            if given[2] or averaged[0] is None:
                sys.stderr.write(f"Flower: {given[2]}\n")
                os._exit(1)
            turns.done()
            return averaged

    def server_fn(_context: Context) -> ServerAppComponents:
        strategy = InTurns(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=ndarrays_to_parameters(first),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=_ROUNDS))

    run_simulation(
        server_app=ServerApp(server_fn=server_fn),
        client_app=client_app(name, clients, str(folder)),
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": torch.get_num_threads(),
                "log_to_driver": False,
                "include_dashboard": False,
            },
        },
    )
