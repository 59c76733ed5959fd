"""Tasks: losses of single records, their clipped sums, and how answers are scored."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from dpfedadamw.clipping.engines import choose
from dpfedadamw.spec.task_section import (
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
    TokenTask,
)
from dpfedadamw.tasks import Task

RECORDS, LENGTH, OUTPUTS = 6, 5, 3
TASKS = {
    "classes": Task(ClassificationTask()),
    "weighted focal": Task(
        ClassificationTask(loss="focal", focal_gamma=1.5, class_weights=(1.0, 4.0, 0.5))
    ),
    "squares": Task(RegressionTask()),
    "huber": Task(RegressionTask(loss="huber", huber_delta=0.5)),
    "labels": Task(MultiLabelTask()),
    "tokens": Task(TokenTask()),
    "sum of tokens": Task(TokenTask(reduction="sum", ignore_index=-1)),
}


def targets_of(task: Task) -> torch.Tensor:
    """Targets of six records; of tokens some count for nothing, and of one record none counts."""
    generator = torch.Generator().manual_seed(1)
    match task.kind:
        case "classification":
            return torch.randint(0, OUTPUTS, (RECORDS,), generator=generator)
        case "regression":
            return torch.randn(RECORDS, OUTPUTS, generator=generator)
        case "multi_label":
            return torch.randint(0, 2, (RECORDS, OUTPUTS), generator=generator).float()
        case _:
            found = torch.randint(0, OUTPUTS, (RECORDS, LENGTH), generator=generator)
            for record in range(RECORDS):
                found[record, LENGTH - record :] = task.spec.ignore_index
            found[-1] = task.spec.ignore_index
            return found


def answers_to(task: Task) -> torch.Tensor:
    shape = (
        (RECORDS, LENGTH, OUTPUTS) if task.kind == "token_classification" else (RECORDS, OUTPUTS)
    )
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def by_definition(name: str, answer: torch.Tensor, target: torch.Tensor) -> float:
    """The loss of one record, written down as its definition has it."""
    answer, target = answer.double(), target.double() if target.is_floating_point() else target
    match name:
        case "classes":
            return float(-answer.log_softmax(0)[target])
        case "weighted focal":
            chance = answer.softmax(0)[target]
            return float(-((1 - chance) ** 1.5) * chance.log() * (1.0, 4.0, 0.5)[int(target)])
        case "squares":
            return float((answer - target).square().mean())
        case "huber":
            size = (answer - target).abs()
            each = torch.where(size <= 0.5, size.square() / 2, 0.5 * (size - 0.25))
            return float(each.mean())
        case "labels":
            said = answer.sigmoid()
            return float(-(target * said.log() + (1 - target) * (1 - said).log()).mean())
        case _:
            each = [float(-answer[i].log_softmax(0)[c]) for i, c in enumerate(target) if c >= 0]
            return sum(each) / (max(1, len(each)) if name == "tokens" else 1)


@pytest.mark.parametrize("name", TASKS)
def test_a_loss_is_its_definition_and_a_function_of_one_record_alone(name):
    task = TASKS[name]
    answers, targets = answers_to(task), targets_of(task)
    together = task.loss(answers, targets)
    assert together.shape == (RECORDS,)
    for record in range(RECORDS):
        alone = task.loss(answers[record : record + 1], targets[record : record + 1])
        expected = by_definition(name, answers[record], targets[record])
        assert float(together[record]) == pytest.approx(expected, rel=1e-5, abs=1e-7)
        assert torch.equal(alone[0], together[record])


class Tagger(nn.Module):
    """A class for each of five places."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, OUTPUTS)

    def forward(self, inputs):
        return self.head(inputs.reshape(-1, LENGTH, 4))


@pytest.mark.parametrize("engine", ["book-keeping", "vmap", "loop"])
@pytest.mark.parametrize("name", TASKS)
def test_clipped_sums_of_every_task_are_those_of_a_loop_over_records(name, engine):
    task, clip = TASKS[name], 0.3
    torch.manual_seed(0)
    tokens = task.kind == "token_classification"
    model = (
        Tagger() if tokens else nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, OUTPUTS))
    )
    inputs, targets = torch.randn(RECORDS, 20), targets_of(task)
    found = choose(model, task.loss, clip, engine=engine)(inputs, targets)
    expected = 0.0
    for record in range(RECORDS):
        one = slice(record, record + 1)
        loss = task.loss(model(inputs[one]), targets[one]).sum()
        parts = torch.autograd.grad(loss, list(model.parameters()))
        gradient = torch.cat([part.reshape(-1) for part in parts]).double()
        norm = float(gradient.norm())
        assert float(found.raw_norms[record]) == pytest.approx(norm, rel=1e-5, abs=1e-7)
        expected = expected + gradient * min(1.0, clip / max(norm, 1e-30))
    assert float((found.total.double() - expected).norm()) <= 1e-5 * float(expected.norm())
    if tokens:
        # A record of nothing but padding moves nothing.
        assert float(found.raw_norms[-1]) == 0.0


def test_outputs_that_do_not_fit_their_targets_are_not_broadcast():
    for name in ("squares", "labels"):
        with pytest.raises(ValueError, match=r"\(6, 1\) do not fit targets \(6, 3\)"):
            TASKS[name].loss(torch.zeros(RECORDS, 1), targets_of(TASKS[name]))
    with pytest.raises(ValueError, match="do not fit"):
        TASKS["tokens"].loss(torch.zeros(RECORDS, 2, OUTPUTS), targets_of(TASKS["tokens"]))


def scored(task: Task, answers: torch.Tensor, targets: torch.Tensor):
    """What two batches of unequal size come to."""
    tally = task.tally()
    for part in (slice(0, 4), slice(4, RECORDS)):
        tally.add(answers[part], targets[part])
    return tally.score()


def test_scores_are_those_of_scikit_learn():
    # Here, since the environment of Flower collects this file and has no scikit-learn.
    pytest.importorskip("sklearn")
    from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, r2_score

    answers, targets = answers_to(TASKS["squares"]), targets_of(TASKS["squares"])
    found = scored(TASKS["squares"], answers, targets)
    assert found.accuracy is None
    errors = (answers - targets).double().numpy()
    assert found.measures["rmse"] == pytest.approx(math.sqrt(np.mean(errors**2)))
    assert found.measures["mae"] == pytest.approx(mean_absolute_error(targets, answers))
    assert found.measures["r2"] == pytest.approx(r2_score(targets, answers))

    answers, targets = answers_to(TASKS["labels"]), targets_of(TASKS["labels"])
    found, said = scored(TASKS["labels"], answers, targets), (answers > 0).int().numpy()
    assert found.measures["micro_f1"] == pytest.approx(f1_score(targets, said, average="micro"))
    assert found.accuracy == pytest.approx(accuracy_score(targets, said))

    answers, targets = answers_to(TASKS["tokens"]), targets_of(TASKS["tokens"])
    counted = (targets >= 0).numpy()
    expected = accuracy_score(targets.numpy()[counted], answers.argmax(2).numpy()[counted])
    assert scored(TASKS["tokens"], answers, targets).accuracy == pytest.approx(expected)


def test_a_target_that_does_not_vary_has_no_share_of_variance_explained():
    targets = torch.ones(RECORDS, OUTPUTS)
    found = scored(TASKS["squares"], answers_to(TASKS["squares"]), targets)
    assert set(found.measures) == {"rmse", "mae"}


@pytest.mark.parametrize("name", TASKS)
def test_made_up_targets_differ_and_are_such_as_the_data_set_has(name):
    task, like = TASKS[name], targets_of(TASKS[name]).numpy()
    kinds = np.arange(task.kinds_made_up(OUTPUTS))
    found = task.made_up(kinds, like, OUTPUTS)
    assert found.dtype == like.dtype
    assert found.shape == (len(kinds), *like.shape[1:])
    assert len(np.unique(found.reshape(len(kinds), -1), axis=0)) == len(kinds)
    losses = task.loss(answers_to(task)[: len(kinds)], torch.from_numpy(found))
    assert bool(torch.isfinite(losses).all())
    if task.kind == "multi_label":
        assert set(np.unique(found)) == {0.0, 1.0}


MADE_UP = {
    "classes": [0, 1, 2],
    "squares": [[-2.0, -0.5, 1.0], [-0.5, 1.0, 3.0], [1.0, 3.0, -2.0], [3.0, -2.0, -0.5]],
    "labels": [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0]],
    "tokens": [[0, 1, 2, 0, 1], [1, 2, 0, 1, 2], [2, 0, 1, 2, 0]],
}


@pytest.mark.parametrize("name", MADE_UP)
def test_made_up_targets_are_the_same_in_every_version(name: str) -> None:
    """Crafted canaries have such targets, and a run is computed again from its seed."""
    task, like = TASKS[name], targets_of(TASKS[name]).numpy()
    numbers = np.arange(task.kinds_made_up(OUTPUTS))
    assert task.made_up(numbers, like, OUTPUTS).tolist() == MADE_UP[name]


def test_bfloat16_fills_batches_up_with_records_that_count_for_nothing_whatever_the_task():
    for name in ("classes", "squares", "labels"):
        torch.manual_seed(0)
        model, task = nn.Linear(4, OUTPUTS), TASKS[name]
        inputs, targets = torch.randn(RECORDS, 4), targets_of(task)
        filled = choose(model, task.loss, 1.0, precision="bfloat16", batch=16)(inputs, targets)
        plain = choose(model, task.loss, 1.0, precision="bfloat16", batch=RECORDS)(inputs, targets)
        assert filled.raw_norms.shape == (RECORDS,)
        assert torch.allclose(filled.total, plain.total, rtol=2e-2, atol=1e-3), name
        assert bool(torch.isfinite(filled.total).all())


def test_classification_stays_what_torch_computes():
    answers, targets = answers_to(TASKS["classes"]), targets_of(TASKS["classes"])
    expected = functional.cross_entropy(answers, targets, reduction="none")
    assert torch.equal(TASKS["classes"].loss(answers, targets), expected)
