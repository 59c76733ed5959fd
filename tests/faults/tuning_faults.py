"""Hyper-parameters chosen by looking, and claims that leave it out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch

from dpfedadamw.accounting import client_level, record_level
from dpfedadamw.experiment import prepare
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions, Trial
from dpfedadamw.spec import NotTuned, Spec
from dpfedadamw.units.client import WholeClients
from dpfedadamw.units.record import SingleRecords
from tests.faults.fault import Fault, FaultGroup, Findings, Patch, filed
from tests.runs import probed, small_spec

_PUBLIC_VALIDATION = "data.validation={fraction: 0.5, public: true}"
SECRET = b"a secret of 32 bytes, for a test"
SELECTED = ("tune={selection: private, mean_trials: 4}", _PUBLIC_VALIDATION)
CLIENTS_SELECTED = (
    *SELECTED,
    "privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}",
)
UNACCOUNTED = ("tune={selection: unaccounted, score: test_accuracy}",)


def a_trial(spec: Spec, number: int = 1) -> Trial:
    """A trial as the spec's law draws their number."""
    law = prepare(spec, torch.device("cpu")).plan.trials
    assert law is not None
    return Trial(SECRET, number, law.drawn(SECRET))


def one_trial(spec: Spec, folder: Path) -> Findings:
    """Train and audit one trial of a private selection."""
    return of(spec, folder, a_trial(spec))


def of(spec: Spec, folder: Path, trial: Trial) -> Findings:
    """Train and audit this trial."""
    experiment = prepare(spec, torch.device("cpu"))
    training = engine_setup.start(experiment, folder, options=StartOptions(trial=trial))
    with training.lock:
        engine_run.train(training, before_claim=probed)
    return filed(training)


def tried_once_more(spec: Spec, folder: Path) -> Findings:
    """As `one_trial`, of more trials than were drawn."""
    trial = a_trial(spec)
    return of(spec, folder, dataclasses.replace(trial, trials=trial.trials + 3))


def unchecked(patch: Patch) -> None:
    """A trainer that runs as many trials as it likes."""
    patch.setattr(engine_setup, "check_trial", lambda experiment, trial: None)


def selection_left_out(patch: Patch) -> None:
    """The claim is that of one run."""

    def alone(realised):
        return lambda self, plan, entries: realised(
            self, dataclasses.replace(plan, tune=NotTuned()), entries
        )

    for unit in (SingleRecords, WholeClients):
        patch.setattr(unit, "realised_claim", alone(unit.realised_claim))


def silent_about_looking(patch: Patch) -> None:
    """What the claim says of tuning is what it says of a run whose settings were given."""
    for module in (record_level, client_level):
        patch.setattr(module, "TUNED", {})


GROUP = FaultGroup(
    85,
    "The choice of hyper-parameters",
    (
        Fault(
            "the-selection-left-out-of-the-claim",
            "of many trials the best is published under the ε of one",
            "papers that tune on the data which they then claim an ε for",
            ("views",),
            lambda: small_spec(overrides=SELECTED),
            selection_left_out,
            one_trial,
            says="must leave it out",
        ),
        Fault(
            "more-trials-than-were-drawn",
            "trials go on until one is good enough, and not as many as the law drew",
            "searches that stop when the accuracy is right",
            ("promise",),
            lambda: small_spec(overrides=SELECTED),
            unchecked,
            tried_once_more,
            says="not what the spec's distribution gives",
        ),
        Fault(
            "the-selection-of-clients-left-out-of-the-claim",
            "of many trials the best is published under the ε of one, where whole clients are "
            "protected",
            "papers that tune on the data which they then claim an ε for",
            ("views",),
            lambda: small_spec("dp-fedavg", overrides=CLIENTS_SELECTED),
            selection_left_out,
            one_trial,
            says="must leave it out",
        ),
        Fault(
            "more-trials-of-clients-than-were-drawn",
            "the same where whole clients are protected",
            "searches that stop when the accuracy is right",
            ("promise",),
            lambda: small_spec("dp-fedavg", overrides=CLIENTS_SELECTED),
            unchecked,
            tried_once_more,
            says="not what the spec's distribution gives",
        ),
        Fault(
            "a-search-that-the-claim-denies",
            "settings were picked by test accuracy on private data, and the claim says they were "
            "not",
            "reports whose assumptions are a template",
            ("outside-budget",),
            lambda: small_spec(overrides=UNACCOUNTED),
            silent_about_looking,
            says="looking at the private records",
        ),
    ),
)
