"""Releases, computed again: the uploads' sum and the noise of the key, but for rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit.checks.shared.recomputed import (
    UNIT,
    Recomputed,
    _release,
)
from audit.reading.bundle import Bundle
from audit.recomputed import RecomputedRelease
from tests.audit.checks.opened import changed
from tests.audit.checks.shared.computed_again import ROUND, computed, judge


def _released(**more: Any) -> RecomputedRelease:
    total, noise = np.array([0.5, -0.25, 3.0]), np.array([0.125, 1.0, -1.0])
    given = {
        "released": ((total + noise) / 3.0).astype(np.float32), "total": total, "noise": None,
        "spacing": 0.0, "divisor": 3.0, "bits": None,
    }  # fmt: skip
    return RecomputedRelease(**{**given, **more})


def _shown(bundle: Bundle, noise: np.ndarray) -> Bundle:
    """The run whose layout shows these values of the noise, over C."""
    layout = replace(bundle.layout(), sample_coordinates=np.arange(3))
    sample = {"noise_sample": noise / (bundle.header.clipping_norm or 1.0)}
    return replace(
        changed(bundle, evidence={ROUND: {**sample, "clean_sample": np.zeros(3)}}), _layout=layout
    )


@pytest.mark.parametrize(
    ("more", "right"),
    [
        ({}, True),
        # Two roundings to float32, or the bits that the release is written with, or the grid.
        ({"total": np.array([0.5, -0.25, 3.0]) * (1.0 + 0.5 * UNIT)}, True),
        ({"total": np.array([0.5, -0.25, 3.0]) * (1.0 + 8.0 * UNIT)}, False),
        ({"total": np.array([0.5, -0.25, 3.001])}, False),
        ({"total": np.array([0.5, -0.25, 3.001]), "bits": 8}, True),
        ({"total": np.array([0.5, -0.25, 3.001]), "bits": 16}, False),
        ({"total": np.array([0.5, -0.25, 3.001]), "spacing": 2.1e-3}, True),
        ({"total": np.array([0.5, -0.25, 3.001]), "spacing": 1.9e-3}, False),
        ({"divisor": 3.001}, False),
        ({"total": None}, True),
        ({"released": None}, True),
    ],
)
def test_a_release_is_its_uploads_sum_and_the_keys_noise(
    of_clients: Bundle, more: dict[str, Any], right: bool
) -> None:
    noise = np.array([0.125, 1.0, -1.0])
    run = _shown(of_clients, noise)
    tally = judge(run, computed(run, [], release=_released(noise=noise, **more)))
    wrong = "round 2: its release is not its uploads' sum and the key's noise"
    assert tally.reasons == ([] if right else [wrong])


def test_where_clients_add_the_noise_a_release_is_the_sum_alone(of_clients: Bundle) -> None:
    # They put it on the grid; the server adds what is there already.
    sums = np.array([0.625, 0.75, 2.0])
    alone = _released(total=sums, spacing=1.0)
    assert judge(of_clients, computed(of_clients, [], release=alone)).reasons == []
    further = replace(alone, total=sums + 1e-3)
    assert len(judge(of_clients, computed(of_clients, [], release=further)).reasons) == 1


@pytest.mark.parametrize(
    ("off", "spacing", "bits", "right"),
    [
        (0.0, 0.0, None, True),
        # Two units of the noisy sum, 96, and hardly anything of its parts.
        (191.0 * UNIT, 0.0, None, True),
        (193.0 * UNIT, 0.0, None, False),
        (0.499, 1.0, None, True),
        (0.501, 1.0, None, False),
        (0.99 * 96 * 2.0**-8, 0.0, 8, True),
        (1.01 * 96 * 2.0**-8, 0.0, 8, False),
    ],
)
def test_a_release_may_be_off_by_how_it_was_written(
    of_clients: Bundle, off: float, spacing: float, bits: int | None, right: bool
) -> None:
    release = RecomputedRelease(
        released=np.array([32.0], np.float32), total=np.array([64.0 + off]),
        noise=np.array([32.0]), spacing=spacing, divisor=3.0, bits=bits,
    )  # fmt: skip
    run = _shown(of_clients, np.array([32.0, 0.0, 0.0]))
    layout = replace(run.layout(), sample_coordinates=np.arange(1))
    evidence = replace(
        run.update_round(ROUND),
        noise_sample=np.array([32.0]) / (run.header.clipping_norm or 1.0),
        clean_sample=np.array([64.0]),
    )
    tally = Recomputed()
    _release(replace(run, _layout=layout), "here", release, evidence, tally)
    wrong = ["here: its release is not its uploads' sum and the key's noise"]
    assert tally.reasons == ([] if right else wrong)
