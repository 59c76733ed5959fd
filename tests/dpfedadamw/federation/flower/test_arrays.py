"""Arrays as Flower carries them, without Flower: back to the same bytes, and within a limit."""

from __future__ import annotations

import struct
from io import BytesIO
from multiprocessing import Pipe

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib import format as numpy_format

from dpfedadamw.federation.flower.arrays import HEADS, fits, message_of_wires, wires_of
from dpfedadamw.federation.flower.frames import Frame, Limits, receive, send
from dpfedadamw.vectors.packing import packed, views


def message_of(arrays: int, numbers: int) -> bytes:
    """So many arrays of so many numbers each."""
    return packed({f"array {place:05d}": torch.full((numbers,), 0.5) for place in range(arrays)})


@given(st.integers(1, 40), st.integers(0, 60))
def test_a_message_comes_back_to_the_very_bytes_and_fits_its_own_limit(arrays, numbers):
    message = message_of(arrays, numbers)
    wires = wires_of(message)
    assert message_of_wires(wires) == message
    assert fits(wires, len(message))


@given(st.lists(st.integers(0, 3 * HEADS), min_size=1, max_size=8), st.integers(0, 4 * HEADS))
def test_what_is_limited_is_the_sum_of_all_arrays_however_it_is_cut(lengths, most):
    wires = {str(place): ("float32", (1,), "", bytes(size)) for place, size in enumerate(lengths)}
    whole = {"all": ("float32", (1,), "", bytes(sum(lengths)))}
    assert fits(wires, most) == fits(whole, most) == (sum(lengths) <= most + HEADS)


def written(values, version=(1, 0)):
    """An array in NumPy's format."""
    file = BytesIO()
    numpy_format.write_array(file, values, version, allow_pickle=True)
    return file.getvalue()


def wire(data, form="numpy.ndarray"):
    return ("float32", (2, 2), form, data)


def with_head(text):
    """An array whose head in NumPy's format is any text."""
    return wire(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)


@pytest.mark.parametrize(
    "text",
    [
        b"(\n",
        b"-" * 9900 + b"1\n",
        b"(" * 4000 + b"\n",
        b"{'descr': (), 'fortran_order': False, 'shape': (4,)}\n",
        b"{'descr': 5, 'fortran_order': False, 'shape': (4,)}\n",
        b"{'descr': [(5, 5)], 'fortran_order': False, 'shape': (4,)}\n",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -4)}\n" + bytes(16),
        b"\x00\xff\n",
    ],
)
def test_no_head_of_an_array_raises_any_other_error(text):
    with pytest.raises(ValueError, match=r"what is no array \("):
        message_of_wires({"a": with_head(text)})


@pytest.mark.parametrize(
    "bad",
    [
        wire(written(np.ones((2, 2), "f4")), form="another"),
        wire(written(np.ones((2, 2), "f4"), (2, 0))),
        wire(written(np.ones((2, 2), "f4"))[:-1]),
        wire(written(np.ones((2, 2), "f4")) + b"x"),
        wire(written(np.asfortranarray(np.ones((2, 2), "f4")))),
        wire(written(np.ones((2, 2), ">f4"))),
        wire(written(np.array(["a", "b"]))),
        wire(written(np.array([{}, {}], dtype=object))),
        wire(written(np.ones((2, 2), "c8"))),
        wire(b"no array at all"),
        wire(b""),
    ],
    ids=[
        "format", "version", "short", "long", "by columns", "byte order", "texts", "objects",
        "complex", "none", "empty",
    ],
)  # fmt: skip
def test_what_is_no_array_of_plain_numbers_is_refused(bad):
    good = wire(written(np.ones((2, 2), "f4")))
    assert torch.equal(views(message_of_wires({"a": good}))["a"], torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"what is no array \("):
        message_of_wires({"good": good, "a": bad})


@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "i4"])
def test_numbers_of_each_kind_keep_their_type_and_shape(kind):
    values = np.arange(6).reshape(2, 3).astype(kind)
    message = packed({"a": torch.from_numpy(values), "one": torch.from_numpy(values)[0, 1]})
    wires = wires_of(message)
    assert wires["a"][:3] == (str(values.dtype), (2, 3), "numpy.ndarray")
    assert np.array_equal(np.load(BytesIO(wires["a"][3])), values)
    assert wires["one"][1] == ()
    assert message_of_wires(wires) == message


def test_many_small_arrays_do_not_fit_where_one_as_long_as_all_of_them_does_not():
    wires = wires_of(message_of(2000, 180))
    assert max(len(data) for *_, data in wires.values()) < 1000
    assert sum(len(data) for *_, data in wires.values()) > 1_600_000
    assert not fits(wires, 1000)


def test_a_frame_is_limited_by_the_sum_of_its_arrays_before_one_of_them_is_read():
    wires = wires_of(message_of(20, 50))
    size = sum(len(data) for *_, data in wires.values())
    for content, arrives in ((size, True), (size - 1, False)):
        ours, theirs = Pipe()
        with ours, theirs:
            send(ours, Frame({}, wires))
            if arrives:
                assert receive(theirs, Limits(content=content)).arrays == wires
            else:
                with pytest.raises(ValueError, match="the arrays are longer than they may be"):
                    receive(theirs, Limits(content=content))
