"""Test accuracy and loss of the current model; without privacy also those of training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpfedadamw.data.datasets import Dataset, Records
from dpfedadamw.experiment import Experiment
from dpfedadamw.models.registry import loss_of
from dpfedadamw.profiling import part

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
        accuracy: Share of test records classified rightly, in [0, 1].
        loss: Mean cross-entropy over the test records; None where it is not finite.
        validation_accuracy: Share of the public validation records classified rightly; None where
            there are none.
        by_class: Test records of each class and how many of them were classified rightly.
        train_accuracy: Share of the training records classified rightly; None where not measured.
        train_loss: Mean cross-entropy over them; None where not measured, or not finite.
    """

    accuracy: float | None
    loss: float | None
    validation_accuracy: float | None = None
    by_class: tuple[tuple[int, int], ...] = ()
    train_accuracy: float | None = None
    train_loss: float | None = None


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


def evaluated(experiment: Experiment) -> tuple[nn.Module, Dataset, torch.device, bool]:
    """What `evaluate` is given of an experiment: training records only where nothing is private."""
    spec = experiment.spec
    training = spec.evaluation.training and spec.privacy.unit == "none"
    return experiment.model, experiment.dataset, experiment.device, training


@part("evaluation")
def evaluate(
    model: nn.Module, dataset: Dataset, device: torch.device, training: bool = False
) -> Evaluation:
    """Evaluate a model on test and validation records; leaves it in training mode.

    Args:
        model: What is evaluated.
        dataset: Its records.
        device: Where it lies.
        training: Whether it is evaluated on the training records as well; never of a private run.
    """
    model.eval()
    right, loss = measure(model, dataset.test, device)
    validation = dataset.validation
    tuned = None if validation is None else float(measure(model, validation, device)[0].mean())
    seen = measure(model, dataset.train, device) if training else None
    model.train()
    labels = dataset.test.labels
    counts = np.bincount(labels, minlength=dataset.classes)
    hits = np.bincount(labels[right], minlength=dataset.classes)
    by_class = tuple(zip(counts.tolist(), hits.tolist(), strict=True))
    return Evaluation(
        int(right.sum()) / len(right),
        _finite(loss),
        tuned,
        by_class,
        None if seen is None else int(seen[0].sum()) / len(seen[0]),
        None if seen is None else _finite(seen[1]),
    )


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def measure(
    model: nn.Module, records: Records, device: torch.device
) -> tuple[NDArray[np.bool_], float]:
    """Whether each record was classified rightly, [n], and the mean loss, a batch at a time."""
    inputs = records.inputs.to(device)
    size = sum(p.numel() for p in model.parameters())
    most = next(batch for parameters, batch in _BATCHES if size > parameters or not parameters)
    batch = max(1, min(most, _NUMBERS // math.prod(inputs.shape)))
    right, loss = np.zeros(len(records), dtype=np.bool_), 0.0
    of_records = loss_of(model)
    with torch.no_grad():
        for start in range(0, len(records), batch):
            part = slice(start, start + batch)
            labels = torch.from_numpy(records.labels[part]).to(device)
            outputs = model(inputs[part])
            right[part] = (outputs.argmax(1) == labels).cpu().numpy()
            loss += float(of_records(outputs, labels).sum())
    return right, loss / len(records)
