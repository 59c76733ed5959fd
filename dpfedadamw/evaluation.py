"""Test accuracy and loss of the current model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dpfedadamw.data.datasets import Dataset, Records

_BATCH = 1024
# Numbers in the inputs of one batch: 64 MiB of them.
_NUMBERS = 2**24
# Models with more parameters get smaller batches: their activations would not fit.
_LARGE_MODEL, _SMALL_BATCH = 10_000_000, 64


@dataclass(frozen=True)
class Evaluation:
    """Test metrics, or None where the round was not evaluated.

    They are computed on held-out records and published without noise: they lie outside the privacy
    claim, and every report says so.

    Attributes:
        accuracy: Share of test records classified rightly, in [0, 1].
        loss: Mean cross-entropy over the test records; None where it is not finite.
        validation_accuracy: Share of the public validation records classified rightly; None where
            there are none.
    """

    accuracy: float | None
    loss: float | None
    validation_accuracy: float | None = None


def evaluate(model: nn.Module, dataset: Dataset, device: torch.device) -> Evaluation:
    """Evaluate a model on test and validation records; leaves it in training mode."""
    model.eval()
    accuracy, loss = _measure(model, dataset.test, device)
    validation = dataset.validation
    tuned = None if validation is None else _measure(model, validation, device)[0]
    model.train()
    return Evaluation(accuracy, loss if math.isfinite(loss) else None, tuned)


def _measure(model: nn.Module, records: Records, device: torch.device) -> tuple[float, float]:
    """Accuracy and mean loss, a batch at a time."""
    inputs = records.inputs.to(device)
    large = sum(p.numel() for p in model.parameters()) > _LARGE_MODEL
    most = _SMALL_BATCH if large else _BATCH
    batch = max(1, min(most, _NUMBERS // math.prod(inputs.shape)))
    right, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(records), batch):
            part = slice(start, start + batch)
            labels = torch.from_numpy(records.labels[part]).to(device)
            outputs = model(inputs[part])
            right += int((outputs.argmax(1) == labels).sum())
            loss += float(cross_entropy(outputs, labels, reduction="sum"))
    return right / len(records), loss / len(records)
