"""The arrays of a file of steps, and the checksum of parameters."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from dpfedadamw.extensions.recorders.evidence import Step, fingerprint
from dpfedadamw.extensions.recorders.evidence.arrays import File, arrays_of
from tests.dpfedadamw.extensions.recorders.evidence.small_loop import charge_of, step_of

# Of two steps, by hand: noise is over C = 5, and the second one's divisor is not to be seen.
TWO_STEPS = {
    "clients": ([0], "int64"),
    "attempt": (1, "int64"),
    "attachment": (4, "int64"),
    "batch_size": ([[2, 1]], "int64"),
    "record_offsets": ([0, 2, 3], "int64"),
    "raw_norms": ([10, 1, 2], "float32"),
    "rows": ([7, 2, 39], "uint32"),
    "row_offsets": ([0, 2, 3], "int64"),
    "divisor": ([[10, 0]], "float64"),
    "noise_sum_squares": ([[[1, 9], [0, 0]]], "float64"),
    "clean_sum_squares": ([[[25, 1], [4, 0]]], "float64"),
    "noise_silent": ([[1, 3]], "int64"),
    "noise_largest": ([[0.6, 0]], "float32"),
    "noise_sample": ([[[0.2, 0, -0.6], [0, 0, 0]]], "float32"),
    "clean_sample": ([[3, 4, 1], [0, 2, 0]], "float32"),
    "expected_sample": ([[3, 4, 1.5], [0, 2, 0]], "float32"),
    "released_sample": ([[0.4, 0.4, -0.2], [0, 0, 0]], "float32"),
    "before_sample": ([[1, 2, 3], [1, 2, 3]], "float32"),
    "after_sample": ([[0.8, 1.8, 3.1], [1, 2, 3]], "float32"),
    "before_fingerprint": ([17, 23], "int64"),
    "after_fingerprint": ([23, 2**53 - 1], "int64"),
    "settings": ([[[0.5, 0, 0, 0, 0, 0, 0, 0]], [[0.5, 0.9, 0, 0, 1, 0, 0, 0]]], "float64"),
    "group": ([0, 0, 1], "int64"),
    "unused": ([2, 0], "int64"),
    "skipped": ([1, 5], "int64"),
}


def second(**changes: object) -> Step:
    """A step without noise, of which nothing was released."""
    return step_of(
        **{
            "rows": np.array([39]),
            "raw_norms": np.array([2.0], np.float32),
            "noise_sum_squares": np.zeros(2),
            "clean_sum_squares": np.array([4.0, 0.0]),
            "noise_silent": 3,
            "noise_largest": 0.0,
            "noise_sample": np.zeros(3, np.float32),
            "clean_sample": np.array([0, 2, 0], np.float32),
            "expected_sample": np.array([0, 2, 0], np.float32),
            "released_sample": np.zeros(3, np.float32),
            "after_sample": np.array([1, 2, 3], np.float32),
            "before_fingerprint": 23,
            "after_fingerprint": 2**53 - 1,
            "settings": np.array([[0.5, 0.9, 0, 0, 1, 0, 0, 0]]),
            "unused": 0,
            "skipped": 5,
            **changes,
        }
    )


@pytest.mark.parametrize("known", [True, False])
def test_every_array_of_two_steps_is_what_the_format_says(known: bool) -> None:
    steps = [step_of(), second() if known else second(rows=None)]
    found = arrays_of(File(3, charge_of(), 4, steps), np.array([0, 0, 1]))
    # Which records the batches held is said of all steps of a file, or of none.
    due = TWO_STEPS if known else {k: v for k, v in TWO_STEPS.items() if not k.startswith("row")}
    assert {name: str(one.dtype) for name, one in found.items()} == {
        name: kind for name, (_, kind) in due.items()
    }
    for name, (values, _) in due.items():
        assert found[name].shape == np.shape(values), name
        np.testing.assert_allclose(found[name], values, rtol=1e-6, err_msg=name)


def test_a_file_whose_steps_drew_nobody_has_arrays_without_records() -> None:
    nobody = step_of(rows=np.zeros(0, np.int64), raw_norms=np.zeros(0, np.float32))
    found = arrays_of(File(0, charge_of(), 1, [nobody]), np.zeros(3, np.int64))
    due = {"rows": [], "row_offsets": [0, 0], "raw_norms": [], "batch_size": [[0]]}
    for name, values in due.items():
        assert found[name].tolist() == values, name


def test_a_checksum_adds_bits_as_signed_numbers_modulo_two_to_the_53() -> None:
    arrays = [np.array([-1.0, 2.5], np.float32), np.zeros(0, np.float32), np.array([-0.0], "f4")]
    signed = struct.unpack("<3i", struct.pack("<3f", -1.0, 2.5, -0.0))
    assert sum(signed) < 0
    assert fingerprint(arrays) == 2**53 + sum(signed)
