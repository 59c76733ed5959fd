"""Uploads from other processes are refused unless they are what the run's algorithm sends."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from dpfedadamw.federation.arrivals import ArrivalError, Likeness, expected
from dpfedadamw.run import training as engine_run
from dpfedadamw.vectors.packing import packed
from tests import runs

RIGHT = {"parameters": torch.ones(5), "state.second_moment": torch.ones(2)}


def refused(changed):
    with pytest.raises(ArrivalError) as error:
        Likeness.of(packed(RIGHT)).check(packed(changed), "a client of round 3")
    return str(error.value)


def test_an_upload_of_the_right_likeness_is_taken():
    Likeness.of(packed(RIGHT)).check(packed({k: v * 2 for k, v in RIGHT.items()}), "a client")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"parameters": torch.ones(5)}, "lacks the tensor 'state.second_moment'"),
        (RIGHT | {"state.raw": torch.ones(1)}, "has a further tensor 'state.raw'"),
        (RIGHT | {"parameters": torch.ones(6)}, "is float32 [6], not float32 [5]"),
        (RIGHT | {"parameters": torch.ones(5, 1)}, "is float32 [5, 1], not float32 [5]"),
        (RIGHT | {"parameters": torch.ones(5).double()}, "is float64 [5], not float32 [5]"),
        (RIGHT | {"parameters": torch.tensor([1, 1, torch.nan, 1, 1])}, "that are not finite"),
        (RIGHT | {"state.second_moment": torch.tensor([1, torch.inf])}, "that are not finite"),
    ],
)
def test_an_upload_of_another_likeness_is_refused_with_what_is_wrong(changed, told):
    assert refused(changed).startswith("a client of round 3: ")
    assert told in refused(changed)


def test_a_tensor_without_numbers_has_none_that_are_not_finite():
    empty = {"parameters": torch.zeros(0), "counts": torch.tensor([3, 4])}
    likeness = Likeness.of(packed(empty))
    likeness.check(packed(empty), "a client")
    with pytest.raises(ArrivalError, match=r"is int64 \[1\], not int64 \[2\]"):
        likeness.check(packed(empty | {"counts": torch.tensor([3])}), "a client")


def test_what_was_sent_is_named_and_a_long_name_is_cut():
    with pytest.raises(ArrivalError) as error:
        Likeness.of(packed(RIGHT)).check(
            packed(RIGHT | {"x" * 99: torch.ones(1)}), "the server", "the broadcast"
        )
    assert str(error.value) == f"the server: the broadcast has a further tensor {'x' * 64!r}"


class Checked:
    """Runs clients as ever, and holds each upload to what is expected of it beforehand."""

    def __init__(self, inline, worker):
        self._inline, self._worker, self.seen = inline, worker, 0

    def answers(self, parts):
        for part, answer in zip(parts, self._inline.answers(parts), strict=True):
            likeness = expected(self._worker, part.current)
            likeness.check(answer.message, "a client")
            assert len(answer.message) == likeness.size
            self.seen += 1
            yield answer

    def close(self):
        pass


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "algorithm", ["dp-fedadamw", "dp-scaffold", "dp-fedsam-randk", "dp-fedsam-topk", "fedcm"]
)
def test_what_is_expected_of_an_upload_is_what_the_algorithm_sends(algorithm, tmp_path):
    training = runs.begin(runs.small_spec(algorithm, rounds=2), tmp_path)
    checked = Checked(training.federation.runner, training.federation.worker)
    training.federation = dataclasses.replace(training.federation, elsewhere=checked)
    with training.lock:
        engine_run.train(training)
    assert checked.seen > 2
