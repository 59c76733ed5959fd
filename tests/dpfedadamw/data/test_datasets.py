"""Data sets: what is read, and what is refused with one clear line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw import spec as specs
from dpfedadamw.data.datasets import load
from dpfedadamw.data.registry import DATASETS, Contents
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


GLUE = ("gluebenchmark.com", "see the task's page")
CIFAR = ("cs.toronto.edu/~kriz/cifar.html", "not stated")
# Where each is from and its licence; of images the shape and, as of all, classes and records.
PUBLISHED = {
    "digits": ("comes with the package", "CC BY 4.0 (UCI)", (1, 8, 8), 10, 1438, 359),
    "mnist": ("yann.lecun.com/exdb/mnist", "CC BY-SA 3.0", (1, 28, 28), 10, 60_000, 10_000),
    "fashion-mnist": (
        "github.com/zalandoresearch/fashion-mnist", "MIT", (1, 28, 28), 10, 60_000, 10_000
    ),
    "cifar10": (*CIFAR, (3, 32, 32), 10, 50_000, 10_000),
    "cifar100": (*CIFAR, (3, 32, 32), 100, 50_000, 10_000),
    "tiny-imagenet": (
        "cs231n.stanford.edu", "ImageNet's terms", (3, 64, 64), 200, 100_000, 10_000
    ),
    "emnist": (
        "nist.gov, EMNIST dataset", "public domain (NIST)", (1, 28, 28), 47, 112_800, 18_800
    ),
    "sst2": (*GLUE, (), 2, 67_349, 872),
    "cola": (*GLUE, (), 2, 8_551, 1_043),
    "mrpc": (*GLUE, (), 2, 4_076, 1_725),
    "rte": (*GLUE, (), 2, 2_490, 277),
    "qnli": (*GLUE, (), 2, 104_743, 5_463),
    "qqp": (*GLUE, (), 2, 363_846, 40_430),
    "mnli-matched": (*GLUE, (), 3, 392_702, 9_815),
    "mnli-mismatched": (*GLUE, (), 3, 392_702, 9_832),
}  # fmt: skip
# Classes and records of the splits of EMNIST, by Cohen et al. 2017.
EMNIST = {
    "byclass": (62, 697_932, 116_323),
    "bymerge": (47, 697_932, 116_323),
    "balanced": (47, 112_800, 18_800),
    "letters": (26, 124_800, 20_800),
    "digits": (10, 240_000, 40_000),
    "mnist": (10, 60_000, 10_000),
}


def keys_of(name: str, **changes: object) -> DataSpec:
    read = {} if name == "digits" else {"path": "somewhere"}
    return DATASETS[name].keys(dataset=name, **read, **changes)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_registered_of_a_published_data_set_is_what_its_publisher_says(name):
    origin, licence, *rest = PUBLISHED[name]
    entry = DATASETS[name]
    assert (entry.origin, entry.licence) == (origin, licence)
    assert entry.contents is not None
    assert entry.contents(keys_of(name)) == Contents(*rest)


@pytest.mark.parametrize("split", EMNIST)
def test_each_split_of_emnist_has_the_published_size(split):
    entry = DATASETS["emnist"]
    assert entry.contents is not None
    expected = Contents((1, 28, 28), *EMNIST[split])
    assert entry.contents(keys_of("emnist", split=split)) == expected


def test_test_records_are_taken_for_public_of_published_data_alone():
    """On this rest exact test scores, and metrics of one's own."""
    assert {name for name, entry in DATASETS.items() if entry.published} == set(PUBLISHED)


def test_the_data_sets_that_serve_other_tasks_are_those_of_ones_own():
    able = {
        what: {name for name, entry in DATASETS.items() if getattr(entry, what)}
        for what in ("has_targets", "has_texts", "has_columns")
    }
    assert able == {
        "has_targets": {"table", "arrays", "given"},
        "has_texts": {"table"},
        "has_columns": {"image-folder", "table", "given", "visits"},
    }
    shapes = {name: entry.record_shape for name, entry in DATASETS.items() if entry.record_shape}
    assert shapes == {"digits": (1, 8, 8), "visits": (16,)}
