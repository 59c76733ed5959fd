"""What a data set says of its records, as the spec's task needs it.

Targets are private. No message shows one; it names the part, the row and what would be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.cache import Part, Prepared
from dpfedadamw.data.errors import DataError
from dpfedadamw.spec.task_section import CLASSIFICATION, MULTI_LABEL, REGRESSION
from dpfedadamw.tasks import Task

_MOST_CLASSES = 1_000_000
# Squares of larger numbers are beyond float32.
_LARGEST = 1e18


def for_task(found: Prepared, task: Task) -> Prepared:
    """Records with the targets of a task, and as many outputs as it needs.

    Args:
        found: As a data set's files or arrays have them.
        task: The spec's.

    Raises:
        DataError: If its targets are none of the task's.
    """
    given = {name: part.labels for name, part in found.parts.items()}
    if task.kind == CLASSIFICATION:
        for name, labels in given.items():
            if labels.ndim != 1 or labels.dtype != np.int64:
                raise DataError(
                    f"data ({name}): its targets are no classes but {_form(labels)}; set task.kind "
                    "to regression, multi_label or token_classification, or give one class a record"
                )
        if found.classes == 1:
            raise DataError("data: all records have one class; there are two or more to tell apart")
        weights = len(task.spec.class_weights)
        if weights not in (0, found.classes):
            raise DataError(
                f"task.class_weights: {weights} weights for {found.classes} classes; give "
                "one a class, in their order"
            )
        return found
    if task.kind in (REGRESSION, MULTI_LABEL):
        targets: dict[str, NDArray[Any]] = {
            name: _numbers(one, name, task.kind) for name, one in given.items()
        }
        outputs = _one_width(targets)
    else:
        targets = {name: _classes(one, name, task) for name, one in given.items()}
        _one_width(targets)
        outputs = max(2, 1 + max(int(one.max(initial=0)) for one in targets.values()))
    parts: dict[str, Part] = {
        name: replace(part, labels=targets[name]) for name, part in found.parts.items()
    }
    return replace(found, parts=parts, classes=outputs)


def _numbers(labels: NDArray[Any], name: str, kind: str) -> NDArray[Any]:
    """Targets [n] or [n, K] as float32 [n, K]."""
    if labels.ndim not in (1, 2) or not labels.size:
        raise DataError(
            f"data ({name}): its targets are {_form(labels)}; task.kind {kind} needs [n] or [n, K]"
        )
    wide = labels.reshape(len(labels), -1).astype(np.float64)
    if kind == MULTI_LABEL:
        if labels.ndim != 2:
            raise DataError(
                f"data ({name}): its targets are {_form(labels)}; task.kind multi_label needs a "
                "matrix [n, K] with 1 where a label is there and 0 where it is not"
            )
        bad, right = (wide != 0.0) & (wide != 1.0), "0 or 1"
    else:
        bad = ~(np.abs(wide) < _LARGEST)
        right = f"a finite number below {_LARGEST:g}"
    if bad.any():
        row, column = np.argwhere(bad)[0].tolist()
        raise DataError(
            f"data ({name}): row {row}: its target {column + 1} of {wide.shape[1]} is not {right}; "
            "correct it, or leave the record out"
        )
    return wide.astype(np.float32)


def _classes(labels: NDArray[Any], name: str, task: Task) -> NDArray[Any]:
    """Classes of tokens, int64 [n, length]."""
    if labels.ndim != 2 or labels.dtype.kind not in "iu" or not labels.size:
        raise DataError(
            f"data ({name}): its targets are {_form(labels)}; task.kind {task.kind} needs whole "
            "numbers [n, length], a class for each token"
        )
    ignored = task.spec.ignore_index
    whole = labels.astype(np.int64)
    bad = ((whole < 0) & (whole != ignored)) | (whole >= _MOST_CLASSES)
    if bad.any():
        row, token = np.argwhere(bad)[0].tolist()
        raise DataError(
            f"data ({name}): row {row}, token {token}: its label is neither a class 0, 1, 2, … nor "
            f"task.ignore_index ({ignored})"
        )
    return whole


def _one_width(targets: Mapping[str, NDArray[Any]]) -> int:
    """How many targets, or tokens, each record of every part has."""
    widths = {int(one.shape[1]) for one in targets.values()}
    if len(widths) > 1:
        found = " and ".join(map(str, sorted(widths)))
        raise DataError(f"data: training and test records have {found} targets; they must agree")
    (width,) = widths
    return width


def _form(labels: NDArray[Any]) -> str:
    kind = "whole numbers" if labels.dtype.kind in "iu" else "real numbers"
    return f"{kind} [{', '.join(['n', *map(str, labels.shape[1:])])}]"
