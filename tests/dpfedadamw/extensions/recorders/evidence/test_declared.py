"""What a loop may declare of itself."""

from __future__ import annotations

from typing import Any

import pytest

from dpfedadamw.extensions.recorders.evidence import SETTINGS, EvidenceError, Loop
from dpfedadamw.extensions.recorders.evidence.declared import check
from tests.dpfedadamw.extensions.recorders.evidence.small_loop import TENSORS, loop_of


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"records": 1},
        {"delta": 1e-300},
        {"delta": 0.999},
        {"tensors": (("a", 1),)},
        {"unit": "client"},
        {"sampling": "fixed-size"},
        {"mechanism": "laplace"},
        {"mechanism": "x"},
        {"mechanism": "sparse vector-2"},
        {"mechanism": "a" * 60},
    ],
)
def test_what_is_in_range_is_taken(changes: dict[str, Any]) -> None:
    check(loop_of(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"records": 0}, "the data set is empty"),
        ({"delta": 0.0}, "delta is 0;"),
        ({"delta": 1.0}, "delta is 1;"),
        ({"delta": float("nan")}, "delta is nan;"),
        ({"tensors": ()}, "no trainable parameter"),
        ({"tensors": (("a", 0),)}, "no trainable parameter"),
        ({"unit": "person"}, "unit is 'person'"),
        ({"sampling": "shuffled"}, "sampling is 'shuffled'"),
        ({"mechanism": ""}, "mechanism is ''"),
        ({"mechanism": "Laplace"}, "mechanism is 'Laplace'"),
        ({"mechanism": "a" * 61}, "mechanism is 'aaa"),
        ({"mechanism": "1-out"}, "mechanism is '1-out'"),
        ({"mechanism": "laplace\n"}, "mechanism is "),
    ],
)
def test_what_is_out_of_range_is_refused_by_its_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EvidenceError, match=said):
        check(loop_of(**changes))


def test_a_loop_draws_records_by_chance_and_adds_gaussian_noise_unless_it_says_otherwise() -> None:
    loop = Loop(
        producer="mine", version="1", mode="", generator="", secure=False, optimizer="sgd",
        records=1, delta=0.5, tensors=(("a", 2), ("b", 5)), model_tensors=TENSORS,
    )  # fmt: skip
    assert (loop.sampling, loop.unit, loop.mechanism) == ("poisson", "record", "gaussian")
    assert loop.parameters == 7


def test_the_settings_of_an_update_stand_in_the_order_of_the_format() -> None:
    """docs/evidence-format.md: learning rate, momentum, dampening, weight decay, Nesterov, β, ε."""
    assert SETTINGS == (
        "learning_rate", "momentum", "dampening", "weight_decay", "nesterov", "beta1", "beta2",
        "eps",
    )  # fmt: skip
