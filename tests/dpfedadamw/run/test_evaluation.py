"""When a model is tested: as the spec says, or as seldom as it costs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dpfedadamw import spec as specs
from dpfedadamw.data.datasets import Records
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.privacy.sampling import FullBatch, PoissonSampling
from dpfedadamw.run.evaluation import evaluate, evaluated, interval, is_due
from tests.runs import small_spec, train

SMALL, LARGE = nn.Linear(10, 10), nn.Linear(3000, 1000)


def experiment(
    every: int | str = "auto",
    *,
    rounds: int = 200,
    tested: int = 10_000,
    model: nn.Module = LARGE,
    clients: int = 10,
    steps: int = 50,
    batch: float | None = 64.0,
    records: int = 500,
) -> Any:
    """What of an experiment decides; batches of all records where they have no size."""
    sampling = FullBatch() if batch is None else PoissonSampling(batch)
    plan = SimpleNamespace(
        clients_per_round=clients,
        local_steps=steps,
        queries_per_step=1,
        sampling=sampling,
        divisor=lambda _client: sampling.normaliser(records),
    )
    return SimpleNamespace(
        spec=SimpleNamespace(
            evaluation=SimpleNamespace(every=every, training=False),
            federation=SimpleNamespace(rounds=rounds),
        ),
        plan=plan,
        dataset=SimpleNamespace(test=range(tested), validation=None),
        model=model,
    )


def test_a_number_is_taken_as_it_stands():
    assert interval(experiment(7)) == 7


def test_what_costs_next_to_nothing_is_tested_after_every_round():
    assert interval(experiment(model=SMALL)) == 1
    assert interval(experiment(model=SMALL, tested=200_000)) == 42


def test_a_large_test_set_is_tested_at_most_ten_times():
    assert interval(experiment()) == 20
    assert interval(experiment(rounds=201)) == 21


def test_short_rounds_are_tested_so_seldom_that_it_stays_below_a_twentieth_of_their_time():
    # 10,000 tests cost as much as 3,333 records in steps, of which a round has 100.
    every = interval(experiment(clients=1, steps=10, batch=10.0))
    assert every == 667
    assert 10_000 / every <= 0.05 * 3 * 100


def test_the_last_round_is_tested_whatever_it_costs():
    seldom = experiment(clients=1, steps=10, batch=10.0)
    assert is_due(seldom, 200, last=True)
    assert not is_due(seldom, 200, last=False)
    assert [is_due(experiment(2), completed, last=False) for completed in (1, 2)] == [False, True]


def test_how_many_records_a_client_has_does_not_show():
    few, many = (interval(experiment(batch=None, records=one)) for one in (10, 10_000))
    assert few == many


@pytest.mark.parametrize(("width", "largest"), [(10, 1024), (1_100, 128), (3_200, 64)])
def test_larger_models_are_tested_in_smaller_batches(width, largest):
    seen: list[int] = []

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(width, width))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            seen.append(len(inputs))
            return torch.zeros(len(inputs), 3)

    records = Records(StoredRecords(np.zeros((2_000, 2), np.float32)), np.zeros(2_000, np.int64))
    dataset = SimpleNamespace(test=records, validation=None, classes=3)
    assert evaluate(Noting(), dataset, torch.device("cpu")).accuracy == 1.0
    assert max(seen) == largest
    assert sum(seen) == 2_000


def test_auto_is_the_default_and_another_word_is_refused():
    assert specs.load("quickstart").evaluation.every == "auto"
    assert specs.load("quickstart", ("evaluation.every=3",)).evaluation.every == 3
    for wrong in ("daily", "0", "1.5"):
        with pytest.raises(DpfedadamwError, match="must be an integer from 1 to 1000000, or auto"):
            specs.load("quickstart", (f"evaluation.every={wrong}",))


def test_training_records_are_measured_in_runs_without_privacy(tmp_path):
    training, _ = train(small_spec("fedavg", overrides=("evaluation.training=true",)), tmp_path)
    text = training.run.metrics.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert 0 < lines[-1]["train_accuracy"] < 1


def test_training_records_of_a_private_run_are_refused_and_never_measured():
    with pytest.raises(DpfedadamwError, match=r"evaluation\.training: training records are priv"):
        small_spec("dp-fedavg", overrides=("evaluation.training=true",))
    private = SimpleNamespace(
        spec=SimpleNamespace(
            evaluation=SimpleNamespace(training=True), privacy=SimpleNamespace(unit="record")
        ),
        model=None, dataset=None, device=None,
    )  # fmt: skip
    assert evaluated(private)[-1] is False
