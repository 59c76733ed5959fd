"""Training that begins with weights which were made from clients' records, without any noise.

All that is written of it is true and consistent: the ledger's header commits to these very weights,
and the first round sends them. What is false is that they come from the spec's public seed.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from dpfedadamw.cli.replaying import order_of
from dpfedadamw.experiment import Experiment, prepare
from dpfedadamw.filing import after_training as filing
from dpfedadamw.filing.replaying import replay_of
from dpfedadamw.models.registry import loss_of
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.computing import client_data
from dpfedadamw.spec import Spec
from tests.faults.fault import Fault, FaultGroup, Findings
from tests.runs import attest, small_spec

CPU = torch.device("cpu")


def on_records() -> Spec:
    return small_spec(rounds=3)


def on_clients() -> Spec:
    return small_spec("blur", rounds=3)


def trained_beforehand(experiment: Experiment, steps: int) -> nn.Module:
    """The experiment's model, trained on all clients' records in the clear."""
    model, train = experiment.model, experiment.dataset.train
    (everything,) = client_data(train, experiment.owner * 0, 1, CPU)
    records, labels = everything.inputs[:], everything.labels
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    loss = loss_of(model)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(records), labels).mean().backward()
        optimiser.step()
    optimiser.zero_grad()
    return model


def begun(spec: Spec, folder: Path, steps: int) -> engine_run.Training:
    """A whole run that begins with such weights."""
    experiment = prepare(spec, CPU)
    trained_beforehand(experiment, steps)
    training = engine_setup.start(experiment, folder)
    engine_run.train(training)
    attest(training)
    return training


def seen_at_once(spec: Spec, folder: Path) -> Findings:
    """Nothing is computed again: only the test accuracy before the first round can tell."""
    return filing.audit(begun(spec, folder, 300).run).to_json()


def made_again(spec: Spec, folder: Path) -> Findings:
    """One participation is drawn; so few steps were taken that no accuracy is out of the way."""
    run = begun(spec, folder, 3).run
    order = order_of(run, 1)
    return filing.audit(run, replay=replay_of(Rerun(run, order.keys, CPU), order)).to_json()


GROUP = FaultGroup(
    95,
    "The weights that training begins with",
    (
        Fault(
            "start-trained-on-clients-records",
            "the first round sends weights that were trained on all clients' records without noise",
            "scripts that take a checkpoint of an earlier experiment for a fresh model",
            ("initial-weights",),
            on_records,
            judge=seen_at_once,
            says="before the first round",
        ),
        Fault(
            "start-warmed-up-on-clients-records",
            "the seed's weights are moved by three steps on all clients' records without noise",
            "warm-ups before the loop that is accounted for",
            ("initial-weights",),
            on_records,
            judge=made_again,
            says="rebuilt from the spec's public seed",
        ),
        Fault(
            "start-trained-on-clients-records-client-level",
            "the first round sends weights that were trained on all clients' records without noise",
            "scripts that take a checkpoint of an earlier experiment for a fresh model",
            ("initial-weights",),
            on_clients,
            judge=seen_at_once,
            says="before the first round",
        ),
        Fault(
            "start-warmed-up-on-clients-records-client-level",
            "the seed's weights are moved by three steps on all clients' records without noise",
            "warm-ups before the loop that is accounted for",
            ("initial-weights",),
            on_clients,
            judge=made_again,
            says="rebuilt from the spec's public seed",
        ),
    ),
)
