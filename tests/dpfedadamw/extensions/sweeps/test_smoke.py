"""Cells at a size for a trial."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.experiment import prepare
from dpfedadamw.extensions.sweeps.smoke import small
from dpfedadamw.spec.matrix import Cell, load_sweep
from tests.sweeps import METHODS, UNTUNED, swept

CPU = torch.device("cpu")
published = pytest.mark.skipif(find_spec("peft") is None, reason="no published models without peft")


def tried(sweep, tmp_path):
    (cell, *_), notes = small(sweep.cells, tmp_path)
    return cell.spec, notes


@published
def test_published_images_become_random_records_of_their_shape_and_classes(tmp_path):
    spec, notes = tried(load_sweep("paper-dp-fedadamw-table-3", ["seeds=1"]), tmp_path)
    assert (spec.federation.rounds, spec.federation.local_steps) == (2, 1)
    assert spec.data.partition.alpha == 0.6
    with np.load(spec.data.path) as found:
        assert found["x_train"].shape == (240, 3, 32, 32)
        assert found["x_train"].dtype == np.uint8
        assert sorted(set(found["y_train"])) == list(range(100))
    assert "cifar100: 240 random records of shape 3x32x32 in 100 classes, 6 clients" in notes
    assert prepare(spec, CPU).dataset.classes == 100


@pytest.mark.thorough
@published
def test_a_published_model_keeps_its_architecture_and_what_is_trained_of_it(tmp_path):
    spec, notes = tried(load_sweep("paper-dp-fedadamw-table-4", ["seeds=1"]), tmp_path)
    assert (spec.model.name, spec.model.weights) == ("roberta-base", "random")
    assert spec.model.fine_tuning.kind == "lora"
    prepared = prepare(spec, CPU)
    assert prepared.dataset.train.inputs.shape == (2, 128)
    assert sum(one.numel() for one in prepared.model.parameters()) < 10_000
    assert any(note.startswith("roberta-base: its architecture") for note in notes)


def test_data_and_models_that_need_no_download_stay_and_seeds_are_not_tried(tmp_path):
    sweep = swept(tmp_path, METHODS + "seeds: 3\n")
    cells, notes = small(sweep.cells, tmp_path)
    assert [cell.values for cell in cells] == [cell.values for cell in sweep.cells[::3]]
    assert cells[0].spec.data == sweep.cells[0].spec.data
    assert cells[0].spec.model == sweep.cells[0].spec.model
    assert notes == []


def test_of_a_search_with_seeds_of_its_own_a_trial_and_a_run_of_the_best_are_tried(tmp_path):
    text = "seeds: 2\ntune: {selection: unaccounted, score: test_accuracy, seeds: 3, grid: "
    sweep = swept(tmp_path, text + "{algorithm.learning_rate: [0.1, 0.2]}}\n", base=UNTUNED)
    cells, _ = small(sweep.cells, tmp_path)
    assert [(cell.seed, [one.seed for one in cell.released]) for cell in cells] == [(1000, [0])] * 2
    assert {one.spec.federation.rounds for cell in cells for one in (cell, *cell.released)} == {2}


@pytest.mark.parametrize("partition", ["kind: shards", "kind: column, file: owners.txt"])
def test_any_partition_of_published_records_becomes_one_of_the_random_records(tmp_path, partition):
    changes = [
        f"data={{dataset: mnist, path: none, clients: 20, partition: {{{partition}}}}}",
        "federation.clients_per_round=20",
    ]
    cell = Cell({}, None, specs.load("quickstart", changes), "")
    (made,), _ = small([cell], tmp_path)
    assert prepare(made.spec, CPU).spec.data.clients == 6


IMAGES = (
    "data={dataset: mnist, path: none, clients: 20, seed: 3, "
    "validation: {fraction: 0.25, public: true}, partition: {kind: dirichlet, alpha: 0.3}}"
)


def of_images(tmp_path, *changes):
    spec = specs.load("quickstart", [IMAGES, *changes])
    (made,), notes = small([Cell({}, None, spec, "old")], tmp_path)
    return made, notes


def test_a_trial_of_images_has_few_clients_in_the_same_share_and_small_batches(tmp_path):
    made, notes = of_images(tmp_path, "federation.clients_per_round=5", "federation.rounds=90")
    spec = made.spec
    assert made.digest != "old"
    assert (spec.federation.rounds, spec.federation.local_steps, spec.evaluation.every) == (2, 1, 1)
    # Five of twenty are one or two of six, and 40 records in a client's mean are 240.
    assert (spec.data.clients, spec.federation.clients_per_round) == (6, 2)
    assert (spec.data.dataset, spec.data.seed, spec.data.validation.fraction) == ("arrays", 3, 0.25)
    assert (spec.data.partition.kind, spec.data.partition.alpha) == ("dirichlet", 0.3)
    assert spec.data.partition.minimum_records == 8
    assert spec.privacy.sampling.expected_batch_size == 4
    assert notes == ["mnist: 240 random records of shape 1x28x28 in 10 classes, 6 clients"]
    assert spec.data.path == str(tmp_path / "data" / "1x28x28-10.npz")
    with np.load(spec.data.path) as found:
        images, labels = found["x_train"], found["y_train"]
        assert (images.shape, images.dtype) == ((240, 1, 28, 28), np.uint8)
        assert found["x_test"].shape == (40, 1, 28, 28)
        assert labels.tolist() == [number % 10 for number in range(240)]
        # The class shows in the brightness: grey values from 0 to 199, and 5 more for each class.
        for label in range(10):
            of_class = images[labels == label]
            assert (of_class.min(), of_class.max()) == (5 * label, 5 * label + 199)
        first = images.copy()
    (tmp_path / "data" / "1x28x28-10.npz").unlink()
    of_images(tmp_path)
    with np.load(spec.data.path) as found:
        assert (found["x_train"] == first).all()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (("data.clients=3", "federation.clients_per_round=3"), (3, 3, 4, None)),
        (("federation.clients_per_round=1",), (6, 1, 4, None)),
        (("privacy.sampling.expected_batch_size=2",), (6, 3, 2, None)),
        (
            ("privacy.sampling={kind: poisson, rate: 0.01, expected_batch_size: 9}",),
            (6, 3, 9, 0.01),
        ),
        (
            ("privacy={unit: client, clipping_norm: 1.0, noise_multiplier: 2.0, delta: 1.0e-3}",
             "federation.clients_per_round=1", "algorithm={name: dp-fedavg, learning_rate: 0.1}"),
            (6, 3, None, None),
        ),
    ],
)  # fmt: skip
def test_a_trial_has_no_more_of_anything_than_what_it_stands_for(changes, expected, tmp_path):
    made, _ = of_images(tmp_path, "federation.clients_per_round=10", *changes)
    spec, sampling = made.spec, made.spec.privacy.sampling
    clients, participants, batch, rate = expected
    assert (spec.data.clients, spec.federation.clients_per_round) == (clients, participants)
    assert (sampling.expected_batch_size, sampling.rate) == (batch, rate)
