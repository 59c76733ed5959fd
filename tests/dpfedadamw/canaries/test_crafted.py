"""Crafted inputs: large gradients apart from each other, loaded as records are, scored exactly."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dpfedadamw.canaries.crafted import (
    CraftedRecords,
    clipped,
    craft,
    directions,
    record_gradients,
)
from dpfedadamw.canaries.engine import CanaryOrder, draw_canaries
from dpfedadamw.clipping.engines import choose
from dpfedadamw.data.datasets import Dataset, Records
from dpfedadamw.data.stored import StoredRecords
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.preprocessing import ImagePreprocessing
from dpfedadamw.privacy.noise.randomness import ReproducibleRandomness
from dpfedadamw.vectors.flat import FlatParameters

CLIPPING_NORM = 1.0


def flat():
    torch.manual_seed(0)
    return FlatParameters(
        torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 4)
        )
    )


def stored(kind):
    values = np.zeros((50, 1, 8, 8), kind)
    return StoredRecords(values, preprocessing=ImagePreprocessing())


def dataset(kind):
    """Fifty records of four classes."""
    records = Records(stored(kind), np.arange(50) % 4)
    return Dataset(records, records, None, 4, "0" * 64)


def drawn(count=30):
    coins = ReproducibleRandomness(1).stream("canary coins", -1, -1)
    return draw_canaries(CanaryOrder(count, "input"), [30, 20], 832, False, coins)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_crafted_inputs_have_large_gradients_apart_from_each_other(kind):
    model, canaries = flat(), drawn()
    records, labels = craft(model, canaries, dataset(kind), CLIPPING_NORM)
    assert records.dtype == kind
    assert records.shape == (30, 1, 8, 8)
    assert set(labels) <= {0, 1, 2, 3}
    inputs = dataclasses.replace(stored(kind), values=records)[0:30]
    gradients = record_gradients(model, inputs, torch.from_numpy(labels))
    assert float(gradients.norm(dim=1).median()) > CLIPPING_NORM
    own = canaries.of_client(0)
    unit = clipped(gradients, CLIPPING_NORM)[own]
    found = directions(unit, torch.zeros(832, dtype=torch.float64), canaries.included[own])
    # Of random records of these many only a small part is their own.
    assert np.median(found.contributions) > 0.3
    again, _ = craft(flat(), canaries, dataset(kind), CLIPPING_NORM)
    np.testing.assert_array_equal(records, again)


# Shares of a pattern's numbers that are not 0, and what these are where numbers have no bounds.
DENSITIES, AMPLITUDES = [1 / 16, 1 / 8, 1 / 4, 1 / 2], [1, 4, 16, 64]


class Scaled(torch.nn.Module):
    """Every number times a constant."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, inputs):
        return inputs * self.scale


def wide_model(scale):
    """A linear model of 4,096 numbers, whose gradients are as large as the scale says."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(4096, 4, bias=False)
    return FlatParameters(torch.nn.Sequential(torch.nn.Flatten(), Scaled(scale), layer))


def crafted_of(scale, kind):
    values = np.zeros((50, 1, 64, 64), kind)
    records = Records(StoredRecords(values, preprocessing=ImagePreprocessing()), np.arange(50) % 4)
    data = Dataset(records, records, None, 4, "0" * 64)
    found, _ = craft(wide_model(scale), drawn(), data, CLIPPING_NORM)
    return found.reshape(30, -1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_crafted_patterns_are_sparse_of_four_densities_and_of_one_brightness(kind):
    # Of gradients that clipping leaves as they are the densest pattern's is largest.
    found = np.concatenate([crafted_of(scale, kind) for scale in (2.0, 1e-6)])
    shares = (found != 0).mean(axis=1)
    nearest = [min(DENSITIES, key=lambda one: abs(one - share)) for share in shares]
    np.testing.assert_allclose(shares, nearest, atol=0.04)
    means = [np.mean(shares[np.equal(nearest, one)]) for one in DENSITIES]
    np.testing.assert_allclose(means, DENSITIES, rtol=0.04)
    assert set(found.ravel().tolist()) <= {0, *([255] if kind == np.uint8 else AMPLITUDES)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("scale", "amplitude"), [(2.0, 1), (0.2, 4), (0.05, 16), (0.01, 64), (1e-6, 64)]
)
def test_numbers_are_made_larger_until_gradients_are_far_outside_the_clipping_norm(
    scale, amplitude
):
    assert crafted_of(scale, np.float32).max() == amplitude


def test_gradients_of_single_records_are_those_of_the_engine():
    model = flat()
    inputs = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(3)) * 4.0
    labels = torch.tensor([0, 1, 2, 3, 0])
    engine = choose(model.module, record_loss, CLIPPING_NORM, engine="loop")
    expected = engine(inputs, labels).total
    found = clipped(record_gradients(model, inputs, labels), CLIPPING_NORM).sum(0)
    torch.testing.assert_close(found * CLIPPING_NORM, expected, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_adds_nothing():
    found = clipped(torch.tensor([[3.0, 4.0], [np.nan, 1.0], [0.3, 0.4]]), 2.5)
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.12, 0.16]]))


def test_scores_have_the_law_that_the_auditor_tests():
    """4,000 answers on 12 canaries whose gradients overlap; five standard errors everywhere."""
    rng = np.random.default_rng(5)
    sigma, count, answers = 0.7, 12, 4000
    gradients = torch.from_numpy(rng.standard_normal((count, 40)) + 0.5)
    gradients /= gradients.norm(dim=1, keepdim=True)
    included = rng.random(count) < 0.5
    drawn = (rng.random((answers, count)) < 0.3) & included
    residuals, projections = np.zeros((2, answers, count))
    for row in range(answers):
        noise = torch.from_numpy(sigma * rng.standard_normal(40))
        released = torch.from_numpy(drawn[row].astype(float)) @ gradients + noise
        found = directions(gradients, released, included)
        residuals[row], projections[row] = found.residuals, found.projections
    error = 5.0 / np.sqrt(answers)
    out = residuals[:, ~included] / sigma
    np.testing.assert_allclose(out.mean(0), 0.0, atol=error)
    np.testing.assert_allclose(np.cov(out.T), np.eye(out.shape[1]), atol=2.0 * error)
    means = residuals.mean(0)
    assert np.all(means > found.residual_low - sigma * error)
    assert np.all(means < found.residual_high + sigma * error)
    assert not found.residual_low[~included].any()
    assert not found.residual_high[~included].any()
    total = residuals[:, included].sum(1)
    moved = drawn @ found.residual_total
    spread = sigma * np.sqrt(included.sum())
    assert (total - moved).std() == pytest.approx(spread, rel=0.1)
    assert (total - moved).mean() == pytest.approx(0.0, abs=spread * error)
    for index in range(count):
        absent = projections[~drawn[:, index], index]
        assert absent.std() == pytest.approx(sigma, rel=0.1)
        assert absent.mean() == pytest.approx(0.0, abs=sigma * 5.0 / np.sqrt(len(absent)))
        if included[index]:
            there = projections[drawn[:, index], index]
            near = sigma * 5.0 / np.sqrt(len(there))
            assert there.mean() == pytest.approx(found.contributions[index], abs=near)


def test_a_canary_that_another_spans_has_no_score():
    gradients = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    found = directions(
        gradients, torch.tensor([0.5, 0.2, 0.1]).double(), np.array([True, False, False])
    )
    assert np.isnan(found.residuals[1])
    assert found.residuals[[0, 2]] == pytest.approx([0.5, 0.2])
    assert not found.contributions[:2].any()
    assert found.contributions[2] == pytest.approx(1.0)


def test_canaries_are_loaded_in_their_places_and_never_flipped_or_moved():
    values = np.random.default_rng(1).integers(0, 255, (6, 1, 8, 8)).astype(np.uint8)
    planted = {4: np.full((1, 8, 8), 7, np.uint8)}
    planted[4][0, 0, 0] = 255
    records = CraftedRecords(
        values,
        rows=np.array([5, 4, 3]),
        preprocessing=ImagePreprocessing(),
        augmentation=("flip", "crop"),
        stream=ReproducibleRandomness(1).stream("views", 0, 0),
        planted=planted,
    )
    plain = torch.from_numpy(planted[4]).float() / 255
    for _ in range(4):
        batch = records[torch.tensor([2, 1, 0])]
        assert torch.equal(batch[0:3][1], plain)
        assert torch.equal(batch[1:2][0], plain)
    others = dataclasses.replace(records, stream=None)[torch.tensor([0, 2])][0:2]
    torch.testing.assert_close(others, torch.from_numpy(values[[5, 3]]).float() / 255)
