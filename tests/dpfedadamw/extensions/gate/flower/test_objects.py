"""Flower's objects, made by Flower or forged, read for the model's arrays and nothing else."""

from __future__ import annotations

import hashlib
import json
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("flwr.app", reason="Flower has an environment of its own: tox run -e flower")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, MetricRecord
from flwr.supercore.inflatable import inflatable_object

from dpfedadamw.extensions.gate.flower.objects import most_bytes, names_in, read_arrays
from tests.dpfedadamw.extensions.gate.flower.messages import MODEL, VALUES, cut, honest, message

pytestmark = pytest.mark.flower


def test_what_flower_writes_is_read_bit_for_bit_whatever_else_the_message_has():
    made = message(
        arrays=honest(), metrics=MetricRecord({"loss": 1.5}), config=ConfigRecord({"a": "b"})
    )
    record, arrays = read_arrays(*cut(made), MODEL)
    assert record == "arrays"
    assert list(arrays) == list(MODEL)
    for name, value in VALUES.items():
        assert arrays[name].dtype == value.dtype
        np.testing.assert_array_equal(arrays[name], value)
    tree = inflatable_object.get_object_tree(made)
    assert set(names_in(tree)) == set(cut(made)[1])
    assert sum(map(len, cut(made)[1].values())) <= most_bytes(MODEL)


def test_an_array_by_columns_is_the_same_array():
    by_column = np.asfortranarray(VALUES["weights"])
    found = read_arrays(*cut(message(arrays=honest(weights=by_column))), MODEL)[1]
    np.testing.assert_array_equal(found["weights"], VALUES["weights"])


@pytest.mark.parametrize(
    "made",
    [
        message(),
        message(metrics=MetricRecord({"loss": 1.5})),
        message(arrays=honest(), more=honest(bias=np.ones(10, np.float32))),
        message(arrays=honest(bias=None)),
        message(arrays=honest(leak=np.ones(3, np.float32))),
        message(arrays=honest(weights=VALUES["weights"].T)),
        message(arrays=honest(weights=VALUES["weights"].astype(np.float64))),
        message(arrays=honest(weights=VALUES["weights"].astype(">f4"))),
        message(arrays=honest(weights=VALUES["weights"].reshape(640))),
        message(error=Error(0, "the records")),
    ],
    ids=[
        "empty", "no arrays", "two records of arrays", "an array less", "an array more",
        "another shape", "another type", "another byte order", "as one row", "an error",
    ],
)  # fmt: skip
def test_anything_but_exactly_the_models_arrays_is_refused(made):
    with pytest.raises(ValueError, match=r"arrays|shape|type|Message"):
        read_arrays(*cut(made), MODEL)


def changed(contents, name, kind, change):
    """A message in which the first object of a kind is changed, with all names that follow."""
    contents = dict(contents)
    old = next(one for one, content in contents.items() if content.startswith(kind))
    new, left = change(contents.pop(old)), dict(contents)
    while True:
        digest = hashlib.sha256(new).hexdigest()
        contents[digest] = new
        name = digest if old == name else name
        parents = [one for one, content in left.items() if old.encode() in content]
        if not parents:
            return name, contents
        (parent,) = parents
        new = left.pop(parent).replace(old.encode(), digest.encode())
        del contents[parent]
        old = parent


def test_a_chunk_named_a_million_times_costs_no_memory():
    def repeat(content):
        head, _, body = content.partition(b"\0")
        told = json.loads(body) | {"arraychunk_ids": [0] * 1_000_000}
        return head + b"\0" + json.dumps(told).encode()

    name, contents = cut(message(arrays=honest()))
    name, contents = changed(contents, name, b"Array ", repeat)
    tracemalloc.start()
    with pytest.raises(ValueError, match="too long"):
        read_arrays(name, contents, MODEL)
    # The list of a million references is 8 MB; following it would take 2.8 GB.
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


def test_an_array_that_only_a_pickle_can_read_is_refused():
    record = ArrayRecord({
        "weights": Array("float32", (64, 10), "numpy.ndarray", pickled()),
        "bias": Array(VALUES["bias"]),
    })  # fmt: skip
    with pytest.raises(ValueError, match="another shape or type"):
        read_arrays(*cut(message(arrays=record)), MODEL)


def pickled():
    from io import BytesIO

    file = BytesIO()
    np.save(file, np.full((64, 10), {"a": 1}, dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("place", [-1, 7, "0", None, 10**30])
def test_references_that_lead_nowhere_are_refused(place):
    def lead(content):
        head, _, body = content.partition(b"\0")
        return head + b"\0" + json.dumps(json.loads(body) | {"arraychunk_ids": [place]}).encode()

    name, contents = cut(message(arrays=honest()))
    if place == -1:
        # The last chunk, counted from the end, is the only one, so it is the same array.
        assert read_arrays(*changed(contents, name, b"Array ", lead), MODEL)
        return
    with pytest.raises(ValueError, match="is no message with the model's arrays"):
        read_arrays(*changed(contents, name, b"Array ", lead), MODEL)


def test_a_tree_that_is_deep_or_wide_is_refused():
    from flwr.proto.message_pb2 import ObjectTree

    deep = ObjectTree(object_id="a")
    for _ in range(50):
        deep = ObjectTree(object_id="a", children=[deep])
    with pytest.raises(ValueError, match="too deep"):
        names_in(deep)
    wide = ObjectTree(object_id="a", children=[ObjectTree(object_id=str(i)) for i in range(10_001)])
    with pytest.raises(ValueError, match="too many"):
        names_in(wide)
