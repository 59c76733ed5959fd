"""What is noted of a round that protects clients."""

from __future__ import annotations

import numpy as np
import pytest

from tests import runs


def test_noise_is_told_in_units_of_the_clipping_norm(tmp_path):
    privacy = "{unit: client, clipping_norm: 0.25, noise_multiplier: 2.0, delta: 1.0e-3}"
    spec = runs.small_spec("dp-fedavg", overrides=(f"privacy={privacy}",))
    training, _ = runs.train(spec, tmp_path)
    drawn = []
    for file in sorted((training.run.path / "evidence").glob("round-*.npz")):
        with np.load(file) as arrays:
            drawn.append(arrays["noise_sample"])
    # Within 4 standard errors of σ, of which noise times C would be a sixteenth.
    found = np.concatenate(drawn)
    assert found.size > 200
    assert found.std() == pytest.approx(2.0, rel=4 / np.sqrt(2 * found.size))
