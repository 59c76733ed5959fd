"""Measures of a finished model in addition to accuracy and loss, from its answers on test records.

An accuracy alone says little where one class is frequent: always giving the most frequent answer
has the majority rate. Each measure here is a release of test records, as accuracy is. So they are
computed once, after the last round, and whatever shows single records, or could, needs test records
that the spec declares public: the confusion matrix, and metrics of the user's own.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.spec.task_section import CLASSIFICATION, MULTI_LABEL, REGRESSION
from dpfedadamw.tasks import Task

Metric = Callable[[NDArray[Any], NDArray[Any]], float]
Floats = NDArray[np.float64]

# Bins of the expected calibration error (Guo et al. 2017).
BINS = 15
# What `final` may find, in the order in which it is told.
FINAL = (
    "majority_rate",
    "auc",
    "average_precision",
    "f1",
    "balanced_accuracy",
    "log_loss",
    "calibration_error",
)
# A matrix of more classes is not told.
MOST_CONFUSED = 100
_MOST_METRICS = 50
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,39}")
_given: ContextVar[Mapping[str, Metric] | None] = ContextVar("metrics given", default=None)


class MetricError(DpfedadamwError):
    """A metric of the user's own cannot be computed."""


@contextlib.contextmanager
def handed_over(metrics: Mapping[str, Metric] | None) -> Iterator[None]:
    """Let `evaluation.metrics` of a spec name these functions, for as long as this lasts."""
    token = _given.set(metrics)
    try:
        yield
    finally:
        _given.reset(token)


def check_names(metrics: Mapping[str, Metric]) -> None:
    """Refuse what is no mapping of names to functions.

    Raises:
        MetricError: With what would be right.
    """
    if len(metrics) > _MOST_METRICS:
        raise MetricError(f"metrics: {len(metrics)} were given; at most {_MOST_METRICS}")
    for name, metric in metrics.items():
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise MetricError(
                f"metrics: {name!r}: a name has 1 to 40 letters, digits and underscores, and "
                "begins with a letter"
            )
        if not callable(metric):
            raise MetricError(
                f"metrics: {name}: is not a function; give a function of the model's answers and "
                "the targets, two arrays, that returns a number"
            )


def given(names: tuple[str, ...]) -> dict[str, Metric]:
    """The functions that a spec's `evaluation.metrics` names.

    Raises:
        MetricError: If one was not given.
    """
    found = _given.get() or {}
    for name in names:
        if name not in found:
            raise MetricError(
                f"evaluation.metrics: {name} is a function passed from Python; pass it again, "
                f"metrics={{{name!r}: function}}, or leave it out of a new run's spec"
            )
    return {name: found[name] for name in names}


def own(names: tuple[str, ...], answers: NDArray[Any], targets: NDArray[Any]) -> dict[str, float]:
    """The user's metrics of some answers.

    Args:
        names: The spec's `evaluation.metrics`.
        answers: What the model answered, before any softmax, [n, …].
        targets: What is right, [n, …].

    Raises:
        MetricError: If one was not given, fails, or returns no finite number.
    """
    found: dict[str, float] = {}
    for name, metric in given(names).items():
        try:
            value = float(metric(answers.copy(), targets.copy()))
        except Exception as error:
            raise MetricError(
                f"metrics: {name}: failed on answers {answers.shape} and targets {targets.shape} "
                f"({type(error).__name__}: {str(error).partition(chr(10))[0]})"
            ) from error
        if not math.isfinite(value):
            raise MetricError(f"metrics: {name}: returned {value}; return a finite number")
        found[name] = value
    return found


def final(task: Task, answers: NDArray[Any] | None, targets: NDArray[Any]) -> dict[str, float]:
    """Measures of a finished model by name, those that are finite.

    `majority_rate`, wherever there is an accuracy: that of always giving the most frequent answer.
    Of a classification also `auc`, `average_precision` and `f1`, of the second of two classes, or
    their mean over each class against the rest; `balanced_accuracy`, the mean recall of the
    classes; `log_loss`, mean cross-entropy in nats; `calibration_error`, the expected one. Means
    are over classes that the test records have.

    Args:
        task: What the model is for.
        answers: Its answers [n, …], before any softmax; None of a language model, whose answers
            take too much memory to be kept.
        targets: What is right, [n, …].
    """
    found: dict[str, float] = {}
    if task.kind != REGRESSION and len(targets):
        rate = majority_rate(task, targets)
        found = {} if rate is None else {"majority_rate": rate}
    if answers is not None and task.kind == CLASSIFICATION and np.isfinite(answers).all():
        found |= _of_classes(answers.astype(np.float64), targets)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def majority_rate(task: Task, targets: NDArray[Any]) -> float | None:
    """How often the most frequent answer is right, in [0, 1]; None where no token counts."""
    if task.kind == MULTI_LABEL:
        counts = np.unique(targets, axis=0, return_counts=True)[1]
    else:
        known = targets[targets != task.ignored]
        counts = np.bincount(known) if len(known) else np.zeros(0, np.int64)
    return int(counts.max()) / int(counts.sum()) if len(counts) else None


def confusion(answers: NDArray[Any], targets: NDArray[np.int64]) -> list[list[int]] | None:
    """Test records by their class (row) and the class that was answered (column)."""
    classes = answers.shape[1]
    if classes > MOST_CONFUSED:
        return None
    found: list[list[int]] = _confusion(answers.argmax(1), targets, classes).tolist()
    return found


def _confusion(said: NDArray[Any], targets: NDArray[Any], classes: int) -> NDArray[np.int64]:
    pairs = np.bincount(targets * classes + said, minlength=classes**2)
    return pairs.reshape(classes, classes)


def probabilities(answers: NDArray[Any]) -> Floats:
    """The softmax of scores [n, classes], in float64."""
    wide = answers.astype(np.float64)
    found: Floats = np.exp(wide - wide.max(-1, keepdims=True))
    found /= found.sum(-1, keepdims=True)
    return found


def _of_classes(answers: Floats, targets: NDArray[np.int64]) -> dict[str, float]:
    classes = answers.shape[1]
    chances = probabilities(answers)
    matrix = _confusion(answers.argmax(1), targets, classes)
    right, there, said = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    present = np.flatnonzero(there)
    # Of two classes the second is the one that is looked for.
    wanted = np.array([1]) if classes == 2 else present
    shifted = answers - answers.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(targets)), targets]
    found = {
        "balanced_accuracy": float(np.mean(right[present] / there[present])),
        "log_loss": float(losses.mean()),
        "calibration_error": calibration_error(chances, targets),
        "f1": float(np.mean(2.0 * right[wanted] / np.maximum(there + said, 1)[wanted])),
    }
    ranked = [
        ranking(chances[:, one], targets == one) for one in wanted if 0 < there[one] < len(targets)
    ]
    if ranked:
        found["auc"], found["average_precision"] = (float(mean) for mean in np.mean(ranked, axis=0))
    return found


def ranking(scores: Floats, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """Area under the ROC curve (ties count half), and average precision, of some scores.

    Args:
        scores: [n], higher for what is more likely positive.
        positive: [n]; one must be and one must not.
    """
    order = np.argsort(-scores, kind="stable")
    # Records of equal score come in together: the last of each group.
    last = np.append(np.diff(scores[order]) != 0.0, True)
    hits = np.cumsum(positive[order])[last].astype(np.float64)
    taken = np.flatnonzero(last) + 1.0
    misses = taken - hits
    rate = np.concatenate([[0.0], hits]) / hits[-1]
    area = float(np.trapezoid(rate, np.concatenate([[0.0], misses]) / misses[-1]))
    return area, float(np.sum(np.diff(rate) * hits / taken))


def calibration_error(chances: Floats, targets: NDArray[np.int64]) -> float:
    """How far confidence is from accuracy on average, over bins of equal width (Guo et al. 2017).

    Args:
        chances: Probabilities [n, classes].
        targets: Classes [n].
    """
    confidence, right = chances.max(1), chances.argmax(1) == targets
    # Bins are (m/15, (m + 1)/15].
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(targets))
