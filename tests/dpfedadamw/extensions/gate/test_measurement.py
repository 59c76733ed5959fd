"""A job's own noise is measured, refutes what the job states, and is never called a guarantee."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfedadamw.extensions.gate import spending
from dpfedadamw.extensions.gate.measurement import measured
from tests.runs import call

DELTA, SIZE = 1e-5, 4000


def filtered(rng, clip, deviation, size=SIZE, rounds=3):
    """Updates, and what a Gaussian filter makes of them."""
    before = [rng.normal(size=size) for _ in range(rounds)]
    return [
        (one, one * min(1.0, clip / np.linalg.norm(one)) + deviation * rng.normal(size=size))
        for one in before
    ]


def test_the_noise_of_a_correct_filter_is_measured_from_below_and_closely():
    stated = spending.epsilon_of([0.5] * 3, DELTA)
    found = [
        measured(filtered(np.random.default_rng(seed), 5.0, 5.0), DELTA).epsilon
        for seed in range(20)
    ]
    # The clip is 5 and the noise 5, which is 0.5 over twice the clip.
    assert max(found) <= stated
    weak = measured(filtered(np.random.default_rng(1), 5.0, 0.05), DELTA)
    assert weak.epsilon > 0.8 * spending.epsilon_of([0.005] * 3, DELTA)


def test_the_defaults_of_a_published_platform_are_refuted():
    found = measured(filtered(np.random.default_rng(0), 1.0, 4.845e-5, rounds=1), DELTA)
    assert found.length == pytest.approx(1.0, rel=1e-3)
    assert found.epsilon == pytest.approx(8.5e8, rel=0.15)


def _laplace(rng):
    return [(one, one + rng.laplace(size=one.size)) for one, _ in filtered(rng, 1.0, 1.0)]


def _sparse(rng):
    return [
        (one, np.where(rng.random(one.size) < 0.1, one + rng.laplace(size=one.size), 0.0))
        for one, _ in filtered(rng, 1.0, 1.0)
    ]


def _repeated(rng):
    noise = rng.normal(size=SIZE)
    return [(one, one / 100 + noise) for one, _ in filtered(rng, 1.0, 1.0)]


def _not_finite(rng):
    return [(one, np.full(SIZE, np.nan)) for one, _ in filtered(rng, 1.0, 1.0)]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (_laplace, "no Gaussian noise"),
        (_sparse, "no Gaussian noise"),
        (_repeated, "share noise"),
        (_not_finite, "not finite"),
    ],
)
def test_what_is_no_gaussian_noise_of_its_own_gets_no_number(made, why):
    found = measured(made(np.random.default_rng(4)), DELTA)
    assert found.epsilon is None
    assert why in found.why


def test_an_update_without_noise_has_no_finite_epsilon():
    found = measured([(one, one) for one, _ in filtered(np.random.default_rng(5), 1.0, 0.0)], DELTA)
    assert found.epsilon == float("inf")


def test_the_command_refuses_above_its_bound_and_promises_nothing(tmp_path, capsys):
    for folder in ("before", "after"):
        (tmp_path / folder).mkdir()
    for number, pair in enumerate(filtered(np.random.default_rng(6), 5.0, 0.5)):
        for folder, values in zip(("before", "after"), pair, strict=True):
            save_file({"w": values.astype("f4")}, tmp_path / folder / f"{number}.safetensors")
    folders = str(tmp_path / "before"), str(tmp_path / "after")
    asked = ("gate", "measure", *folders, "--delta", "1e-5", "--most", "1000")
    assert call(*asked, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["updates"], found["is_guarantee"]) == (3, False)
    assert call(*asked[:-1], "1") == 1
    assert "no guarantee" in capsys.readouterr().out
    (tmp_path / "after" / "2.safetensors").unlink()
    assert call(*asked) == 2
    assert "of the same names" in capsys.readouterr().err
