"""How long a cell may take on a GPU, from what its model computes."""

from __future__ import annotations

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.extensions.sweeps.estimate import Estimator
from tests.runs import small_spec

# Softmax regression on 64 pixels in 10 classes: two operations a weight forwards; all are trained.
FORWARD = 2 * 64 * 10


def operations(name: str, *changes: str) -> float | None:
    return Estimator().operations(specs.load(name, changes))


def test_operations_are_those_of_a_record_times_records_steps_clients_and_rounds():
    assert operations("quickstart") == pytest.approx(3 * FORWARD * 20 * 10 * 5 * 40)


def test_two_questions_a_batch_cost_twice_and_a_stated_rate_says_how_large_batches_are():
    once = operations("digits-dp-fedavg")
    assert operations("digits-dp-fedsam") == pytest.approx(2 * once)
    stated = operations("digits-dp-fedavg", "privacy.sampling.rate=0.1")
    assert stated == pytest.approx(once * 0.1 * 1438 / 10 / 40)


def test_frozen_weights_are_passed_through_and_not_differentiated():
    pytest.importorskip("peft")
    change = "data={dataset: cifar10, path: none, clients: 4}"
    model = "model={name: vit-base, weights: random, fine_tuning: %s}"
    all_, lora = (operations("quickstart", change, "federation.clients_per_round=4", model % kind)
                  for kind in ("all", "lora"))  # fmt: skip
    assert 2.0 < 3 * lora / all_ < 2.1


def test_of_data_of_ones_own_nothing_is_told():
    assert operations("quickstart", "data={dataset: arrays, path: mine.npz}") is None


def test_of_a_model_whose_files_are_not_here_nothing_is_told():
    change = "data={dataset: sst2, path: none, clients: 10}"
    model = "model={name: transformers, source: no/such/folder, fine_tuning: {kind: head}}"
    assert operations("quickstart", change, model) is None


def test_whole_clients_take_all_their_records_and_steps_that_adapt_the_most_that_they_may():
    count = Estimator().operations
    # 1,438 of the digits are trained on, by five clients of whom four take part in four rounds.
    whole = 3 * FORWARD * 4 * 4 * 3 * 1438 / 5
    assert count(small_spec("fedavg")) == pytest.approx(whole)
    adapting = small_spec("ali-dpfl", overrides=("algorithm.local_iterations.maximum=7",))
    assert count(adapting) == pytest.approx(3 * FORWARD * 4 * 4 * 7 * 24)


def test_a_model_is_counted_once_for_all_cells_that_train_it(monkeypatch):
    from dpfedadamw.extensions.sweeps import estimate

    counted, real = [], estimate._of_a_record
    monkeypatch.setattr(
        estimate, "_of_a_record", lambda *words: counted.append(words[0]) or real(*words)
    )
    estimator = Estimator()
    found = [
        estimator.operations(specs.load("quickstart", [change]))
        for change in ("federation.rounds=1", "federation.rounds=2", "model.hidden=[8]")
    ]
    assert found[1] == 2 * found[0]
    # Of 64 to 8 to 10, twenty rounds.
    assert found[2] == pytest.approx(3 * 2 * (64 * 8 + 8 * 10) * 20 * 10 * 5 * 40)
    assert len(counted) == 2
