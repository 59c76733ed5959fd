"""Noise of the usual generators with the usual seeds is recognised, and no other."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from audit.statistics import seeded
from audit.statistics.seeded import SEEDS, find_seed, seeded_batch

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


def test_the_usual_seeds_are_small_numbers_years_and_those_that_are_copied():
    copied = {42, 99, 100, 101, 123, 314, 666, 777, 999, 1000, 1111, 1234, 1337, 1729, 3407, 4242}
    assert set(SEEDS) == {*range(24), *range(2020, 2027), *copied, 12345, 31415, 123456}


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


def batch_of(seed: int, ahead: int, records: int = 200, rate: float = 0.1) -> np.ndarray:
    """What Opacus' sampler draws, after so many numbers."""
    torch.manual_seed(seed)
    torch.rand(ahead)
    return np.flatnonzero((torch.rand(records) < rate).numpy())


@pytest.mark.parametrize(("seed", "ahead"), [(0, 0), (42, 2), (123456, 15)])
def test_a_batch_that_anybody_can_draw_again_is_recognised(seed, ahead):
    rows = batch_of(seed, ahead)
    assert seeded_batch(rows, 200, 0.1)
    other = np.setdiff1d(np.arange(200), rows)[:1]
    assert not seeded_batch(np.union1d(rows, other), 200, 0.1)
    assert not seeded_batch(rows[1:], 200, 0.1)


def test_a_batch_of_another_seed_or_further_on_is_nobodys():
    assert not seeded_batch(batch_of(987_654, 0), 200, 0.1)
    assert not seeded_batch(batch_of(0, 16), 200, 0.1)


def test_a_batch_that_might_be_anybodys_is_not_recognised():
    # 48 bits are asked for: so unlikely is any one batch of 48 records at a rate of a half.
    few = batch_of(0, 0, 47, 0.5)
    assert not seeded_batch(few, 47, 0.5)
    assert seeded_batch(batch_of(0, 0, 48, 0.5), 48, 0.5)
    for rate in (0.0, 1.0):
        assert not seeded_batch(np.arange(100), 100, rate)
    assert not seeded_batch(np.zeros(0, np.int64), 200, 0.1)


def test_noise_is_compared_where_it_is_recorded_and_nowhere_else():
    noise = of_torch(torch.float64).numpy()
    for places in ([0, 5, 9], [3, 21, 40, 41, 55, 56, 4000]):
        at = np.array(places)
        assert find_seed([noise[at]], at, (0,)) == "torch.manual_seed(42)"
        # A single number that is off is one of another generator.
        for wrong in range(min(len(at), 6)):
            off = noise[at].copy()
            off[wrong] += 1e-3
            assert find_seed([off], at, (0,)) is None
    # Of more than six the first six are compared.
    at = np.arange(0, 70, 10)
    off = noise[at].copy()
    off[6] += 1.0
    assert find_seed([off], at, (0,)) == "torch.manual_seed(42)"
    # One of several vectors is enough.
    assert find_seed([np.ones(7), noise[at]], at, (0,)) == "torch.manual_seed(42)"


@pytest.fixture
def made_again(monkeypatch):
    """The numbers of generators are made in the test itself, of few seeds."""
    monkeypatch.setattr(seeded, "SEEDS", (0, 1, 2, 7, 9, 101, 123_456))
    seeded._generators.cache_clear()
    yield
    seeded._generators.cache_clear()


AT = np.array([0, 5, 9, 12])


@pytest.mark.parametrize(
    ("name", "draw", "most"),
    [
        ("np.random.default_rng(2)", lambda n: np.random.default_rng(2).standard_normal(n), 4095),
        ("np.random.seed(9)", lambda n: np.random.RandomState(9).standard_normal(n), 4095),
        ("torch.manual_seed(1)", lambda n: drawn_by_torch(1, n, torch.float32), 4088),
        ("torch.manual_seed(101)", lambda n: drawn_by_torch(101, n, torch.float64), 4080),
        # Numbers of double precision take two words each: from the second on as well.
        ("torch.manual_seed(7)", lambda n: drawn_by_torch(7, n, torch.float64, 1), 4064),
        ("random.seed(0)", lambda n: drawn_by_python(0, n), 2000),
        ("random.seed(123456)", lambda n: drawn_by_python(123_456, n), 2000),
    ],
)
def test_noise_is_recognised_wherever_it_begins_among_a_generators_first_numbers(
    name, draw, most, made_again
):
    numbers = np.asarray(draw(5000), dtype=np.float64)
    for begins in (0, 16, most // 16 * 16):
        assert find_seed([numbers[begins + AT]], AT, (0,)) == name, begins
    # As near as noise is recorded, and not further off.
    for off, found in ((1.5e-5, name), (3e-5, None)):
        assert find_seed([numbers[AT] + off], AT, (0,)) == found


def drawn_by_torch(seed, count, dtype, before=0):
    torch.manual_seed(seed)
    torch.rand(before)
    return torch.randn(count, dtype=dtype)


def drawn_by_python(seed, count):
    generator = random.Random(seed)
    return [generator.gauss(0.0, 1.0) for _ in range(count)]


def test_the_4096th_place_is_the_last_at_which_noise_may_begin(made_again):
    numbers = np.random.default_rng(2).standard_normal(5000)
    assert find_seed([numbers[4095 + AT]], AT, (0,)) == "np.random.default_rng(2)"
    assert find_seed([numbers[4096 + AT]], AT, (0,)) is None
    # However far the last coordinate that is compared lies behind the others.
    far, numbers = np.array([0, 5, 12_000]), np.random.default_rng(2).standard_normal(20_000)
    assert find_seed([numbers[4095 + far]], far, (0,)) == "np.random.default_rng(2)"
    numbers = drawn_by_torch(7, 20_000, torch.float64).numpy()
    assert find_seed([numbers[4064 + far]], far, (0,)) == "torch.manual_seed(7)"
    # Of Python's generator the first 2,048 numbers are known, and what lies behind is nobody's.
    numbers, far = np.array(drawn_by_python(0, 3000)), np.array([0, 5, 100])
    assert find_seed([numbers[1947 + far]], far, (0,)) == "random.seed(0)"
    assert find_seed([numbers[1948 + far]], far, (0,)) is None


def test_three_coordinates_behind_a_tensors_start_and_near_it_are_needed():
    start, near = 100, 1 << 17
    for places, taken in (
        ([100, 101, 99 + near], [100, 101, 99 + near]),
        ([100, 101, 100 + near], None),
        ([99, 100, 101], None),
        ([98, 99, 100, 101, 102, 103, 104, 105, 106], [100, 101, 102, 103, 104, 105]),
    ):
        found = list(seeded._within(np.array(places), (start, start)))
        assert [np.array(places)[chosen].tolist() for _, chosen in found] == (
            [] if taken is None else [taken]
        )
