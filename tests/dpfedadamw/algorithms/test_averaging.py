"""The average of the server's models: its weights, what it leaves alone, where it is refused."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from dpfedadamw.algorithms import registry
from dpfedadamw.algorithms.base import AVERAGED_MODEL, Algorithm, released
from dpfedadamw.errors import DpfedadamwError
from tests.dpfedadamw.algorithms.worlds import algorithm, model, rounds, section_of

NAMES = ["fedavg", "dp-fedavg", "dp-fedadamw", "dp-fedopt", "dp-scaffold", "dp-fafed", "dp-fedlada"]


def weights(power: int, count: int) -> np.ndarray:
    """s(s+1)…(s+p−1), scaled to sum 1: what the recursion comes to for a whole p (float64)."""
    found = [np.prod([float(s + k) for k in range(power)]) for s in range(1, count + 1)]
    return np.array(found) / np.sum(found)


@functools.cache
def played(section: str):
    """The rounds of an algorithm's section, which no test changes."""
    return rounds(algorithm(section))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("power", [0, 1, 8])
def test_what_is_released_is_the_weighted_mean_of_all_models_so_far(name, power):
    plain = played(f"{{name: {name}}}")
    averaging = played(f"{{name: {name}, server: {{averaging: {power}}}}}")
    models = np.stack([state.parameters.numpy() for state, _ in plain])
    for count, (state, _) in enumerate(averaging, start=1):
        expected = weights(power, count) @ models[:count]
        np.testing.assert_allclose(released(state).numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_rounds_go_on_from_the_last_model_and_not_from_the_average(name):
    plain = played(f"{{name: {name}}}")
    averaging = played(f"{{name: {name}, server: {{averaging: 8}}}}")
    for (one, _), (other, _) in zip(plain, averaging, strict=True):
        assert np.array_equal(one.parameters.numpy(), other.parameters.numpy())
        assert set(other.state) - set(one.state) == {AVERAGED_MODEL}


def test_half_of_the_weight_lies_on_the_last_rounds():
    assert weights(8, 1000)[-74:].sum() == pytest.approx(0.5, abs=0.01)
    assert weights(0, 1000)[-500:].sum() == pytest.approx(0.5)


def test_without_averaging_the_last_model_is_released():
    for state, _ in rounds(algorithm("{name: dp-fedavg}")):
        assert released(state) is state.parameters


def test_a_rule_with_a_schedule_of_its_own_is_refused(monkeypatch):
    """None of ours has the key, but another package's may inherit it."""
    plain = registry.ALGORITHMS["dp-fedavg"]

    def assemble(setup: Any) -> Algorithm:
        return dataclasses.replace(plain.assemble(setup), round_schedule=object())

    scheduled = {"dp-fedavg": dataclasses.replace(plain, assemble=assemble)}
    section = section_of("{name: dp-fedavg, server: {averaging: 8}}")
    monkeypatch.setattr(registry, "ALGORITHMS", scheduled)
    with pytest.raises(DpfedadamwError, match=r"algorithm\.server\.averaging: .* not averaged"):
        registry.build(section, model(), 4)
