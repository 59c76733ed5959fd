"""One table of noised releases, fed by the evidence of queries and by that of whole rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.shared.noise_table import NoiseTable, of_queries, of_rounds
from audit.reading.bundle import open_bundle
from tests.audit.synthetic_client_run import ClientSettings, build_client_run
from tests.audit.synthetic_run import Settings, build_run, rewrite_round

# Blocks of 2 and 1 coordinates; client 7 in both rounds, client 3 in the first alone.
TABLE = NoiseTable(
    round=np.array([0, 0, 1]),
    client=np.array([3, 7, 7]),
    noise_multiplier=np.array([2.0, 2.0, 1.0]),
    squares=np.array([[1.0, 0.5], [2.0, 0.25], [4.0, 0.125]]),
    noised=np.array([[2, 1], [2, 1], [2, 0]]),
    step=np.array([0, 0, 0]),
    clean=np.zeros(3),
)


def shown(portions):
    return [(one.name, one.total, one.degrees) for one in portions]


def test_portions_are_sums_of_rows_and_know_how_many_numbers_they_have():
    assert shown([TABLE.all_together("all")]) == [("all", 7.875, 8.0)]
    assert shown(TABLE.by_block(("a", "b"), "block {}")) == [
        ("block a", 7.0, 6.0),
        ("block b", 0.875, 2.0),
    ]
    assert shown(TABLE.by(TABLE.client, "client {}".format)) == [
        ("client 3", 1.5, 3.0),
        ("client 7", 6.375, 5.0),
    ]
    assert [one[2] for one in shown(TABLE.by(TABLE.noise_multiplier, str))] == [2.0, 6.0]


def test_a_block_that_never_carries_noise_is_no_portion():
    bare = replace(TABLE, noised=np.array([[2, 0]] * 3))
    assert [one.name for one in bare.by_block(("a", "b"), "{}")] == ["a"]


def test_every_query_of_every_client_is_a_row(tmp_path):
    settings = Settings()
    bundle = open_bundle(build_run(tmp_path / "run", settings))
    reasons: list[str] = []
    table = of_queries(bundle, reasons)
    assert not reasons
    assert len(table) == sum(sum(item.queries) for item in bundle.readable_ledger.rounds)
    assert table.sample_rows().shape == (len(table), len(bundle.layout().sample_coordinates))
    # In units of what was charged: within five deviations of 1.
    whole = table.all_together("all")
    assert whole.total / whole.degrees == pytest.approx(1.0, abs=5 * (2 / whole.degrees) ** 0.5)


@pytest.mark.parametrize("noise_added_by", ["server", "clients"])
def test_every_round_is_a_row_and_every_upload_that_carries_noise(noise_added_by, tmp_path):
    settings = ClientSettings(noise_added_by=noise_added_by)
    bundle = open_bundle(build_client_run(tmp_path / "run", settings))
    sums, uploads = of_rounds(bundle, [])
    assert sums.round.tolist() == list(range(bundle.header.rounds))
    participations = sum(len(item.clients) for item in bundle.readable_ledger.rounds)
    assert len(uploads) == (participations if noise_added_by == "clients" else 0)
    for kind in (sums, uploads) if len(uploads) else (sums,):
        whole = kind.all_together("all")
        room = 5 * (2 / whole.degrees) ** 0.5
        assert whole.total / whole.degrees == pytest.approx(1.0, abs=room)


def shift(arrays, name):
    """Take from one sum of squares what is added to another: their total stays the same."""
    sums = arrays[name].reshape(-1, arrays[name].shape[-1])
    moved = sums[0, 0] + 1.0
    sums[0, 0] -= moved
    sums[1 % len(sums), -1] += moved


def test_a_negative_sum_of_squares_is_a_reason_although_the_total_fits(tmp_path):
    run = build_run(tmp_path / "run", Settings())
    rewrite_round(run, 1, lambda arrays: shift(arrays, "noise_sum_squares"))
    reasons: list[str] = []
    of_queries(open_bundle(run), reasons)
    assert reasons == ["round 1: a sum of squares is negative"]


@pytest.mark.parametrize(
    ("noise_added_by", "name"),
    [
        ("server", "noise_sum_squares"),
        ("clients", "noise_sum_squares"),
        ("clients", "upload_noise_sum_squares"),
    ],
)
def test_a_negative_sum_of_squares_of_a_round_is_a_reason(noise_added_by, name, tmp_path):
    settings = ClientSettings(noise_added_by=noise_added_by)
    run = build_client_run(tmp_path / "run", settings)
    rewrite_round(run, 0, lambda arrays: shift(arrays, name))
    reasons: list[str] = []
    of_rounds(open_bundle(run), reasons)
    assert reasons == ["round 0: a sum of squares is negative"]
