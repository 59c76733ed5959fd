"""A loop in NumPy alone that gives its gradients to a recorder: multinomial regression."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.accounting.budget import Steps, budget
from dpfedadamw.extensions.recorders.gradients import GradientRecorder

RECORDS, BATCH, CLIP, NOISE, STEPS, RATE, DELTA = 200, 20.0, 0.8, 1.1, 70, 0.5, 1e-5
FEATURES, CLASSES = 6, 3
Arrays = list[NDArray[np.float32]]


def gradients_of(weights: Arrays, inputs: NDArray, labels: NDArray) -> Arrays:
    """Each record's gradient, by tensor."""
    with np.errstate(all="ignore"):
        logits = inputs @ weights[0] + weights[1]
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        errors = chances / chances.sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]
        return [inputs[:, :, None] * errors[:, None, :], errors]


def sum_of(
    weights: Arrays, inputs: NDArray, labels: NDArray, clip: float = CLIP, order: int = 2
) -> Arrays:
    """The sum of clipped gradients; one that is not finite counts as none."""
    found = gradients_of(weights, inputs, labels)
    with np.errstate(all="ignore"):
        powers = (np.abs(one).reshape(len(one), -1) ** order for one in found)
        norms = sum(one.sum(1) for one in powers) ** (1 / order)
        factors = np.where(np.isfinite(norms), np.minimum(1.0, clip / norms), 0.0)
        factors[norms == 0] = 1.0
    finite = [np.where(np.isfinite(one), one, 0.0) for one in found]
    return [np.tensordot(factors, one, 1).astype(np.float32) for one in finite]


def train(
    folder: Path,
    seed: int,
    noise: float = NOISE,
    clip: float = CLIP,
    mechanism: str = "gaussian",
    stated: float | None = None,
) -> Path:
    """Train and record; `noise` and `clip` are what the loop really does.

    Laplace noise has the scale of NOISE·CLIP, and sums are clipped in the ℓ1 norm. Any other
    mechanism gives out the largest values of the noised sum alone.
    """
    generator = np.random.default_rng([seed, 41])
    inputs = generator.normal(size=(RECORDS, FEATURES)).astype(np.float32)
    labels = inputs[:, :CLASSES].argmax(axis=1)
    weights = [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]
    recorder = GradientRecorder(
        folder, DELTA, producer="numpy-example", version="1", records=RECORDS, mechanism=mechanism
    )
    for _ in range(STEPS):
        rows = np.flatnonzero(generator.random(RECORDS) < BATCH / RECORDS)
        batch = weights, inputs[rows], labels[rows]
        recorder.charge(
            weights, clipping_norm=CLIP, noise_multiplier=NOISE, expected_batch_size=BATCH
        )
        order = 1 if mechanism == "laplace" else 2
        mean = [one / np.float32(BATCH) for one in sum_of(*batch, clip, order)]
        draw = generator.normal if mechanism == "gaussian" else generator.laplace
        scale = noise * CLIP / BATCH
        noised = [(one + draw(0, scale, one.shape)).astype(np.float32) for one in mean]
        if order == 2 and mechanism != "gaussian":
            noised = [np.where(np.abs(one) > 2 * scale, one, 0.0).astype("f4") for one in noised]
        weights = [one - np.float32(RATE) * two for one, two in zip(weights, noised, strict=True)]
        recorder.record(
            rows=rows,
            gradients=gradients_of(*batch),
            mean=mean,
            noised=noised,
            after=weights,
            learning_rate=RATE,
        )
    return recorder.close(
        budget([Steps(BATCH / RECORDS, NOISE, STEPS)], DELTA).headline
        if stated is None
        else stated,
        "pld",
        mean_of_records=lambda *given: [one / BATCH for one in sum_of(*given, clip)],
        input_shape=(FEATURES,),
        classes=CLASSES,
    )
