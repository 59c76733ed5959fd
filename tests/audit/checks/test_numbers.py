"""Levels, tolerances, limits and names that verdicts rest on.

Whoever widens one weakens an audit without an error anywhere, so each stands here a second time:
a change is a decision, for which the text of the check and docs/checks/ are read again.
"""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from scipy.stats import norm

from audit.checks import (
    base,
    canaries,
    disclosure,
    noise,
    participation,
    partition,
    publication,
    randomness,
    reexecution,
    second_moment,
    unaccounted_processing,
    weights,
)
from audit.checks.client import accounting as client_accounting
from audit.checks.client import views as client_views
from audit.checks.loop import accounting as loop_accounting
from audit.checks.loop import promise, sampling, sensitivity, steps
from audit.checks.record import accounting, uploads, views
from audit.checks.shared import (
    adaptive,
    agreement,
    clipping,
    completeness,
    drawn_partition,
    public_coin,
    recomputed,
    single_noise,
    sites,
    tuning,
)

SHA256 = r"[0-9a-f]{64}"

# Shares of the level at which a check raises a false alarm; together they must not exceed it.
SHARES: list[tuple[ModuleType, dict[str, float]]] = [
    (
        noise,
        {
            "_SCALE_SHARE": 0.3,
            "_SINGLE_SHARE": 0.1,
            "_SHAPE_SHARE": 0.1,
            "_PAIR_SHARE": 0.1,
            "_SUM_SHARE": 0.1,
            "_DRIFT_SHARE": 0.05,
            "_SILENT_SHARE": 0.05,
            "_TAIL_SHARE": 0.08,
            "_COORDINATE_SHARE": 0.08,
            "_GRAIN_SHARE": 0.04,
        },
    ),
    (
        participation,
        {
            "_TOTAL": 0.1,
            "_EACH": 0.3,
            "_ROUND_SCATTER": 0.3,
            "_CLIENT_SCATTER": 0.15,
            "_SHARED": 0.15,
        },
    ),
    (participation, {"_EACH_OF_FIXED": 0.5, "_SHARED_OF_FIXED": 0.5}),
]

TABLE: list[tuple[ModuleType, str, Any]] = [
    # Relative to what is compared: how far recorded or claimed numbers may lie from computed ones.
    (agreement, "EXACT", 1e-9),
    (publication, "_EXACT", 1e-9),
    (recomputed, "_SUMMED", 1e-9),
    (clipping, "PRECISELY", 1e-6),
    (clipping, "TOLERANCE", 1e-4),
    (clipping, "PUBLISHED", 1e-3),
    (clipping, "ROUNDING", 1e-2),
    (adaptive, "_TIE", 1e-6),
    (single_noise, "_AGREEMENT", 1e-4),
    (single_noise, "_FLOAT32", 2**-23),
    (second_moment, "_RELATIVE", 1e-4),
    (second_moment, "_MARGIN", 0.5),
    (promise, "_MEASURED", 1e-3),
    (sensitivity, "_SUMS", 2e-3),
    (steps, "_ROUNDING", 2**-21),
    (steps, "_UPDATE", 2e-4),
    (unaccounted_processing, "_EXACT", 5e-6),
    (unaccounted_processing, "_PRINTED", 2e-3),
    # The unit of rounding of float32, with what its products leave out; two of them for a number
    # that was noted in float32.
    (recomputed, "UNIT", 2**-24 + 2**-44),
    (recomputed, "_NOTED", 2**-23 + 2**-43),
    (recomputed, "_FAR", 0.01),
    # Chances of what an honest run does too.
    (canaries, "_FAIR", 1e-6),
    (sampling, "_BY_CHANCE", 1e-6),
    (unaccounted_processing, "_BY_CHANCE", 0.01),
    (reexecution, "_MISSED", 0.05),
    (reexecution, "SHARES", (0.01, 0.05, 0.2)),
    # How much must be seen, or may be missing, for a word about it.
    (noise, "_LEAST_SAMPLE", 8),
    (canaries, "_LEAST_SEEN", 0.5),
    (canaries, "_SHARE_OF_SCORES", 0.1),
    (canaries, "_LEAST_RATIO", 1 / 32),
    (canaries, "_MOST_RATIO", 32.0),
    (publication, "_FEWEST_COUNTS", 4),
    (uploads, "_MOST_UNCERTAIN", 0.01),
    (randomness, "_SEEDS", 4096),
    # What an auditor reads or tries at most.
    (public_coin, "_MOST_BYTES", 16 * 1024**2),
    (weights, "_MOST_BYTES", 16 * 1024**2),
    (sites, "_MOST_BYTES", 256 * 1024**2),
    (sampling, "_MOST_RECORDS", 100_000_000),
    (drawn_partition, "_TRIES", 1000),
    (drawn_partition, "_DEALT", 4_000_000),
    (public_coin, "_CLOCKS", timedelta(minutes=5)),
    # How much of what was found is told.
    (base, "_MOST_REASONS", 6),
    (disclosure, "_MOST_NAMES", 3),
    (completeness, "_MOST_UNREADABLE", 100),
    (accounting, "_MOST_POINTS", 40),
    (client_accounting, "_MOST_POINTS", 40),
    (loop_accounting, "_MOST_POINTS", 40),
    # Names and forms that the trainer's files have.
    (noise, "_AXES", {"clients": 0, "steps": 1, "coordinates": 2}),
    (disclosure, "_FOLDERS", ("evidence", ".unfinished")),
    (loop_accounting, "_KNOWN", {"prv": "pld", "pld": "pld", "rdp": "rdp"}),
    (partition, "_FILE", "evidence/partition.npz"),
    (partition, "_DOMAIN", b"dpfedadamw rows 1\0"),
    (publication, "_METRICS", "metrics.jsonl"),
    (publication, "_TRAFFIC", ("bytes_up", "bytes_down")),
    (publication, "_BY_CHANCE", ("test_accuracy", "validation_accuracy", "learning_rate")),
    (randomness, "_DOMAIN", b"dpfedadamw release key commitment 1\0"),
    (randomness, "_KEY_BYTES", 32),
    (second_moment, "_OTHER_RECURSION", ("dp-fafed", "dp-fedlada")),
    (public_coin, "INTENT", "intent.json"),
    (public_coin, "CHALLENGE", "challenge.json"),
    (public_coin, "_HEX", SHA256),
    (sites, "_HEX", SHA256),
    (weights, "_HEX", SHA256),
    (sites, "_DOMAIN", b"dpfedadamw client statement 1\0"),
    (tuning, "_SELECTIONS", ("none", "private", "public", "unaccounted")),
    (weights, "_CONFIGURATION", "model.json"),
    (weights, "_FLOATS", {"F64": "<f8", "F32": "<f4", "F16": "<f2"}),
    (
        sites,
        "_SIGNED",
        (
            "run",
            "client",
            "round",
            "attempt",
            "broadcast_sha256",
            "upload_sha256",
            "participation",
        ),
    ),
    (client_views, "_RECORD_LEVEL", ("closed_forms", "server_worst_case")),
    (views, "_SERVER_FORM", "s*sqrt(T*K*log(2/delta)*log(2*T/delta))/sigma"),
]


@pytest.mark.parametrize(
    ("module", "name", "value"),
    TABLE,
    ids=[f"{module.__name__.removeprefix('audit.checks.')}{name}" for module, name, _ in TABLE],
)
def test_what_verdicts_rest_on_is_what_this_table_says(module, name, value):
    found = getattr(module, name)
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(("module", "shares"), SHARES)
def test_the_shares_of_a_level_are_those_of_this_table_and_no_more_than_the_level(module, shares):
    assert {name: getattr(module, name) for name in shares} == shares
    assert sum(shares.values()) <= 1.0 + 1e-12


def test_the_reach_of_the_second_moment_is_the_quantile_of_one_in_a_thousand():
    """Two-sided, of a standard normal law: P(|Z| > 3.29053) = 0.001."""
    assert pytest.approx(norm.isf(5e-4), rel=1e-14) == second_moment._REACH
