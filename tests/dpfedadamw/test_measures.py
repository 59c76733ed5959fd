"""Measures of a finished model: against scikit-learn in float64, and what is told of whom."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dpfedadamw import api, cli, measures
from dpfedadamw import spec as specs
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.models.registry import loss_of
from dpfedadamw.reexecution.plain import PlainGradients
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.spec.task_section import MultiLabelTask, RegressionTask, TokenTask
from dpfedadamw.tasks import CLASSES, Task
from reports.content import outcomes
from tests.runs import failing, small_spec, train


def answered(classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Answers with many ties, and targets of which the last class has none beyond two classes."""
    rng = np.random.default_rng(seed)
    answers = np.round(rng.normal(size=(300, classes)), 1).astype(np.float32)
    return answers, rng.integers(0, max(2, classes - 1), 300)


@pytest.mark.parametrize("classes", [2, 4])
def test_measures_are_those_of_scikit_learn(classes):
    # Here, since the environment of Flower collects this file and has no scikit-learn.
    from scipy.special import softmax

    pytest.importorskip("sklearn")
    from sklearn import metrics

    answers, targets = answered(classes)
    found = measures.final(CLASSES, answers, targets)
    chances, said = softmax(answers.astype(np.float64), axis=1), answers.argmax(1)
    there = np.eye(classes)[targets]
    wanted = [1] if classes == 2 else list(range(classes - 1))
    expected = {
        "majority_rate": np.bincount(targets).max() / 300,
        "auc": np.mean([metrics.roc_auc_score(there[:, one], chances[:, one]) for one in wanted]),
        "average_precision": np.mean(
            [metrics.average_precision_score(there[:, one], chances[:, one]) for one in wanted]
        ),
        "f1": metrics.f1_score(targets, said, labels=wanted, average="macro"),
        "balanced_accuracy": np.mean(
            [np.mean(said[targets == one] == one) for one in set(targets)]
        ),
        "log_loss": metrics.log_loss(targets, chances, labels=range(classes)),
    }
    error = found.pop("calibration_error")
    assert found == pytest.approx(expected, rel=1e-12)
    assert tuple(sorted(measures.FINAL)) == tuple(sorted([*found, "calibration_error"]))
    assert error == pytest.approx(calibration(chances, targets), rel=1e-12)
    matrix = metrics.confusion_matrix(targets, said, labels=range(classes))
    assert measures.confusion(answers, targets) == matrix.tolist()


def calibration(chances: np.ndarray, targets: np.ndarray) -> float:
    """Guo et al. 2017, equation (3), bin by bin."""
    total = 0.0
    for low in np.arange(15) / 15:
        part = (chances.max(1) > low) & (chances.max(1) <= low + 1 / 15 + 1e-15)
        if part.any():
            right = (chances.argmax(1) == targets)[part].mean()
            total += part.mean() * abs(right - chances.max(1)[part].mean())
    return total


def test_always_the_same_answer_is_seen_for_what_it_is():
    """The hospital's model: "91.5 %" that finds none of the positives."""
    targets = np.repeat([0, 1], [915, 85])
    found = measures.final(CLASSES, np.tile([2.0, -2.0], (1000, 1)), targets)
    assert found["majority_rate"] == 0.915
    assert (found["auc"], found["f1"], found["balanced_accuracy"]) == (0.5, 0.0, 0.5)
    assert found["average_precision"] == pytest.approx(0.085)


def test_one_class_has_no_ranking_and_infinite_answers_have_no_measures():
    found = measures.final(CLASSES, np.zeros((4, 2)), np.zeros(4, np.int64))
    assert "auc" not in found
    assert found["majority_rate"] == 1.0
    assert set(measures.final(CLASSES, np.full((4, 2), np.nan), np.arange(4) % 2)) == {
        "majority_rate"
    }


def test_other_tasks_have_the_majority_rate_of_their_answers():
    labels = np.array([[1, 0], [1, 0], [0, 0]], np.float32)
    tokens = np.array([[1, 1, -100], [2, -100, -100]])
    zeros = np.zeros((3, 2))
    assert measures.final(Task(MultiLabelTask()), zeros, labels) == {"majority_rate": 2 / 3}
    assert measures.final(Task(TokenTask()), zeros, tokens) == {"majority_rate": 2 / 3}
    assert measures.final(Task(TokenTask()), zeros, tokens * 0 - 100) == {}
    assert measures.final(Task(RegressionTask()), zeros, zeros) == {}


def test_a_matrix_of_very_many_classes_is_not_told():
    many = measures.MOST_CONFUSED + 1
    assert measures.confusion(np.zeros((2, many)), np.arange(2)) is None


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"a b": len}, "'a b': a name has 1 to 40 letters"),
        ({"cost": 3}, "cost: is not a function"),
        ({"cost": lambda a, t: a}, "cost: failed on answers (359, 10) and targets (359,)"),
        ({"cost": lambda a, t: 1 / 0}, "(ZeroDivisionError: division by zero)"),
        ({"cost": lambda a, t: float("nan")}, "cost: returned nan; return a finite number"),
    ],
)
def test_a_metric_that_is_none_is_refused_before_anything_is_spent(tmp_path, metrics, said):
    spec = small_spec(rounds=1).to_mapping()
    with pytest.raises(DpfedadamwError) as caught:
        api.run(spec, out=tmp_path / "runs", metrics=metrics)
    assert said in str(caught.value)
    assert list((tmp_path / "runs").glob("small-*")) == []


def imbalanced(path, records: int = 400):
    """A table in which one in eight is positive, and two classes that a line parts badly."""
    rng = np.random.default_rng(3)
    targets = (rng.random(records) < 0.125).astype(np.int64)
    inputs = (rng.normal(size=(records, 3)) + targets[:, None] * 0.5).astype(np.float32)
    half = records // 2
    np.savez(
        path, x_train=inputs[:half], y_train=targets[:half],
        x_test=inputs[half:], y_test=targets[half:],
    )  # fmt: skip


def spec_of(path, **evaluation):
    found = small_spec("dp-fedavg", rounds=3, clients_per_round=2).to_mapping()
    found["data"] = {
        "dataset": "arrays", "path": str(path), "cache": str(path.parent / "cache"),
        "clients": 5, "partition": {"kind": "iid"},
    }  # fmt: skip
    found["task"] = {
        "kind": "classification", "loss": "focal", "focal_gamma": 2.0, "class_weights": [1.0, 7.0],
    }  # fmt: skip
    return found | {"evaluation": evaluation}


def test_weights_and_focal_loss_are_trained_audited_and_computed_again(tmp_path):
    imbalanced(tmp_path / "records.npz")
    spec = spec_of(tmp_path / "records.npz")
    run = api.run(spec, out=tmp_path / "runs", replay=3)
    findings = run.audit().to_json()
    assert findings["verdict"] == "PASS", failing(findings)
    assert run.verify().level == 2
    last = list(run.metrics)[-1]
    assert set(run.measures) == {f"test_{name}" for name in measures.FINAL}
    # Test records of one's own are not public, where nobody says so.
    assert not {"test_confusion", "test_own"} & set(last)
    other = specs.from_mapping(spec | {"task": "classification"})
    plain = api.Run(train(other, tmp_path / "plain")[0].run.path)
    assert plain.measures["test_log_loss"] != run.measures["test_log_loss"]


def test_a_model_that_is_no_better_than_one_answer_is_said_to_be_so(tmp_path, monkeypatch, capsys):
    imbalanced(tmp_path / "records.npz")
    spec = spec_of(tmp_path / "records.npz") | {"task": "classification"}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", str(tmp_path / "spec.yaml"), "--out", str(tmp_path / "runs")])
    assert ended.value.code == 0
    run = api.Run(tmp_path / "runs" / "latest")
    rate = run.measures["test_majority_rate"]
    assert run.accuracy <= rate
    words = "no better than always giving the most frequent answer, which has"
    said = f"{words} {100 * rate:.1f} %"
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert said in printed
    assert f"majority rate {rate:.1%}" in printed
    page = (run.path / "report.html").read_text()
    first = page[: page.index("What the numbers mean")]
    assert said in first.replace("\u202f", " ").replace("\xa0", " ")
    # A model that is better says nothing of it.
    assert outcomes.against_majority(rate + 1e-9, rate, 0.5) == ""
    assert "Its AUC is 0.79, and" in outcomes.against_majority(rate, rate, 0.792)
    compared = tables_of([run.path, run.path])
    assert "Majority rate: always giving the most frequent answer" in compared
    assert "No better than that by accuracy: small, dp-fedavg." in compared


def tables_of(paths) -> str:
    comparison = pytest.importorskip("reports.extensions.comparison")
    from reports.extensions.comparison import tables

    return tables.as_markdown(comparison.compare(paths))


def test_the_auditor_knows_the_loss_of_a_record(tmp_path):
    """Sums of the engine are those of the declared loss, and not of a cross-entropy."""
    from dpfedadamw.experiment import prepare

    imbalanced(tmp_path / "records.npz")
    experiment = prepare(specs.from_mapping(spec_of(tmp_path / "records.npz")), torch.device("cpu"))
    training = engine_setup.start(experiment, tmp_path / "runs")
    training.lock.release()
    data = experiment.dataset.train
    records, labels = data.inputs[0:40], torch.from_numpy(data.labels[:40])
    # All are short enough that nothing is clipped, so that a loss shows in the sum.
    found = training.engine(records, labels)
    plain = PlainGradients(experiment).clipped_sum(
        training.flat.vector, records, labels, 1.0, found.raw_norms.numpy().astype(np.float32)
    )
    assert float(torch.linalg.vector_norm(found.total.double() - plain.clean)) <= 1e-5
    assert float(found.raw_norms.max()) > 0
    answers = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    chances = answers.softmax(1)[range(2), [1, 1]]
    expected = -((1 - chances) ** 2) * chances.log() * 7.0
    each = loss_of(experiment.model)(answers, torch.tensor([1, 1]))
    assert torch.allclose(each, expected)


def test_metrics_of_ones_own_are_told_of_public_records_and_needed_again(tmp_path):
    imbalanced(tmp_path / "records.npz")
    spec = spec_of(tmp_path / "records.npz")

    def cost(answers, targets):
        missed = (answers.argmax(1) != targets) & (targets == 1)
        return 50.0 * missed.sum() + (answers.argmax(1) != targets).sum()

    with pytest.raises(DpfedadamwError, match=r"set evaluation\.public_test: true"):
        api.run(spec, out=tmp_path / "runs", metrics={"cost": cost})
    spec["evaluation"] = {"public_test": True}
    run = api.run(spec, out=tmp_path / "runs", metrics={"cost": cost})
    assert run.verdict == "PASS"
    last = list(run.metrics)[-1]
    answers = run.model(torch.from_numpy(np.load(tmp_path / "records.npz")["x_test"]))
    targets = np.load(tmp_path / "records.npz")["y_test"]
    assert last["test_own"] == {"cost": cost(answers.detach().numpy(), targets)}
    assert run.measures["cost"] == last["test_own"]["cost"]
    matrix = np.array(last["test_confusion"])
    assert matrix.sum(1).tolist() == [pair[0] for pair in last["test_classes"]]
    assert np.diag(matrix).tolist() == [pair[1] for pair in last["test_classes"]]
    report = json.loads((run.path / "report.json").read_text())["utility"]
    assert report["confusion"] == last["test_confusion"]
    assert report["own"] == [{"name": "cost", "value": last["test_own"]["cost"]}]
    page = (run.path / "report.html").read_text()
    assert "Confusion matrix" in page
    assert "a metric of the user’s own" in page
    # A spec that names a function and is not given it spends nothing.
    with pytest.raises(DpfedadamwError, match="cost is a function passed from Python"):
        api.run(run.path / "spec.yaml", out=tmp_path / "again")
