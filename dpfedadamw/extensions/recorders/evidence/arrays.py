"""The arrays of a file of steps, as docs/evidence-format.md lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.extensions.recorders.evidence.declared import Charge, Step

MODULUS = 1 << 53


@dataclass
class File:
    """Steps of one file of evidence: all under one charge, of one attachment."""

    index: int
    charge: Charge
    attachment: int
    steps: list[Step] = field(default_factory=list)


def fingerprint(values: Sequence[NDArray[np.float32]]) -> int:
    """A checksum of parameters: the sum of their bits as whole numbers, modulo 2^53."""
    return sum(int(one.view(np.int32).sum(dtype=np.int64)) for one in values) % MODULUS


def arrays_of(file: File, groups: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The arrays of one file, as docs/evidence-format.md lists them: K steps of one client."""
    steps, clip = file.steps, file.charge.clipping_norm
    known = [one.rows for one in steps if one.rows is not None]
    rows: dict[str, NDArray[Any]] = {}
    if len(known) == len(steps):
        rows = {
            "rows": np.concatenate([np.zeros(0, np.int64), *known]).astype(np.uint32),
            "row_offsets": np.cumsum([0, *map(len, known)], dtype=np.int64),
        }

    def each(name: str, kind: Any) -> NDArray[Any]:
        return np.asarray([getattr(one, name) for one in steps], kind)

    counts = [len(one.raw_norms) for one in steps]
    norms = [one.raw_norms.astype(np.float32) for one in steps]
    released, noisy = each("released_sample", np.float64), each("clean_sample", np.float64)
    noisy = noisy + each("noise_sample", np.float64)
    with np.errstate(all="ignore"):
        # What the noised sum was really divided by, as the values show it.
        divisor = np.square(noisy).sum(axis=1) / (noisy * released).sum(axis=1)
    divisor = np.where(np.isfinite(divisor), divisor, 0.0)
    return {
        "clients": np.zeros(1, np.int64),
        "attempt": np.asarray(1, np.int64),
        "attachment": np.asarray(file.attachment, np.int64),
        "batch_size": np.asarray([counts], np.int64),
        "record_offsets": np.cumsum([0, *counts], dtype=np.int64),
        "raw_norms": np.concatenate([np.zeros(0, np.float32), *norms]),
        **rows,
        "divisor": divisor[None],
        "noise_sum_squares": each("noise_sum_squares", np.float64)[None],
        "clean_sum_squares": each("clean_sum_squares", np.float64)[None],
        "noise_silent": each("noise_silent", np.int64)[None],
        "noise_largest": each("noise_largest", np.float32)[None] / np.float32(clip),
        "noise_sample": each("noise_sample", np.float32)[None] / np.float32(clip),
        "clean_sample": each("clean_sample", np.float32),
        "expected_sample": each("expected_sample", np.float32),
        "released_sample": each("released_sample", np.float32),
        "before_sample": each("before_sample", np.float32),
        "after_sample": each("after_sample", np.float32),
        "before_fingerprint": each("before_fingerprint", np.int64),
        "after_fingerprint": each("after_fingerprint", np.int64),
        "settings": each("settings", np.float64),
        "group": groups,
        "unused": each("unused", np.int64),
        "skipped": each("skipped", np.int64),
    }
