"""Test accuracy and loss of the current model; without privacy also those of training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from dpfedadamw import measures
from dpfedadamw.data.datasets import Dataset, Records
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.experiment import Experiment
from dpfedadamw.models.registry import loss_of, scored, task_of, vocabulary_of
from dpfedadamw.profiling import part
from dpfedadamw.spec import EvaluationSpec
from dpfedadamw.spec.task_section import CLASSIFICATION, LANGUAGE
from dpfedadamw.tasks import Score

# Numbers in the inputs of one batch: 64 MiB of them.
_NUMBERS = 2**24
# Models with more parameters get smaller batches: their activations would take more memory than
# training does, and no less time.
_BATCHES = ((10_000_000, 64), (1_000_000, 128), (0, 1024))
# `auto`: below so many multiplications an evaluation does not show in a round, some milliseconds.
_CHEAP_PRODUCTS = 2**24
_MOST_EVALUATIONS = 10
_MOST_OF_A_ROUND, _COST_OF_TRAINING = 0.05, 3.0


@dataclass(frozen=True)
class Evaluation:
    """Test metrics, or None where the round was not evaluated.

    They are computed on held-out records and published without noise: they lie outside the privacy
    claim, and every report says so. Metrics of training records exist in runs without privacy only.

    Attributes:
        accuracy: Share of test records classified rightly, in [0, 1]; of several labels, share of
            records all of whose labels are right; of tokens, share of those that count; None of a
            regression.
        loss: Mean loss over the test records; None where it is not finite.
        validation_accuracy: Share of the public validation records classified rightly; None where
            there are none.
        by_class: Test records of each class and how many of them were classified rightly.
        train_accuracy: Share of the training records classified rightly; None where not measured.
        train_loss: Mean loss over them; None where not measured, or not finite.
        measures: Further measures on test records, by name (`tasks.Score`); of a finished model
            also those of `measures.final`.
        validation_loss: Mean loss over the validation records of a regression, which has no
            accuracy, and where a search chooses by it; None elsewhere, or where it is not finite.
        confusion: Test records of a finished model by class and answer; None where there are too
            many classes, or the test records are not public.
        own: Metrics of the user's own of a finished model, by name.
    """

    accuracy: float | None
    loss: float | None
    validation_accuracy: float | None = None
    by_class: tuple[tuple[int, int], ...] = ()
    train_accuracy: float | None = None
    train_loss: float | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    validation_loss: float | None = None
    confusion: list[list[int]] | None = None
    own: Mapping[str, float] = field(default_factory=dict)


def interval(experiment: Experiment) -> int:
    """Rounds between two evaluations, as the spec says or, for ``auto``, as they cost.

    Nothing is timed, so that a run and its replay test the same rounds. A record in a step passes
    through the model forwards and backwards, which takes three times as long as a test.
    """
    every, plan = experiment.spec.evaluation.every, experiment.plan
    if every != "auto":
        return every
    dataset, rounds = experiment.dataset, experiment.spec.federation.rounds
    tested = len(dataset.test) + (len(dataset.validation) if dataset.validation else 0)
    tested += len(dataset.train) if experiment.spec.evaluation.training else 0
    if tested * sum(p.numel() for p in experiment.model.parameters()) <= _CHEAP_PRODUCTS:
        return 1
    # How many records a client has must not show in public metrics, where a step takes all.
    batch = 1.0 if plan.sampling.event_kind == "full" else plan.divisor(0)
    trained = plan.clients_per_round * plan.local_steps * plan.queries_per_step * batch
    seldom = tested / (_MOST_OF_A_ROUND * _COST_OF_TRAINING * trained)
    return max(math.ceil(rounds / _MOST_EVALUATIONS), math.ceil(seldom))


def is_due(experiment: Experiment, completed: int, last: bool) -> bool:
    """Whether a round is evaluated: every so many, and the last.

    Args:
        experiment: What is run.
        completed: Rounds completed, the round included.
        last: Whether no round follows.
    """
    return last or completed % interval(experiment) == 0


def evaluated(experiment: Experiment) -> tuple[nn.Module, Dataset, torch.device, bool, bool]:
    """What `evaluate` is given of an experiment: training records only where nothing is private."""
    spec = experiment.spec
    training = spec.evaluation.training and spec.privacy.unit == "none"
    by_loss = spec.tune.score == "validation_loss"
    return experiment.model, experiment.dataset, experiment.device, training, by_loss


@part("evaluation")
def evaluate(
    model: nn.Module,
    dataset: Dataset,
    device: torch.device,
    training: bool = False,
    by_loss: bool = False,
    finished: EvaluationSpec | None = None,
) -> Evaluation:
    """Evaluate a model on test and validation records; leaves it in training mode.

    Args:
        model: What is evaluated.
        dataset: Its records.
        device: Where it lies.
        training: Whether it is evaluated on the training records as well; never of a private run.
        by_loss: Whether a search chooses by the loss over the public validation records.
        finished: The spec's section ``evaluation``, where the model is finished; None before.

    Raises:
        MetricError: If a metric of the user's own cannot be computed.
    """
    model.eval()
    kept: list[Tensor] = []
    # A language model answers each token with a number for each that there is.
    keeps = finished is not None and task_of(model).kind != LANGUAGE
    score, loss = measure(model, dataset.test, device, kept if keeps else None)
    validation = dataset.validation
    tuned = None if validation is None else measure(model, validation, device)
    seen = measure(model, dataset.train, device) if training else None
    model.train()
    more, matrix, own = {}, None, {}
    if finished is not None:
        task, right = task_of(model), dataset.test.labels
        answers = torch.cat(kept).numpy() if keeps else None
        more = measures.final(task, answers, right)
        if finished.public_test and answers is not None:
            matrix = measures.confusion(answers, right) if task.kind == CLASSIFICATION else None
            own = measures.own(finished.metrics, answers, right)
    return Evaluation(
        score.accuracy,
        _finite(loss),
        None if tuned is None else tuned[0].accuracy,
        _by_class(dataset, score),
        None if seen is None else seen[0].accuracy,
        None if seen is None else _finite(seen[1]),
        {**score.measures, **more},
        _finite(tuned[1]) if tuned and (by_loss or tuned[0].accuracy is None) else None,
        matrix,
        own,
    )


def _by_class(dataset: Dataset, score: Score) -> tuple[tuple[int, int], ...]:
    """Test records of each class and how many are right; none where there are no classes."""
    if score.right is None:
        return ()
    labels = dataset.test.labels
    counts = np.bincount(labels, minlength=dataset.classes)
    hits = np.bincount(labels[score.right], minlength=dataset.classes)
    return tuple(zip(counts.tolist(), hits.tolist(), strict=True))


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def measure(
    model: nn.Module,
    records: Records,
    device: torch.device,
    kept: list[Tensor] | None = None,
) -> tuple[Score, float]:
    """How well a model does on records by its task, and the mean loss, a batch at a time.

    Args:
        model: In evaluation mode.
        records: What it is asked.
        device: Where it lies.
        kept: Is given the answers, on the CPU, where it is a list.
    """
    tally, loss = task_of(model).tally(), 0.0
    of_records = loss_of(model)
    for rows, outputs in answers(model, records.inputs, device):
        labels = torch.from_numpy(records.labels[rows]).to(device)
        for scores, right in scored(model, outputs, labels):
            tally.add(scores, right)
        loss += float(of_records(outputs, labels).sum())
        if kept is not None:
            kept.append(outputs.float().cpu())
    return tally.score(), loss / len(records)


def answers(
    model: nn.Module, stored: StoredRecords, device: torch.device
) -> Iterator[tuple[slice, Tensor]]:
    """What a model answers to records, a batch at a time, without gradients.

    A test and a prediction both come from here, so that equal records in one order have equal
    answers to the last bit: how many share a batch can move it.

    Args:
        model: In evaluation mode.
        stored: The records.
        device: Where the model lies.

    Yields:
        Which records, and the answers to them, [b, …].
    """
    inputs = stored.to(device)
    size = sum(p.numel() for p in model.parameters())
    most = next(batch for parameters, batch in _BATCHES if size > parameters or not parameters)
    # What a language model answers is far longer than what it is asked.
    numbers = math.prod(inputs.shape) * (vocabulary_of(model) if _answers_tokens(model) else 1)
    batch = max(1, min(most, _NUMBERS // numbers))
    for start in range(0, len(stored), batch):
        part = slice(start, min(start + batch, len(stored)))
        with torch.no_grad():
            outputs: Tensor = model(inputs[part])
        yield part, outputs


def _answers_tokens(model: nn.Module) -> bool:
    return task_of(model).kind == LANGUAGE
