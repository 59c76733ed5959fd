"""Test accuracy and loss of the current model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dpfedadamw.data.datasets import Dataset

_BATCH = 1024


@dataclass(frozen=True)
class Evaluation:
    """Test metrics, or None where the round was not evaluated.

    They are computed on held-out records and published without noise: they lie outside the privacy
    claim, and every report says so.

    Attributes:
        accuracy: Share of test records classified rightly, in [0, 1].
        loss: Mean cross-entropy over the test records; None where it is not finite.
    """

    accuracy: float | None
    loss: float | None


def evaluate(model: nn.Module, dataset: Dataset, device: torch.device) -> Evaluation:
    """Evaluate a model on the test records; leaves it in training mode."""
    model.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(dataset.test_labels), _BATCH):
            part = slice(start, start + _BATCH)
            inputs = torch.from_numpy(dataset.test_inputs[part]).to(device)
            labels = torch.from_numpy(dataset.test_labels[part]).to(device)
            outputs = model(inputs)
            right += int((outputs.argmax(1) == labels).sum())
            loss += float(cross_entropy(outputs, labels, reduction="sum"))
    model.train()
    count = len(dataset.test_labels)
    mean = loss / count
    return Evaluation(right / count, mean if math.isfinite(mean) else None)
