"""A loop of three trained parameters and six frozen ones, whose steps are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpfedadamw.extensions.recorders.evidence import Charge, Loop, Step

TENSORS = (
    {"name": "a", "shape": [2], "dtype": "F32", "trained": True},
    {"name": "b", "shape": [1, 1], "dtype": "F32", "trained": True},
    {"name": "frozen", "shape": [2, 3], "dtype": "F32", "trained": False},
)


def loop_of(**changes: Any) -> Loop:
    plain = Loop(
        producer="mine",
        version="2.1",
        mode="by hand",
        generator="a die",
        secure=True,
        optimizer="sgd",
        records=40,
        delta=1e-3,
        tensors=(("a", 2), ("b", 1)),
        model_tensors=TENSORS,
    )
    return replace(plain, **changes)


def charge_of(**changes: float) -> Charge:
    plain = Charge(
        sampling_rate=0.25, expected_batch_size=10.0, clipping_norm=5.0, noise_multiplier=2.0
    )
    return replace(plain, **changes)


def step_of(**changes: Any) -> Step:
    """A step whose sum of (3, 4, 1) got noise of (1, 0, -3), divided by ten."""
    plain = Step(
        rows=np.array([7, 2]),
        raw_norms=np.array([10.0, 1.0], np.float32),
        noise_sum_squares=np.array([1.0, 9.0]),
        clean_sum_squares=np.array([25.0, 1.0]),
        noise_silent=1,
        noise_largest=3.0,
        noise_sample=np.array([1, 0, -3], np.float32),
        clean_sample=np.array([3, 4, 1], np.float32),
        expected_sample=np.array([3, 4, 1.5], np.float32),
        released_sample=np.array([0.4, 0.4, -0.2], np.float32),
        before_sample=np.array([1, 2, 3], np.float32),
        after_sample=np.array([0.8, 1.8, 3.1], np.float32),
        before_fingerprint=17,
        after_fingerprint=23,
        settings=np.array([[0.5, 0, 0, 0, 0, 0, 0, 0]]),
        unused=2,
        skipped=1,
    )
    return replace(plain, **changes)
