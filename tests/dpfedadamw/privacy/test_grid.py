"""The public grid: what it keeps of a number, and that engine and auditor mean the same one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from audit.reading.ledger_lines import Grid as StatedGrid
from audit.replay import queries as judged
from dpfedadamw.privacy.grid import Grid, on_grid
from dpfedadamw.units.registry import unit_named

RANDOM = torch.Generator().manual_seed(4)


@pytest.mark.parametrize("bits", [1, 12, 16, 20])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_engine_and_auditor_round_to_the_same_grid(kind, bits):
    values = torch.randn(4000, generator=RANDOM, dtype=kind) * 10.0 ** torch.randint(
        -30, 30, (4000,), generator=RANDOM
    )
    values = values.to(kind)
    rounded = on_grid(values, bits)
    np.testing.assert_array_equal(rounded.double(), judged.on_grid(values.double().numpy(), bits))
    assert not judged.off_grid(rounded.double().numpy(), bits).any()
    assert (judged.off_grid(values.double().numpy(), bits)).mean() > 0.9
    assert ((rounded - values).abs() <= values.abs() * 2.0**-bits).all()
    torch.testing.assert_close(on_grid(rounded, bits), rounded, rtol=0, atol=0)


def test_a_half_goes_to_the_even_neighbour_and_a_carry_into_the_exponent():
    values = torch.tensor([1.25, 1.75, 1.99, -1.25, 5e-324, 0.0, -0.0])
    expected = torch.tensor([1.0, 2.0, 2.0, -1.0, 0.0, 0.0, -0.0])
    assert torch.equal(on_grid(values, 2), expected)


def test_what_is_not_finite_or_has_fewer_bits_stays_as_it_is():
    values = torch.tensor([torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).max])
    kept = on_grid(values, 12)
    assert torch.equal(kept[:2], values[:2])
    assert torch.isnan(kept[2])
    assert torch.equal(on_grid(torch.arange(5), 12), torch.arange(5))
    short = torch.randn(5).to(torch.bfloat16)
    assert torch.equal(on_grid(short, 12), short)


def test_tensors_as_long_as_the_update_and_shorter_ones_have_grids_of_their_own():
    named = {"control": torch.randn(6), "second_moment": torch.rand(2)}
    rounded = Grid(update=12).tensors(named, 6)
    assert torch.equal(rounded["control"], on_grid(named["control"], 16))
    assert torch.equal(rounded["second_moment"], on_grid(named["second_moment"], 20))
    places = judged.Places(StatedGrid(12, 16, 20, 16), 6)
    assert [places.bits(name, "update", n) for name, n in (("update", 6), ("a", 6), ("b", 2))] == [
        12,
        16,
        20,
    ]


def test_the_auditor_takes_the_engines_grids_and_no_finer_one():
    class Header:
        def __init__(self, unit, grid):
            self.unit, self.grid = unit, grid

    for name in ("record", "person", "client"):
        stated = StatedGrid(**vars(unit_named(name).grid))
        assert judged.too_fine(Header(unit_named(name), stated)) == []
        assert judged.grid_notes(Header(unit_named(name), stated)) == ()
        assert judged.grid_notes(Header(unit_named(name), None)) == (judged.NOT_STATED,)
        for what, most in vars(stated).items():
            finer = StatedGrid(**{**vars(stated), what: most + 1})
            (reason,) = judged.too_fine(Header(unit_named(name), finer))
            assert f"{most + 1} significant bits for {what}" in reason
    assert unit_named("none").grid is None


def test_the_bits_that_a_choice_could_tell_are_counted():
    low = np.array([1.0, 1.0, -1.0])
    high = np.array([1.0, 1.0 + 2.0**-10, -1.0])
    # One coordinate with two neighbouring points: one bit.
    assert judged.choices(low, high, 11) == pytest.approx(1.0)
    assert judged.choices(low, low, 11) == 0.0


def test_a_number_that_is_no_number_keeps_its_bits_beside_others_that_are():
    # With its low bits cut off, this one would be infinity.
    odd = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    kept = on_grid(torch.cat([torch.ones(3), odd]), 12)
    assert kept[:3].tolist() == [1.0, 1.0, 1.0]
    assert kept[3:].isnan().all()
