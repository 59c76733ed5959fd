"""What a client that is protected as a whole hands in of a participation."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedadamw.extensions.deployment.noted import NotedError, check_noted
from dpfedadamw.vectors.packing import packed


def serialised(**tensors):
    return np.frombuffer(packed(tensors), np.uint8)


def noted(**changes):
    whole = {
        "counts": np.asarray([3, 3], np.int64),
        "memory": serialised(),
        "uploaded": np.asarray([], np.str_),
        "norms": np.asarray([2.0, 1.0]),
        "commitment": np.zeros(32, np.uint8),
        "clipped": serialised(update=torch.ones(5)),
        "rows": np.arange(4),
    }
    return {name: one for name, one in {**whole, **changes}.items() if one is not None}


def test_what_a_client_notes_of_its_update_is_taken():
    check_noted(noted(), None, (3, 3), 5)
    check_noted(noted(rows=None, kept=np.arange(5)), None, (3, 3), 5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"clipped": None}, "clipped: is missing"),
        ({"clipped": serialised(update=torch.ones(4))}, "holds no update"),
        ({"clipped": serialised(update=torch.ones(5, dtype=torch.int64))}, "holds no update"),
        ({"clipped": serialised(other=torch.ones(5))}, "holds no update"),
        ({"clipped": serialised(update=torch.full((5,), torch.nan))}, "not finite"),
        ({"clipped": np.zeros(3, np.uint8)}, "holds no tensors"),
        ({"norms": np.ones(3)}, r"norms: has the shape \[3\]"),
        ({"commitment": np.zeros(31, np.uint8)}, "commitment: has the shape"),
        ({"commitment": np.zeros(32, np.int8)}, "commitment: has the type int8"),
        ({"counts": np.asarray([3, 3, 3])}, "counts: has the shape"),
        ({"counts": np.asarray([3, 4])}, "counts: says other steps"),
        ({"kept": np.arange(5.0)}, "kept: has the type float64"),
        ({"rows": np.asarray(["a"])}, "rows: has the type"),
        ({"seen_batches": np.zeros((2, 8), np.uint8)}, "seen_rows: is missing"),
    ],
)
def test_what_it_does_not_note_is_refused(changes, told):
    with pytest.raises(NotedError, match=told):
        check_noted(noted(**changes), None, (3, 3), 5)


# Of three queries of a model with seven parameters in two blocks, of which four are sampled: an
# array, and whether a number in it may be infinite or none at all.
QUERIES, BLOCKS, PARAMETERS, SAMPLED, RECORDS = 3, 2, 7, 4, 6
OF_QUERIES = {
    "batch_sizes": (np.full(QUERIES, 2), None),
    "norm_counts": (np.full(QUERIES, 2), None),
    "nonfinite": (np.zeros(QUERIES, np.int64), None),
    "silent": (np.zeros(QUERIES, np.int64), None),
    "divisors": (np.ones(QUERIES), False),
    "largest": (np.ones(QUERIES), False),
    "noise_sum_squares": (np.ones((QUERIES, BLOCKS)), False),
    "clean_sum_squares": (np.ones((QUERIES, BLOCKS)), False),
    "noise_sample": (np.ones((QUERIES, SAMPLED), np.float32), False),
    "shared.squares": (np.ones(PARAMETERS, np.float32), False),
    "exchange.clean": (np.ones((QUERIES, SAMPLED)), True),
    "exchange.points": (np.ones((QUERIES, PARAMETERS)), True),
    "exchange.gradients": (np.ones((QUERIES, PARAMETERS)), True),
    "exchange.square_sums": (np.ones((QUERIES, BLOCKS)), True),
    "raw_norms": (np.ones(RECORDS), True),
    "clipped_norms": (np.ones(RECORDS), True),
    "participation": (np.zeros(32, np.uint8), None),
    "moment": (np.ones((2, BLOCKS)), True),
    "moment.floored": (np.zeros(BLOCKS, np.int64), None),
    "moment.numbers": (np.ones(2), False),
}
ANY_LENGTH = {
    "inclusions": np.arange(5),
    "rows_used": np.arange(5),
    "batch_rows": np.arange(5),
    "seen_rows": np.arange(5),
}
WITNESSED = {
    "seen_contents": np.zeros((5, 16), np.uint8),
    "seen_batches": np.zeros((5, 8), np.uint8),
}
# Without the first of these no client says that it has one.
OPTIONAL = {"moment", "rows_used", "batch_rows", "seen_batches"}


def queried(coordinates=None, **changes):
    """Whether what a client notes of its queries is taken, with other arrays for some."""
    whole = {
        "counts": np.asarray([3, QUERIES], np.int64),
        "memory": serialised(),
        "uploaded": np.asarray([], np.str_),
        **{name: array for name, (array, _) in OF_QUERIES.items()},
        **ANY_LENGTH,
        **WITNESSED,
    }
    collector = SimpleNamespace(
        blocks=SimpleNamespace(names=("a", "b"), parameters=PARAMETERS),
        exchange=SimpleNamespace(coordinates=coordinates),
        sample=np.arange(SAMPLED),
    )
    arrays = {name: one for name, one in {**whole, **changes}.items() if one is not None}
    check_noted(arrays, collector, (3, QUERIES), PARAMETERS)


def refused(name, array):
    with pytest.raises(NotedError, match=f"^{re.escape(name)}: "):
        queried(**{name: array})


def test_what_a_client_notes_of_its_queries_is_taken():
    queried()
    queried(**dict.fromkeys(OPTIONAL))
    queried(**dict.fromkeys(["seen_rows", *WITNESSED]))
    # What is not kept has no rows, and of some coordinates only these.
    none = np.zeros((0, 0))
    queried(**{f"exchange.{name}": none for name in ("points", "gradients", "square_sums")})
    two = np.ones((QUERIES, 2))
    queried(np.arange(2), **{"exchange.points": two, "exchange.gradients": two})


@pytest.mark.parametrize("name", [*OF_QUERIES, *ANY_LENGTH, *WITNESSED])
def test_an_array_of_another_kind_or_shape_is_refused_by_its_name(name):
    array = {**ANY_LENGTH, **WITNESSED}.get(name)
    if array is None:
        array = OF_QUERIES[name][0]
    if name not in OPTIONAL:
        refused(name, None)
    refused(name, array.astype(str))
    refused(name, array.astype("f8" if array.dtype.kind != "f" else "i8"))
    refused(name, array[None])
    if array.dtype.itemsize > 1:
        refused(name, array.astype(array.dtype.newbyteorder()))
    if name not in ANY_LENGTH:
        for axis in range(array.ndim):
            refused(name, np.delete(array, 0, axis))
            refused(name, np.concatenate([array, array], axis))


@pytest.mark.parametrize("name", [name for name, (_, odd) in OF_QUERIES.items() if odd is not None])
def test_numbers_that_say_something_of_noise_are_finite_and_others_may_be_odd(name):
    array, odd = OF_QUERIES[name]
    for worth in (np.nan, np.inf, -np.inf):
        spoilt = array.copy()
        spoilt.flat[-1] = worth
        if odd:
            queried(**{name: spoilt})
        else:
            refused(name, spoilt)


def test_a_number_of_a_moment_is_at_most_what_a_float_counts_to():
    for sign in (1.0, -1.0):
        queried(**{"moment.numbers": np.asarray([0.0, sign * 2.0**53])})
        refused("moment.numbers", np.asarray([0.0, sign * 2.0**53 * (1 + 2**-52)]))
