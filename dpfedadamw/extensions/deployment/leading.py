"""The server's folder, and the run that is led from it.

spec.yaml            the run's resolved spec
federation.json      what all know of the federation
test.npz             the records that accuracy is measured on
runs/                the run, with what the server received in place of evidence
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import RunError
from dpfedadamw.extensions.deployment.errors import DeploymentError
from dpfedadamw.extensions.deployment.facts import Facts, Share, experiment_of
from dpfedadamw.extensions.deployment.server import Patience, RemoteClients, meet
from dpfedadamw.extensions.deployment.server_rounds import server_rounds
from dpfedadamw.federation.links import Link
from dpfedadamw.federation.rounds import RoundResult
from dpfedadamw.federation.worker import Worker
from dpfedadamw.filing.after_training import probing_before_claim
from dpfedadamw.run.setup import resume, start
from dpfedadamw.run.start_options import Deployment, StartOptions
from dpfedadamw.run.training import Training, train
from dpfedadamw.rundir import RunDirectory, newest, open_existing
from dpfedadamw.storage.disk import DISK
from dpfedadamw.storage.foreign import MOST_TEXT_BYTES


def open_led(home: Path, link: Link, patience: Patience) -> Training:
    """Start the run of a server's folder, or go on with the one that was cut off.

    Every client is met before anything is written, so that nothing is charged where one is missing.

    Args:
        home: The folder.
        link: Carries messages to the clients.
        patience: How long is waited.

    Raises:
        DpfedadamwError: If the folder is no server's, a client is missing, or the run is finished.
    """
    facts = Facts.read(home / "federation.json")
    spec = specs.load_filed(home / "spec.yaml")
    experiment = experiment_of(spec, facts, Share.read(home / "test.npz"), {})
    digest = hashlib.sha256((home / "spec.yaml").read_bytes()).hexdigest()

    runs = home / "runs"
    earlier = newest(runs) if any(_runs(runs)) else None
    if (over := finished(home)) is not None:
        raise RunError(
            f"{over}: this federation's run is finished, and its clients have spent their budget; "
            "make a new project for another run"
        )
    drop_outs = spec.federation.drop_outs
    nodes = meet(link, facts, digest, patience)

    def runner(run: RunDirectory, worker: Worker) -> RemoteClients:
        return RemoteClients(
            run.identifier, facts, nodes, worker, link, patience, drop_outs=drop_outs
        )

    header = facts.header(drop_outs)
    deployment = Deployment(experiment=experiment, header=header, unit=server_rounds, runner=runner)
    if earlier is not None:
        return resume(earlier, torch.device("cpu"), deployment=deployment)
    return start(experiment, runs, options=StartOptions(deployment=deployment))


def train_led(
    training: Training, on_round: Callable[[RoundResult, Any], None] | None = None
) -> None:
    """Run the rounds that are left, and record the probe before the claim.

    Args:
        training: What `open_led` opened.
        on_round: Called after each round with what it leaves and how good the model is.
    """
    train(training, on_round, before_claim=probing_before_claim())


def led_run(home: Path) -> RunDirectory:
    """The run of a server's folder.

    Raises:
        DeploymentError: If there is none that is finished.
    """
    found = home if (home / "ledger.jsonl").exists() else None
    if found is None and any(_runs(home / "runs")):
        found = newest(home / "runs").path
    if found is None:
        raise DeploymentError(f"{home}: holds no run of a federation; give the server's folder")
    return open_existing(found)


def finished(home: Path) -> Path | None:
    """The run of a server's folder, if it has ended."""
    earlier = newest(home / "runs") if any(_runs(home / "runs")) else None
    return None if earlier is None or not is_finished(earlier) else earlier.path


def is_finished(run: RunDirectory) -> bool:
    """Whether a run has its claim."""
    # The last line that is whole; an empty ledger, or half a line, has none.
    last = DISK.read(run.ledger, MOST_TEXT_BYTES).rsplit(b"\n", 2)[-2:-1]
    return any(b'"kind":"claim"' in line for line in last)


def _runs(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [one for one in folder.iterdir() if one.is_dir() and not one.is_symlink()]
