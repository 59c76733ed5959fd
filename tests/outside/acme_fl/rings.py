"""Points on three rings, which no linear model tells apart."""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np

from dpfedadamw.data.cache import Part, Prepared
from dpfedadamw.data.errors import DataError
from dpfedadamw.data.registry import DatasetEntry, register
from dpfedadamw.preprocessing import Preprocessing, TextPreprocessing
from dpfedadamw.spec.data_section import PATH, DataSpec, TestFraction
from dpfedadamw.spec.section import key


class RingsKeys(DataSpec, title="Rings"):
    """Points on three rings around the origin, a class each."""

    dataset: Literal["acme-rings"] = "acme-rings"
    path: None = key(None, PATH, title="File", why="the rings are computed")
    test_fraction: TestFraction = 0.2
    points: int = key(1200, "Points in all.", unit="records", ge=300, le=100_000)


def _bring(keys: RingsKeys, preprocessing: Preprocessing) -> Prepared:
    if isinstance(preprocessing, TextPreprocessing):
        raise DataError("data.dataset: acme-rings are points, but the model reads texts")
    numbers = np.random.default_rng(0)
    labels = np.arange(keys.points) % 3
    angles = numbers.uniform(0.0, 2.0 * np.pi, keys.points)
    radii = labels + 0.5 + 0.1 * numbers.standard_normal(keys.points)
    inputs = (np.stack([np.cos(angles), np.sin(angles)], 1) * radii[:, None]).astype(np.float32)
    digest = hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()
    return Prepared({"train": Part(inputs, labels.astype(np.int64), None)}, 3, digest)


register(
    DatasetEntry(
        name="acme-rings",
        keys=RingsKeys,
        summary="points on three rings, a class each",
        origin="computed",
        licence="none needed",
        bring=_bring,
        record_shape=(2,),
    )
)
