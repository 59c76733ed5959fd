"""Reads data sets into arrays, by constants that do not depend on any record.

Scaling by statistics of the training records would be a release of its own that nothing pays for;
the constants here are those of the format (a grey level's range).
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.spec import DataSpec

DESCRIPTIONS = {
    "digits": "scikit-learn's 1,797 handwritten digits, 8x8 grey, 10 classes; needs no download",
    "arrays": "your own .npz with x_train, y_train, x_test, y_test (numbers only)",
}
_MAXIMUM_BYTES = 16 * 2**30


class DataError(DpfedadamwError):
    """A data set cannot be read or used."""


@dataclass(frozen=True)
class Dataset:
    """Records and labels, divided into training and test.

    Attributes:
        train_inputs: float32 [n, *input_shape].
        train_labels: int64 [n], in 0…classes-1.
        test_inputs: float32 [m, *input_shape].
        test_labels: int64 [m].
        classes: Number of classes.
        sha256: Digest of what was read, hexadecimal.
    """

    train_inputs: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int
    sha256: str

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.train_inputs.shape[1:])


def load(spec: DataSpec) -> Dataset:
    """Read the data set that a spec names.

    Raises:
        DataError: If it cannot be read; the message says what and what would be right.
    """
    if spec.dataset == "digits":
        return _digits(spec)
    return _arrays(Path(spec.path or ""))


def _digits(spec: DataSpec) -> Dataset:
    from sklearn.datasets import load_digits

    raw = load_digits()
    # Grey levels of this data set are 0…16 by its definition; the divisor is no statistic.
    inputs = (raw.images / 16.0).astype(np.float32)[:, None]
    labels = raw.target.astype(np.int64)
    digest = hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()
    order = np.random.default_rng(spec.seed).permutation(len(labels))
    held_out = round(len(labels) * spec.test_fraction)
    test, train = order[:held_out], order[held_out:]
    return Dataset(inputs[train], labels[train], inputs[test], labels[test], 10, digest)


def _arrays(path: Path) -> Dataset:
    where = f"data.path: {path}"
    try:
        size = path.stat().st_size
        if size > _MAXIMUM_BYTES:
            raise DataError(f"{where}: {size} bytes, more than the {_MAXIMUM_BYTES} allowed")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with np.load(path, allow_pickle=False) as file:
            members = {name: _member(file, name, where) for name in _MEMBERS}
    except FileNotFoundError:
        raise DataError(f"{where}: there is no such file; give the path of a .npz") from None
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{where}: not a readable .npz of plain numbers ({error})") from None
    for part in ("train", "test"):
        inputs, labels = members[f"x_{part}"], members[f"y_{part}"]
        if inputs.ndim < 2 or labels.ndim != 1 or len(inputs) != len(labels) or not len(labels):
            raise DataError(
                f"{where}: x_{part} has shape {inputs.shape} and y_{part} {labels.shape}; needed "
                f"are records [n, …] and as many labels [n], n ≥ 1"
            )
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
            raise DataError(f"{where}: y_{part} must hold whole numbers 0, 1, 2, …")
        if not np.isfinite(inputs).all():
            raise DataError(f"{where}: x_{part} holds values that are not finite; clean them first")
    if members["x_train"].shape[1:] != members["x_test"].shape[1:]:
        raise DataError(
            f"{where}: training records have shape {members['x_train'].shape[1:]}, test records "
            f"{members['x_test'].shape[1:]}; they must agree"
        )
    classes = int(max(members["y_train"].max(), members["y_test"].max())) + 1
    if classes > 1_000_000:
        raise DataError(f"{where}: labels up to {classes - 1}; give classes as 0, 1, 2, …")
    return Dataset(
        members["x_train"].astype(np.float32),
        members["y_train"].astype(np.int64),
        members["x_test"].astype(np.float32),
        members["y_test"].astype(np.int64),
        max(classes, 2),
        digest,
    )


_MEMBERS = ("x_train", "y_train", "x_test", "y_test")


def _member(file: Any, name: str, where: str) -> NDArray[Any]:
    if name not in file:
        raise DataError(
            f"{where}: the array {name} is missing; needed are {', '.join(_MEMBERS)}, "
            f"found {', '.join(file.files) or 'none'}"
        )
    array: NDArray[Any] = file[name]
    if not (np.issubdtype(array.dtype, np.number) and not np.iscomplexobj(array)):
        raise DataError(f"{where}: {name} has type {array.dtype}; needed are real numbers")
    return array
