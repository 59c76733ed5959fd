"""Data sets: what is read, and what is refused with one clear line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.data.datasets import load
from dpfedadamw.data.registry import DATASETS
from dpfedadamw.errors import DataError
from dpfedadamw.preprocessing import ImagePreprocessing
from dpfedadamw.spec import DataSpec, EvenPartition

DIGITS = DataSpec(dataset="digits", clients=10, partition=EvenPartition(), test_fraction=0.2)


def arrays(path) -> DataSpec:
    return DIGITS.replace(dataset="arrays", path=str(path))


def good() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "x_train": generator.random((20, 4)),
        "y_train": np.arange(20) % 3,
        "x_test": generator.random((5, 4)),
        "y_test": np.arange(5) % 3,
    }


def test_digits_are_scaled_by_the_formats_constant_and_split_without_overlap():
    data = load(DIGITS)
    assert data.input_shape == (1, 8, 8)
    assert len(data.train) + len(data.test) == 1797
    assert data.train.inputs[:].min() == 0.0
    assert data.train.inputs[:].max() == 1.0
    assert load(DIGITS).sha256 == data.sha256
    other = load(DIGITS.replace(seed=1))
    assert (other.train.labels != data.train.labels).any()


def test_arrays_are_read_from_a_file(tmp_path):
    np.savez(tmp_path / "mine.npz", **good())
    data = load(arrays(tmp_path / "mine.npz"))
    assert (data.input_shape, data.classes) == ((4,), 3)
    assert data.train.inputs[:].dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": None}, "the array x_train is missing"),
        ({"y_train": np.zeros(3, int)}, "as many labels"),
        ({"y_train": np.linspace(0, 1, 20)}, "real numbers"),
        ({"y_train": -np.ones(20, int)}, "whole numbers"),
        ({"x_train": np.full((20, 4), np.nan)}, "not finite"),
        ({"x_test": np.zeros((5, 3))}, "they must agree"),
        ({"x_train": np.array(["a"] * 20)}, "real numbers"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, "n ≥ 1"),
    ],
)
def test_unusable_arrays_are_refused_with_the_reason(change, message, tmp_path):
    content = {k: v for k, v in (good() | change).items() if v is not None}
    np.savez(tmp_path / "mine.npz", **content)
    with pytest.raises(DataError, match=message):
        load(arrays(tmp_path / "mine.npz"))


def test_a_pickle_is_never_loaded(tmp_path):
    np.savez(tmp_path / "mine.npz", **(good() | {"x_train": np.array([object()] * 20)}))
    with pytest.raises(DataError, match=r"not a readable \.npz"):
        load(arrays(tmp_path / "mine.npz"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"just text"])
def test_a_damaged_file_gives_one_line(content, tmp_path):
    (tmp_path / "mine.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"data\.path: .*not a readable"):
        load(arrays(tmp_path / "mine.npz"))


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        load(arrays(tmp_path / "none.npz"))


def test_digits_are_those_that_scikit_learn_reads():
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits

    theirs = load_digits()
    found = DATASETS["digits"].bring(specs.load("quickstart").data, ImagePreprocessing())
    train = found.parts["train"]
    assert train.values.dtype == np.float32
    assert (train.values[:, 0] * 16 == theirs.images).all()
    assert (train.labels == theirs.target).all()
