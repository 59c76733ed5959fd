"""One record replaced by any other moves the real clipped sum by at most twice the norm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedadamw.clipping import engines as clipping
from dpfedadamw.federation.unprotected import record_loss
from dpfedadamw.privacy import oracle
from dpfedadamw.vectors.flat import FlatParameters

CLASSES, WIDTH = 4, 6
magnitudes = st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 30.0, 1e4, 1e12, 1e30, 3e38, np.inf, np.nan])


def step(clipping_norm: float, engine: str, inputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The clipped sum of a batch, float64 [d]."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4))
    chosen = clipping.choose(model, record_loss, clipping_norm, engine=engine)
    flat = FlatParameters(model)
    batch = (torch.from_numpy(inputs.copy()), torch.from_numpy(labels.copy()))
    summed = oracle.clipped_sum(chosen, flat, flat.vector.clone(), batch, 3)
    return summed.total.detach().double().numpy()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["book-keeping", "vmap"])
@given(
    signs=st.lists(st.sampled_from([-1.0, 0.5, 1.0]), min_size=2 * WIDTH, max_size=2 * WIDTH),
    scales=st.tuples(magnitudes, magnitudes),
    labels=st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)),
    others=st.integers(0, 7),
    clipping_norm=st.sampled_from([1e-3, 0.7, 5.0]),
)
@settings(max_examples=60)
def test_a_replaced_record_moves_the_sum_by_at_most_twice_the_clipping_norm(
    engine: str,
    signs: list[float],
    scales: tuple[float, float],
    labels: tuple[int, int],
    others: int,
    clipping_norm: float,
) -> None:
    rng = np.random.default_rng(others)
    inputs = rng.normal(size=(others + 1, WIDTH)).astype(np.float32)
    targets = rng.integers(0, CLASSES, others + 1)
    sums = []
    for which in (0, 1):
        inputs[others // 2] = np.float32(scales[which]) * np.array(
            signs[which * WIDTH : (which + 1) * WIDTH], np.float32
        )
        targets[others // 2] = labels[which]
        sums.append(step(clipping_norm, engine, inputs, targets))
    moved = float(np.linalg.norm(sums[1] - sums[0]))
    # Sums of at most eight float32 vectors of norm C: each coordinate's rounding is below 2^-24 of
    # the sum, so the whole is off by less than 8·2^-24 = 5e-7 of C.
    assert moved <= 2.0 * clipping_norm * (1.0 + 1e-6)
