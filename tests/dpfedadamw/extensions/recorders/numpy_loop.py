"""A training loop in NumPy alone that writes its own evidence: what any program can do."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np

from audit.accounting.budget import Steps, budget
from dpfedadamw.extensions.recorders.evidence import (
    Charge,
    EvidenceWriter,
    Loop,
    Stated,
    Step,
    fingerprint,
)

RECORDS, SIZE, RATE, BATCH, CLIP, NOISE, STEPS = 150, 40, 0.2, 30.0, 0.8, 1.1, 70


def declared() -> Loop:
    return Loop(
        producer="numpy-example",
        version="1",
        mode="one record at a time",
        generator="the operating system's entropy",
        secure=True,
        optimizer="sgd",
        records=RECORDS,
        delta=1e-5,
        tensors=(("weights", SIZE),),
        model_tensors=({"name": "weights", "shape": [SIZE], "dtype": "F32", "trained": True},),
    )


def train(folder: Path, seed: int, noise: float = NOISE, charged: float = NOISE) -> Path:
    """Logistic regression by clipped and noised gradients, charged step by step."""
    generator = np.random.default_rng([seed, 66_417])
    inputs = generator.normal(size=(RECORDS, SIZE))
    labels = np.sign(inputs[:, 0])
    weights = np.zeros(SIZE, np.float32)
    writer = EvidenceWriter(folder, declared())
    writer.attach()
    squares = np.zeros(SIZE, np.float32)
    for _ in range(STEPS):
        rows = np.flatnonzero(generator.random(RECORDS) < RATE)
        slopes = -labels[rows] / (1.0 + np.exp(labels[rows] * (inputs[rows] @ weights)))
        gradients = slopes[:, None] * inputs[rows]
        norms = np.linalg.norm(gradients, axis=1)
        clean = (gradients * np.minimum(1.0, CLIP / norms)[:, None]).sum(0).astype(np.float32)
        writer.charge(
            Charge(
                sampling_rate=RATE,
                expected_batch_size=BATCH,
                clipping_norm=CLIP,
                noise_multiplier=charged,
            )
        )
        noisy = clean + generator.normal(0.0, noise * CLIP, SIZE).astype(np.float32)
        drawn = noisy - clean
        squares += (drawn / (charged * CLIP)) ** 2
        released = noisy / np.float32(BATCH)
        before, rate = weights.copy(), 0.5
        weights = weights - np.float32(rate) * released
        writer.step(
            Step(
                rows=rows,
                raw_norms=norms.astype(np.float32),
                noise_sum_squares=np.array([np.square(drawn, dtype=np.float64).sum()]),
                clean_sum_squares=np.array([np.square(clean, dtype=np.float64).sum()]),
                noise_silent=int((drawn == 0).sum()),
                noise_largest=float(np.abs(drawn).max()),
                noise_sample=drawn[writer.sample],
                clean_sample=clean[writer.sample],
                expected_sample=clean[writer.sample],
                released_sample=released[writer.sample],
                before_sample=before[writer.sample],
                after_sample=weights[writer.sample],
                before_fingerprint=fingerprint([before]),
                after_fingerprint=fingerprint([weights]),
                settings=np.array([[rate, 0, 0, 0, 0, 0, 0, 0]], np.float64),
            ),
            squares,
        )
    write_model(folder / "model.safetensors", weights)
    stated = budget([Steps(RATE, charged, STEPS)], 1e-5).headline
    writer.close(
        Stated(epsilon=stated, accountant="pld", history=[(charged, RATE, STEPS)]),
        hashlib.sha256(weights.astype("<f4").tobytes()).hexdigest(),
        fingerprint=fingerprint([weights]),
    )
    return folder


def write_model(path: Path, weights: np.ndarray) -> None:
    """One tensor as safetensors."""
    content = weights.astype("<f4").tobytes()
    entry = {"dtype": "F32", "shape": [len(weights)], "data_offsets": [0, len(content)]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "weights": entry}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + content)


def misdeclared(**changes: object) -> Loop:
    return replace(declared(), **changes)
