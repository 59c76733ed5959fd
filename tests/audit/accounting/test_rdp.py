"""Moments of batches of a fixed size: the closed form is the integral, and takes no memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from audit.accounting import rdp
from audit.accounting.rdp import rdp_of_fixed_size_step


@pytest.mark.parametrize("power", [2, 4, 32, 256])
@pytest.mark.parametrize("width", [8.0, 12.0, 20.0])
def test_the_closed_form_of_far_apart_gaussians_is_the_integral(
    width: float, power: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = rdp._log_central_moment.__wrapped__
    integral = moment(1.0 / width, power)
    monkeypatch.setattr(rdp, "_WIDE", 1.0)
    closed = moment(1.0 / width, power)
    assert closed == pytest.approx(integral, rel=1e-13)


def test_next_to_no_noise_costs_much_and_is_computed_in_little_memory() -> None:
    """As an integral the moments of order 256 would ask for terabytes."""
    found = [rdp_of_fixed_size_step(0.016, sigma, (2.0, 256.0)) for sigma in (0.04, 1e-4, 1e-9)]
    assert all(np.isfinite(one).all() for one in found)
    assert all((one < other).all() for one, other in pairwise(found))
