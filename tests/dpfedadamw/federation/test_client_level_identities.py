"""What two client-level systems share: with a part switched off, the one is the other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.dpfedadamw.federation.client_worlds import play


def differ(one: str, other: str, path, **settings) -> float:
    """Largest difference between two systems' parameters over three rounds."""
    (path / "one").mkdir(parents=True)
    (path / "other").mkdir()
    first, _, _ = play(one, path / "one", **settings)
    second, _, _ = play(other, path / "other", **settings)
    return max(np.abs(a - b).max() for a, b in zip(first, second, strict=True))


WHOLE = "sparsification: {kind: %s, fraction: 1}"
SAME = [
    *(("{name: fed-smp, %s}" % (WHOLE % kind), "{name: dp-fedavg}") for kind in
      ("random", "released-top")),
    ("{name: dp-fedsam-randk, %s}" % (WHOLE % "random"), "{name: dp-fedsam}"),
    *(("{name: dp-fedsam-topk, %s}" % (WHOLE % kind), "{name: dp-fedsam}") for kind in
      ("local-top", "released-top")),
    ("{name: dp-fedsam-topk, sam: {radius: 0}, %s}" % (WHOLE % "local-top"), "{name: dp-fedavg}"),
    ("{name: blur, blur: {weight: 0}}", "{name: dp-fedavg}"),
    ("{name: blur, blur: {bound: 100}}", "{name: dp-fedavg}"),
    ("{name: blurs, %s}" % (WHOLE % "local-top"), "{name: blur}"),
    ("{name: blurs, blur: {weight: 0}, %s}" % (WHOLE % "local-top"), "{name: dp-fedavg}"),
]  # fmt: skip
DIFFERENT = [
    ("{name: fed-smp, sparsification: {fraction: 0.5}}", "{name: dp-fedavg}"),
    ("{name: fed-smp}", "{name: fed-smp, sparsification: {kind: released-top}}"),
    ("{name: dp-fedsam-topk}", "{name: dp-fedsam}"),
    ("{name: dp-fedsam-topk}", "{name: dp-fedsam-randk}"),
    ("{name: blur, blur: {weight: 0.8, bound: 0.1}}", "{name: dp-fedavg}"),
    ("{name: blurs}", "{name: blur}"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("one", "other"), SAME)
def test_switched_off_parts_leave_the_simpler_system(one, other, tmp_path):
    # Bit for bit: the same operations in the same order, and the same streams of noise.
    assert differ(one, other, tmp_path) == 0.0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_parts_that_are_on_make_a_difference(one, other, tmp_path):
    assert differ(one, other, tmp_path) > 1e-4


def test_blur_bounds_nothing_in_a_single_step(tmp_path):
    """The penalty and its gradient are 0 where a round begins, so K = 1 is dp-fedavg."""
    blur = "{name: blur, blur: {weight: 5, bound: 0}}"
    assert differ(blur, "{name: dp-fedavg}", tmp_path / "once", steps=1) == 0.0
    assert differ(blur, "{name: dp-fedavg}", tmp_path / "twice", steps=2) > 1e-4


def test_the_first_round_of_released_top_is_that_of_random_but_for_the_scale(tmp_path):
    section = "{name: fed-smp, sparsification: {kind: %s, fraction: 0.5}}"
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    _, top, _ = play(section % "released-top", tmp_path / "one")
    _, random, _ = play(section % "random", tmp_path / "other")
    assert top.releases[0].kept.tolist() == random.releases[0].kept.tolist()
    assert top.releases[1].kept.tolist() != random.releases[1].kept.tolist()
    norms = zip(top.releases[0].raw_norms, random.releases[0].raw_norms, strict=True)
    assert all(second == pytest.approx(2 * first, rel=1e-12) for first, second in norms)
