"""When a model is tested: as the spec says, or as seldom as it costs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from dpfedadamw import spec as specs
from dpfedadamw.data.datasets import Records
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.privacy.sampling import FullBatch, PoissonSampling
from dpfedadamw.run.evaluation import evaluate, evaluated, interval, is_due, measure
from dpfedadamw.spec import EvaluationSpec
from dpfedadamw.tasks import Task
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
            evaluation=SimpleNamespace(training=True), privacy=SimpleNamespace(unit="record"),
            tune=SimpleNamespace(score=None),
        ),
        model=None, dataset=None, device=None,
    )  # fmt: skip
    assert evaluated(private)[3] is False


def test_where_a_search_chooses_by_it_the_validation_loss_of_classes_is_published(tmp_path):
    """Such a search had no best: only a regression had the loss in its metrics."""
    public = ("data.validation={fraction: 0.5, public: true}",)
    for score in ("validation_loss", "validation_accuracy"):
        tune = f"tune={{selection: unaccounted, score: {score}}}"
        spec = small_spec(rounds=2, overrides=(*public, tune))
        training, _ = train(spec, tmp_path / score)
        lines = [json.loads(line) for line in training.run.metrics.read_text("utf-8").splitlines()]
        assert all(0 < line["validation_accuracy"] < 1 for line in lines)
        told = [line.get("validation_loss", 0) > 0 for line in lines]
        assert told == [score == "validation_loss"] * 3


class Weighing(nn.Module):
    """Answers with the numbers of each record; so many parameters, which take no memory."""

    def __init__(self, parameters: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters, device="meta"))
        self.modes: list[bool] = []
        self.sizes: list[int] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        self.modes.append(self.training)
        self.sizes.append(len(inputs))
        return inputs


@pytest.mark.parametrize(("tested", "every"), [(2**20, 1), (2**20 + 1, 20)])
def test_cheap_is_up_to_sixteen_million_products(tested, every):
    model = Weighing(16)
    assert interval(experiment(tested=tested, model=model, clients=10**6)) == every


def test_validation_and_training_records_that_are_tested_cost_as_much():
    one = experiment(clients=1, steps=10, batch=10.0)
    assert interval(one) == 667
    one.dataset.validation = range(2_000)
    assert interval(one) == 800
    one.dataset.train = range(3_000)
    assert interval(one) == 800
    one.spec.evaluation.training = True
    assert interval(one) == 1_000
    one.plan.queries_per_step = 2
    assert interval(one) == 500


def test_where_a_step_takes_all_records_it_counts_as_one():
    assert interval(experiment(clients=1, steps=10, batch=None)) == 6_667


@pytest.mark.parametrize(
    ("parameters", "largest"),
    [(0, 1024), (10**6, 1024), (10**6 + 1, 128), (10**7, 128), (10**7 + 1, 64)],
)
def test_the_bounds_between_small_and_large_models(parameters, largest):
    model = Weighing(parameters)
    measure(model, records(np.zeros((1_100, 2)), np.zeros(1_100, np.int64)), torch.device("cpu"))
    assert model.sizes[0] == largest
    assert sum(model.sizes) == 1_100


class Wide:
    """Records of so many numbers each, of which only the first two are looked at."""

    def __init__(self, numbers: int, count: int) -> None:
        self.shape, self._count = (2, numbers // 2), count

    def __len__(self) -> int:
        return self._count

    def to(self, _device: torch.device) -> Wide:
        return self

    def __getitem__(self, part: slice) -> torch.Tensor:
        return torch.zeros(len(range(3_000)[part]), 2)


@pytest.mark.parametrize(
    ("numbers", "largest"),
    [(2**14, 1024), (2**14 + 2, 1023), (2**20, 16), (2**24, 1), (2**24 + 2, 1), (2**26, 1)],
)
def test_a_batch_has_at_most_sixteen_million_numbers_and_one_record_at_least(numbers, largest):
    model = Weighing()
    wide: Any = Records(Wide(numbers, 2 * largest), np.zeros(2 * largest, np.int64))  # type: ignore[arg-type]
    measure(model, wide, torch.device("cpu"))
    assert model.sizes == [largest, largest]


def records(outputs: np.ndarray, labels: np.ndarray) -> Records:
    return Records(StoredRecords(outputs.astype(np.float32)), labels)


def cross_entropy(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(logsumexp(outputs, axis=1) - outputs[range(len(labels)), labels]))


def three_classes(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 3)), rng.integers(0, 2, count)


def test_classes_are_measured_by_share_loss_and_class_on_each_part_of_the_records():
    parts = {name: three_classes(seed, 40 + seed) for seed, name in enumerate(("a", "b", "c"))}
    test, validation, train = (records(*part) for part in parts.values())
    dataset: Any = SimpleNamespace(test=test, validation=validation, train=train, classes=4)
    model = Weighing()
    found = evaluate(model, dataset, torch.device("cpu"), training=True)
    right = [outputs.argmax(1) == labels for outputs, labels in parts.values()]
    assert found.accuracy == pytest.approx(right[0].mean())
    assert found.validation_accuracy == pytest.approx(right[1].mean())
    assert found.train_accuracy == pytest.approx(right[2].mean())
    assert found.loss == pytest.approx(cross_entropy(*parts["a"]), rel=1e-5)
    assert found.train_loss == pytest.approx(cross_entropy(*parts["c"]), rel=1e-5)
    assert found.validation_loss is None
    chosen = evaluate(Weighing(), dataset, torch.device("cpu"), by_loss=True)
    assert chosen.validation_loss == pytest.approx(cross_entropy(*parts["b"]), rel=1e-5)
    assert chosen.validation_accuracy == found.validation_accuracy
    labels = parts["a"][1]
    pairs = [(int((labels == one).sum()), int(right[0][labels == one].sum())) for one in (0, 1)]
    assert found.by_class == (*pairs, (0, 0), (0, 0))
    assert model.modes == [False] * 3
    assert model.training


def test_only_test_records_are_measured_where_nothing_else_is_asked_for():
    test = records(*three_classes(1, 30))
    dataset: Any = SimpleNamespace(test=test, validation=None, train=None, classes=3)
    model = Weighing()
    found = evaluate(model, dataset, torch.device("cpu"), by_loss=True)
    assert (found.validation_accuracy, found.validation_loss) == (None, None)
    assert (found.train_accuracy, found.train_loss) == (None, None)
    assert model.sizes == [30]


def test_only_of_a_finished_model_answers_are_kept_for_measures_and_of_public_records_a_matrix():
    outputs, labels = three_classes(1, 30)
    dataset: Any = SimpleNamespace(test=records(outputs, labels), validation=None, classes=3)
    public, private = (EvaluationSpec(public_test=one) for one in (True, False))
    found, hidden, before = (
        evaluate(Weighing(), dataset, torch.device("cpu"), finished=one)
        for one in (public, private, None)
    )
    matrix = np.zeros((3, 3), np.int64)
    np.add.at(matrix, (labels, outputs.argmax(1)), 1)
    assert found.confusion == matrix.tolist()
    assert found.measures["log_loss"] == pytest.approx(cross_entropy(outputs, labels), rel=1e-5)
    assert hidden.measures == found.measures
    assert (hidden.confusion, before.confusion, before.measures) == (None, None, {})


def test_what_a_language_model_answers_to_every_token_is_not_kept():
    model = Weighing()
    model.record_task = Task(specs.task_of({"kind": "causal_lm"}))  # type: ignore[assignment]
    model.record_vocabulary = 5  # type: ignore[assignment]
    outputs, tokens = np.zeros((2, 3, 5)), np.array([[1, 1, 4], [1, 0, 1]])
    outputs[:, :, 1] = 1.0
    dataset: Any = SimpleNamespace(test=records(outputs, tokens), validation=None, classes=5)
    # Of answers that are kept it would ask for metrics of one's own, which this has not.
    finished: Any = SimpleNamespace(public_test=True)
    found = evaluate(model, dataset, torch.device("cpu"), finished=finished)
    assert (found.accuracy, found.confusion, found.own) == (4 / 6, None, {})
    assert found.measures["majority_rate"] == 4 / 6


def test_a_regression_has_losses_and_measures_and_no_classes():
    model = Weighing()
    model.record_task = Task(specs.task_of({"kind": "regression"}))  # type: ignore[assignment]
    test = records(np.array([[0.0], [1.0]]), np.array([[2.0], [1.0]], np.float32))
    validation = records(np.array([[3.0]]), np.array([[0.0]], np.float32))
    dataset: Any = SimpleNamespace(test=test, validation=validation, classes=1)
    found = evaluate(model, dataset, torch.device("cpu"))
    assert (found.accuracy, found.validation_accuracy, found.by_class) == (None, None, ())
    assert (found.loss, found.validation_loss) == (2.0, 9.0)
    assert found.measures["rmse"] == pytest.approx(2**0.5)


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_a_loss_that_is_not_finite_is_not_told(wrong):
    bad = records(np.array([[0.0, wrong]]), np.array([0]))
    dataset: Any = SimpleNamespace(test=bad, validation=bad, train=bad, classes=2)
    found = evaluate(Weighing(), dataset, torch.device("cpu"), training=True)
    assert (found.loss, found.train_loss) == (None, None)
    assert found.accuracy is not None


@pytest.mark.parametrize(
    ("wanted", "unit", "expected"),
    [
        (True, "none", True),
        (False, "none", False),
        (True, "client", False),
        (True, "record", False),
    ],
)
def test_training_records_are_looked_at_only_where_nothing_is_private(wanted, unit, expected):
    one: Any = SimpleNamespace(
        spec=SimpleNamespace(
            evaluation=SimpleNamespace(training=wanted), privacy=SimpleNamespace(unit=unit),
            tune=SimpleNamespace(score=None),
        ),
        model="model", dataset="data", device="device",
    )  # fmt: skip
    assert evaluated(one) == ("model", "data", "device", expected, False)
