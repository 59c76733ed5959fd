"""Flower's own differential privacy at client level, run in Flower's simulation and recorded.

    python -m tests.dpfedadamw.extensions.recorders.flower_updates FOLDER WAY

WAY is "local" (LocalDpMod with a sensitivity of 2C and ε = 0.8 a message), "local-sensitivity" (of
C), "local-beyond-one" (2C, ε = 20), "central" (all clients in every round, as many examples each)
or "central-weighted" (other numbers of examples, by which FedAvg weights).
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from audit.accounting.budget import Steps, budget
from dpfedadamw.extensions.recorders.flower import RecordedLocalDp, record_strategy
from dpfedadamw.extensions.recorders.updates import UpdateRecorder

CLIENTS, CLIP, NOISE, DELTA = 4, 0.5, 4.0, 1e-5
SHAPES = ((40, 8), (40,), (4, 40), (4,))


def rounds_of(way: str) -> int:
    return {"central": 8, "central-weighted": 8, "local": 3}.get(way, 1)


def modifier(way: str) -> LocalDpMod:
    sensitivity = CLIP if way == "local-sensitivity" else 2.0 * CLIP
    epsilon = {"local": 0.8, "local-sensitivity": 5.0}.get(way, 20.0)
    return LocalDpMod(CLIP, sensitivity, epsilon, DELTA)


def _answer(message: Message, context: Context, way: str) -> Message:
    client = int(context.node_config["partition-id"])
    record = message.content["arrays"]
    trained = [
        one + np.random.normal(0.0, 0.02, one.shape).astype(one.dtype)
        for one in record.to_numpy_ndarrays()
    ]
    examples = 10 * (1 + client) if way == "central-weighted" else 10
    arrays = ArrayRecord(dict(zip(record.keys(), map(Array, trained), strict=True)))
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": examples})})
    return Message(content=content, reply_to=message)


def simulate(folder: Path, way: str) -> None:
    """Run all rounds, and record the clients or the server."""

    def place(context: Context) -> Path:
        return folder / f"client-{context.node_config['partition-id']}"

    mods = []
    if way.startswith("local"):
        mods.append(RecordedLocalDp(modifier(way), place, rounds_of(way)))
    client_app, server_app = ClientApp(mods=mods), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        return _answer(message, context, way)

    @server_app.main()
    def main(grid: Grid, _context: Context) -> None:
        strategy = FedAvg(
            fraction_train=1.0, fraction_evaluate=0.0,
            min_train_nodes=CLIENTS, min_available_nodes=CLIENTS,
        )  # fmt: skip
        arrays = ArrayRecord([np.zeros(shape, np.float32) for shape in SHAPES])
        if way.startswith("local"):
            strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds_of(way))
            return
        private = DifferentialPrivacyServerSideFixedClipping(strategy, NOISE, CLIP, CLIENTS)
        recorder = UpdateRecorder(
            folder / "server", DELTA, producer="flwr server-side fixed clipping", version="1.41",
            clients=CLIENTS, generator="NumPy's global generator",
        )  # fmt: skip
        own_sum = record_strategy(private, recorder)
        private.start(grid=grid, initial_arrays=arrays, num_rounds=rounds_of(way))
        # Neighbours by exchanging a client, so that the noise counts half.
        spent = budget([Steps(1.0, NOISE / 2.0, rounds_of(way))], DELTA).headline
        recorder.close(spent, "pld", sum_of_updates=own_sum())

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
    simulate(Path(sys.argv[1]), sys.argv[2])
