"""Targets that are no classes: read from tables, arrays and frames; none is ever shown."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from dpfedadamw import spec as specs
from dpfedadamw.data.datasets import load
from dpfedadamw.data.handed_over import handed_over
from dpfedadamw.errors import DataError, SpecError
from dpfedadamw.tasks import Task
from tests.runs import small_spec

RECORDS = np.arange(24, dtype=np.float32).reshape(8, 3)
PRICES = np.linspace(-1.0, 1.0, 8)
# Never in a message: it is what somebody earns.
SECRET = 123456.75


class Frame:
    """What pandas, polars and others have in common: named columns of cells."""

    def __init__(self, **columns):
        self.columns = list(columns)
        self._cells = columns

    def __getitem__(self, name):
        return list(self._cells[name])


def spec_of(task, model=None, **data):
    mapping = small_spec().to_mapping()
    mapping["model"] = model or {"name": "mlp"}
    if task == "token_classification" and model is None:
        mapping["model"] = {"name": "module"}
    mapping["data"] = {"clients": 2, "partition": {"kind": "iid"}, **data}
    if data["dataset"] != "arrays":
        mapping["data"] = {"test_fraction": 0.25, **mapping["data"]}
    mapping["task"] = task
    mapping["federation"]["clients_per_round"] = 1
    return specs.from_mapping(mapping)


def read(given, task, **data):
    with handed_over(given):
        found = spec_of(task, dataset="given", **data)
        return load(found.data, task=Task(found.task))


def whole(dataset):
    """All targets by what their record begins with, whatever was held out."""
    parts = [(part.inputs[:].numpy(), part.labels) for part in (dataset.train, dataset.test)]
    rows, targets = (np.concatenate(found) for found in zip(*parts, strict=True))
    return targets[np.argsort(rows[:, 0])]


def test_numbers_of_a_pair_are_targets_one_or_several_a_record():
    one = read((RECORDS, PRICES), "regression")
    assert (one.classes, one.train.labels.dtype) == (1, np.float32)
    assert np.array_equal(whole(one), PRICES.astype(np.float32)[:, None])
    two = read((RECORDS, np.stack([PRICES, -PRICES], 1)), "regression")
    assert two.classes == 2
    assert np.array_equal(whole(two)[:, 1], -PRICES.astype(np.float32))
    assert one.sha256 != two.sha256


def test_whole_numbers_are_numbers_where_the_task_says_so():
    found = read((RECORDS, np.arange(8)), "regression")
    assert np.array_equal(whole(found)[:, 0], np.arange(8, dtype=np.float32))


def test_columns_of_a_frame_are_targets():
    columns = {"size": RECORDS[:, 0], "price": PRICES, "sold": [0, 1] * 4}
    found = read(Frame(**columns), "regression", targets=["price"], numbers=["size"])
    assert found.input_shape == (1,)
    assert np.array_equal(whole(found)[:, 0], PRICES.astype(np.float32))
    two = Frame(**columns, new=[1, 1, 0, 0] * 2)
    labels = read(two, "multi_label", targets=["sold", "new"])
    assert labels.classes == 2
    assert labels.input_shape == (2,)  # size and price: all that is no target


def test_lists_of_a_frame_are_the_classes_of_tokens():
    tags = [[0, 2, -100]] * 4 + [[1, 1, 1]] * 4
    table = Frame(words=list(RECORDS), tags=tags)
    found = read(table, "token_classification", targets=["tags"], records="words", label="x")
    assert (found.classes, found.train.labels.dtype) == (3, np.int64)
    assert np.array_equal(whole(found), np.array(tags))
    assert not found.strata.any()
    ragged = Frame(words=list(RECORDS), tags=[[0, 2, -100]] * 7 + [[1]])
    with pytest.raises(DataError, match=r"row 7: the column tags .* fill lists up with task\."):
        read(ragged, "token_classification", targets=["tags"], records="words")


def test_pairs_with_targets_of_their_own_are_read():
    pairs = [
        (record, np.array([price, 0.5])) for record, price in zip(RECORDS, PRICES, strict=True)
    ]
    assert read(pairs, "regression").classes == 2
    assert read([(r, float(p)) for r, p in zip(RECORDS, PRICES, strict=True)], "regression").classes


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_columns_of_a_table_are_targets(tmp_path, ending):
    path = tmp_path / f"houses.{ending}"
    rows = list(zip(RECORDS[:, 0].tolist(), PRICES.tolist(), (PRICES / 2).tolist(), strict=True))
    if ending == "csv":
        lines = ["size,price,rent", *(",".join(map(repr, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        pytest.importorskip("pyarrow")
        arrow, parquet = map(importlib.import_module, ("pyarrow", "pyarrow.parquet"))
        columns = zip(("size", "price", "rent"), zip(*rows, strict=True), strict=True)
        parquet.write_table(arrow.table(dict(columns)), path)
    keys = {"dataset": "table", "path": str(path), "cache": str(tmp_path / "cache")}
    found = spec_of("regression", **keys, targets=["price", "rent"], numbers=["size"])
    for _ in ("read", "from the cache"):
        dataset = load(found.data, task=Task(found.task))
        assert dataset.classes == 2
        assert np.allclose(whole(dataset), np.stack([PRICES, PRICES / 2], 1), atol=1e-7)


def test_arrays_of_a_file_are_targets_and_read_back_from_the_cache(tmp_path):
    path = tmp_path / "tags.npz"
    tags = np.where(RECORDS > 20, -100, RECORDS.astype(int) % 3)
    np.savez(path, x_train=RECORDS, y_train=tags, x_test=RECORDS[:2], y_test=tags[:2])
    keys = {"dataset": "arrays", "path": str(path), "cache": str(tmp_path / "cache")}
    mapping = spec_of("classification", **keys).data
    for _ in ("read", "from the cache"):
        dataset = load(mapping, task=Task(specs.task_of({"kind": "token_classification"})))
        assert np.array_equal(dataset.train.labels, tags)
        assert dataset.classes == 3
    with pytest.raises(DataError, match=r"whole numbers \[n, 3\], not classes; set task\.kind"):
        load(mapping)


@pytest.mark.parametrize(
    ("targets", "task", "message"),
    [
        (np.where(np.arange(8) == 5, np.nan, PRICES), "regression", "row 5: its target 1 of 1 is"),
        (PRICES + SECRET * 1e14, "regression", "row 0: .* finite number below 1e[+]18"),
        (np.full((8, 2), SECRET), "multi_label", "row 0: its target 1 of 2 is not 0 or 1"),
        (PRICES, "multi_label", r"real numbers \[n\]; .* needs a matrix \[n, K\]"),
        (np.full((8, 3), -7), "token_classification", r"row 0, token 0: .*ignore_index \(-100\)"),
        (
            PRICES,
            "token_classification",
            r"real numbers \[n\]; .* needs whole numbers \[n, length\]",
        ),
        (PRICES, "classification", r"real numbers \[n\], not classes; set task.kind to regression"),
        (np.zeros((8, 2, 2)), "regression", r"shapes \(8, 3\) and \(8, 2, 2\)"),
    ],
)
def test_bad_targets_are_one_line_that_shows_none_of_them(targets, task, message):
    with pytest.raises(DataError, match=message) as caught:
        read((RECORDS, targets), task)
    said = str(caught.value)
    assert "\n" not in said
    assert "123456" not in said
    assert "-7" not in said


TABLE = {"dataset": "table", "path": "houses.csv", "numbers": ["size"]}


@pytest.mark.parametrize(
    ("task", "data", "message"),
    [
        ("regression", {"dataset": "digits"}, "found digits, whose records have one class each"),
        ("regression", {**TABLE, "label": "kind"}, r"name columns of numbers in data\.targets"),
        ("regression", TABLE, r"data\.targets: missing; task\.kind regression needs columns"),
        ("classification", TABLE, r"data\.label: missing; give the column of the class"),
        ("classification", {**TABLE, "targets": ["price"]}, "classification; set task: regression"),
        ("token_classification", {**TABLE, "targets": ["tags"]}, "use arrays or given"),
        (
            "multi_label",
            {"dataset": "given", "partition": {"kind": "dirichlet"}},
            "found dirichlet, which divides by class, but task.kind is multi_label; use iid",
        ),
        ("token_classification", {"dataset": "given"}, "found mlp, .*; use python or module"),
        ({"kind": "regression", "reduction": "sum"}, {"dataset": "given"}, "reduction"),
    ],
)
def test_keys_that_do_not_go_with_a_task_are_refused_with_the_reason(task, data, message):
    with pytest.raises(SpecError, match=message):
        spec_of(task, {"name": "mlp"}, **data)
