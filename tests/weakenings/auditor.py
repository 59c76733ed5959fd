"""Weakenings of what judges a run: `audit/`."""

from __future__ import annotations

from tests.weakenings.weakening import Weakening

WEAKENINGS = (
    Weakening(
        "level-of-canary-bounds-not-shared",
        "audit/canaries/bounds.py",
        "level = (1.0 - CONFIDENCE) / len(guesses)",
        "level = 1.0 - CONFIDENCE",
        "a bound on ε that is called 95 % is wrong in one of seven runs without any leakage",
        ("tests/audit/canaries/test_canaries.py",),
    ),
    Weakening(
        "negative-correlations-of-noise-dropped",
        "audit/statistics/noise_values.py",
        "cross = np.abs(unit[start : start + _CHUNK] @ unit.T)",
        "cross = unit[start : start + _CHUNK] @ unit.T",
        "noise that cancels between two queries passes",
        ("tests/audit/statistics/test_noise_values.py",),
    ),
)
