"""Noise of the usual generators with the usual seeds is recognised, and no other."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from audit.statistics.seeded import find_seed

SIZE = 5000
COORDINATES = np.sort(np.random.default_rng(SIZE).choice(SIZE, 200, replace=False))


def found(noise, starts=(0,)):
    return find_seed([np.asarray(noise, dtype=np.float64)[COORDINATES]], COORDINATES, starts)


def of_torch(dtype, before=0):
    torch.manual_seed(42)
    torch.rand(before)
    return torch.randn(SIZE, dtype=dtype)


def of_numpy():
    generator = np.random.default_rng(7)
    generator.standard_normal(300)
    return generator.standard_normal(SIZE)


def of_numpys_old_generator():
    np.random.seed(1234)
    return np.random.randn(SIZE)


def of_python():
    random.seed(3)
    return [random.gauss(0.0, 1.0) for _ in range(SIZE)]


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: of_torch(torch.float32), "torch.manual_seed(42)"),
        (lambda: of_torch(torch.float32, 37), "torch.manual_seed(42)"),
        (lambda: of_torch(torch.float64), "torch.manual_seed(42)"),
        (lambda: of_torch(torch.float64, 21), "torch.manual_seed(42)"),
        (of_numpy, "np.random.default_rng(7)"),
        (of_numpys_old_generator, "np.random.seed(1234)"),
        (of_python, "random.seed(3)"),
    ],
)
def test_noise_that_anybody_can_draw_again_is_named(draw, name):
    assert found(draw()) == name


def test_tensors_drawn_one_by_one_are_found_by_where_they_begin():
    torch.manual_seed(5)
    noise = torch.cat([torch.randn(37), torch.randn(SIZE - 37)])
    assert found(noise) is None
    assert found(noise, (0, 37)) == "torch.manual_seed(5)"


def test_other_noise_is_nobodys():
    assert found(np.random.default_rng(987_654_321).standard_normal(SIZE)) is None
    assert find_seed([], COORDINATES, (0,)) is None
    few = np.array([3, 9])
    assert find_seed([np.zeros(2)], few, (0,)) is None
