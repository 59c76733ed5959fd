"""What a client that is protected as a whole hands in of a participation."""

from __future__ import annotations

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
