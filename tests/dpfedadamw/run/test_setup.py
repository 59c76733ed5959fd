"""What speaks against a run is said before it trains."""

from __future__ import annotations

import pytest
import torch

from dpfedadamw.experiment import RunError, prepare
from dpfedadamw.run.setup import MOST_LEDGER_BYTES, ledger_bytes
from dpfedadamw.run.training import train
from reports.files import FILE_LIMIT
from tests.runs import begin, small_spec

CPU = torch.device("cpu")


@pytest.mark.parametrize("algorithm", ["dp-fedadamw", "fed-smp"])
def test_how_long_a_ledger_will_be_is_known_to_an_eighth(tmp_path, algorithm):
    spec = small_spec(algorithm, rounds=6)
    training = begin(spec, tmp_path)
    train(training)
    length = training.run.ledger.stat().st_size
    plan = prepare(spec, CPU).plan
    assert ledger_bytes(plan, plan.rounds) == pytest.approx(length, rel=0.125)


def test_a_run_whose_ledger_no_report_can_hold_is_refused_with_the_rounds_that_fit(tmp_path):
    assert MOST_LEDGER_BYTES == FILE_LIMIT
    spec = small_spec(rounds=100_000)
    plan = prepare(spec, CPU).plan
    with pytest.raises(RunError, match=r"use at most (\d+) rounds") as refused:
        begin(spec, tmp_path)
    most = int(str(refused.value).split("at most ")[1].split()[0])
    assert ledger_bytes(plan, most) <= MOST_LEDGER_BYTES < ledger_bytes(plan, most + 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("algorithm", "refused"), [("dp-fedadamw", True), ("fedavg", False)])
def test_without_privacy_nothing_is_charged_and_as_many_rounds_have_a_report(algorithm, refused):
    plan = prepare(small_spec(algorithm, rounds=30_000), CPU).plan
    assert (ledger_bytes(plan, plan.rounds) > MOST_LEDGER_BYTES) == refused
