"""Handwritten digits that come with this package and need no download."""

from __future__ import annotations

import functools
import gzip
import hashlib
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.data.registry import Contents, DatasetEntry, Part, Prepared, register
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import Preprocessing, TextPreprocessing
from dpfedadamw.spec.data_section import PATH, Augmentation, DataSpec, TestFraction
from dpfedadamw.spec.section import key

_RECORDS = 1_797


class DigitsSpec(DataSpec, title="Digits"):
    """1797 images of handwritten digits, 8 x 8 grey values, that come with the package."""

    dataset: Literal["digits"] = "digits"
    path: None = key(None, PATH, title="File", why="digits comes with the package")
    test_fraction: TestFraction = 0.2
    augmentation: Augmentation = ()


def _bring(_: DigitsSpec, preprocessing: Preprocessing) -> Prepared:
    if isinstance(preprocessing, TextPreprocessing):
        raise DataError("data.dataset: digits are images, but the model reads texts")
    inputs, labels, digest = _digits()
    return Prepared({"train": Part(inputs.copy(), labels.copy(), None)}, 10, digest)


# A file of text, which takes longer to read than all else that is done before training.
@functools.cache
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64], str]:
    file = Path(__file__).parent / "files" / "digits.csv.gz"
    with gzip.open(file) as lines:
        rows = np.loadtxt(lines, delimiter=",")
    # Grey levels of this data set are 0…16 by its definition; the divisor is no statistic.
    inputs = (rows[:, :-1] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = rows[:, -1].astype(np.int64)
    digest = hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()
    return inputs, labels, digest


register(
    DatasetEntry(
        name="digits",
        keys=DigitsSpec,
        summary="1,797 handwritten digits (UCI), 8x8 grey, 10 classes; needs no download",
        origin="comes with the package",
        published=True,
        licence="CC BY 4.0 (UCI)",
        bring=_bring,
        record_shape=(1, 8, 8),
        contents=lambda keys: Contents(
            (1, 8, 8),
            10,
            _RECORDS - round(_RECORDS * keys.test_fraction),
            round(_RECORDS * keys.test_fraction),
        ),
        place=0,
    )
)
