"""What is noted of single coordinates: silence, the largest value, sums that no crash doubles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpfedadamw.evidence.coordinates import (
    FILE,
    CoordinateSums,
    ShortSums,
    look,
    look_by_block,
)
from dpfedadamw.models.networks.cnn import GroupNormCNN
from dpfedadamw.vectors.flat import BLOCK_KINDS, blocks_of


def test_coordinates_without_noise_and_the_largest_are_told():
    clean = torch.tensor([1.0, 2.0, 3.0, 4.0])
    squares = torch.ones(4)
    seen = look(torch.tensor([1.0, 2.5, 3.0, 1.0]), clean, squares)
    assert (seen.silent, seen.largest) == (2, 3.0)
    assert squares.tolist() == [1.0, 1.25, 1.0, 10.0]
    assert look(clean[:0], clean[:0]).silent == 0


def test_a_long_vector_is_looked_at_in_all_its_pieces():
    noisy, squares = torch.zeros(600_000), torch.zeros(600_000)
    noisy[599_999], noisy[3] = -7.0, 2.0
    seen = look(noisy, torch.zeros_like(noisy), squares)
    assert (seen.silent, seen.largest) == (599_998, 7.0)
    assert squares.sum() == 53.0


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_one_pass_over_blocks_sees_what_several_see(kind):
    blocks = blocks_of(GroupNormCNN((1, 8, 8), [8, 16], 4, 10), kind)
    clean = torch.randn(blocks.parameters)
    noisy = clean + torch.randn(blocks.parameters)
    noisy[7] = clean[7]
    squares, again = torch.ones_like(clean), torch.ones_like(clean)
    sample = torch.tensor([0, 7, 300])
    found = look_by_block(blocks, noisy, clean, sample, squares)
    assert found.seen == look(noisy, clean, again)
    assert found.seen.silent == 1
    assert torch.equal(squares, again)
    assert found.clean_sample.tolist() == clean[sample].tolist()
    assert found.noise_sample.tolist() == (noisy[sample].double() - clean[sample]).tolist()
    noise, own = map(torch.from_numpy, (found.noise_squares, found.clean_squares))
    assert torch.equal(noise, blocks.sum_of_squares(noisy, minus=clean))
    assert torch.equal(own, blocks.sum_of_squares(clean))
    assert torch.allclose(own, blocks.sum(clean.double().square()), rtol=1e-5)


@pytest.mark.parametrize("kind", BLOCK_KINDS)
def test_a_look_at_many_queries_sees_what_a_look_at_each_sees(kind):
    blocks = blocks_of(GroupNormCNN((1, 8, 8), [8, 16], 4, 10), kind)
    sample = np.array([0, 7, 300])
    together, single = torch.ones(blocks.parameters), torch.ones(blocks.parameters)
    sums = ShortSums(blocks, sample, together)
    for count in (3, 1):
        queries = [torch.randn(2, blocks.parameters) for _ in range(count)]
        for clean, noise in queries:
            noise[7] = 0.0
            # The rule goes on in the same memory once its query is noted.
            noisy = clean + noise
            kept = sums.add(clean, noisy)
            assert kept.tolist() == clean[sample].tolist()
            noise.copy_(noisy)
            noisy.zero_()
        assert not sums.full
        seen = sums.look()
        for row, (clean, noisy) in enumerate(queries):
            each = look_by_block(blocks, noisy, clean, torch.from_numpy(sample), single)
            alone = each.seen
            assert (seen.silent[row], seen.largest[row]) == (alone.silent, alone.largest)
            noise = noisy.double() - clean
            assert np.allclose(seen.noise_squares[row], each.noise_squares, rtol=1e-5)
            exact = blocks.sum((noisy - clean).double().square())
            assert np.allclose(seen.noise_squares[row], exact, rtol=1e-12)
            assert np.allclose(seen.clean_squares[row], each.clean_squares, rtol=1e-5)
            assert seen.noise_sample[row].tolist() == noise[sample].tolist()
        assert torch.allclose(together, single, rtol=1e-6)


def test_clipped_sums_are_gathered_to_a_megabyte_at_most():
    blocks = blocks_of(torch.nn.Linear(100, 100), "tensor")
    sums = ShortSums(blocks, np.zeros(0, np.int64), torch.zeros(blocks.parameters))
    for added in range(2**18 // blocks.parameters):
        assert not sums.full, added
        sums.add(torch.zeros(blocks.parameters), torch.zeros(blocks.parameters))
    assert sums.full


def written(folder):
    with np.load(folder / FILE) as file:
        return int(file["rounds"]), (file["before"] + file["last"]).tolist()


def test_sums_are_in_units_of_what_was_charged_in_each_round(tmp_path):
    sums = CoordinateSums.start(tmp_path, torch.zeros(2))
    sums.current += torch.tensor([4.0, 8.0])
    sums.close_round(4.0)
    sums.current += torch.tensor([1.0, 0.0])
    sums.close_round(1.0)
    assert written(tmp_path) == (2, [2.0, 2.0])
    assert sums.current.tolist() == [0.0, 0.0]


def test_a_round_that_is_run_again_counts_once(tmp_path):
    sums = CoordinateSums.start(tmp_path, torch.zeros(1))
    for _ in range(3):
        sums.current += 5.0
        sums.close_round(1.0)
    for completed in (2, 3):
        # Cut off after the third round's evidence was written, before or after it was completed.
        again = CoordinateSums.start(tmp_path, torch.zeros(1))
        again.restore(completed)
        again.current += 7.0
        again.close_round(1.0)
        assert written(tmp_path) == (completed + 1, [5.0 * completed + 7.0])
        sums = CoordinateSums.start(tmp_path, torch.zeros(1))
        sums.restore(2)
        sums.current += 5.0
        sums.close_round(1.0)


def test_a_run_that_began_without_sums_goes_on_without(tmp_path):
    sums = CoordinateSums.start(tmp_path, torch.zeros(1))
    sums.restore(2)
    sums.close_round(1.0)
    assert not (tmp_path / FILE).exists()
