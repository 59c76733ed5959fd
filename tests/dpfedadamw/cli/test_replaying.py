"""Runs of other models and other data, all of whose participations are computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from audit.verdict import Finding, Verdict
from dpfedadamw.cli import after_training
from dpfedadamw.cli.replaying import order_of, replay_of
from dpfedadamw.reexecution.rounds import Rerun
from dpfedadamw.rundir import RunDirectory
from tests.runs import small_spec, train

EVERYTHING = 1000


def reexecuted(run: RunDirectory, count: int = EVERYTHING, **keys: Any) -> Finding:
    """What comes of computing participations of a run again."""
    order = order_of(run, count, **keys)
    rerun = Rerun(run, order.keys, torch.device("cpu"))
    return after_training.audit(run, replay=replay_of(rerun, order)).named("reexecution")


@pytest.mark.parametrize(
    "changes",
    [
        # Norms from Gram matrices, which are lengthened by what rounding may hide of them.
        ("model={name: cnn, channels: [16, 32], groups: 4}",),
        ("data.augmentation=[flip, crop]",),
        ("privacy.sampling={kind: fixed, batch_size: 20}", "privacy.adjacency=replace-one"),
    ],
    ids=["convolutions", "random views", "batches of fixed size"],
)
def test_an_honest_run_passes(changes: tuple[str, ...], tmp_path: Path) -> None:
    spec = small_spec(rounds=2, clients_per_round=2, overrides=changes)
    found = reexecuted(train(spec, tmp_path)[0].run)
    assert (found.verdict, found.details["drawn"]) == (Verdict.PASS, 4), found.measurement
    assert found.details["published_parameters"]
