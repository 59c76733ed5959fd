"""One table of noised releases, fed by the evidence of queries and by that of whole rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audit.checks.shared import noise_table
from audit.checks.shared.noise_table import (
    NoiseTable,
    coordinate_degrees,
    of_queries,
    of_rounds,
    rounds_with_choices,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import open_bundle
from audit.reading.ledger_lines import Sparsification
from tests.audit.checks.opened import changed
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


def test_coordinates_are_found_again_up_to_a_number_and_no_further(of_clients, monkeypatch):
    most = noise_table.MOST_COORDINATES
    many = Sparsification("random", most + 1, 170, 0)
    with pytest.raises(UnverifiedError, match="too many coordinates"):
        next(rounds_with_choices(of_clients, many))
    monkeypatch.setattr(noise_table, "MOST_COORDINATES", 340)
    index, _, chosen = next(rounds_with_choices(of_clients, Sparsification("random", 340, 170, 0)))
    assert (index, len(chosen)) == (0, 170)


def test_public_coordinates_need_a_layout_of_tensors(of_clients):
    run = changed(of_clients, header={"sparsification": Sparsification("random", 340, 170, 0)})
    run = replace(run, _layout=replace(of_clients.layout(), kind="heads"))
    with pytest.raises(UnverifiedError, match="not runs of coordinates"):
        of_rounds(run, [])


def test_each_coordinate_is_counted_in_the_rounds_that_release_it(of_clients):
    assert coordinate_degrees(of_clients, 24).tolist() == [24] * 340
    own = changed(of_clients, header={"sparsification": Sparsification("local-top", 340, 170, 0)})
    assert coordinate_degrees(own, 24).tolist() == [24] * 340
    public = changed(of_clients, header={"sparsification": Sparsification("random", 340, 170, 0)})
    degrees = coordinate_degrees(public, 24)
    assert degrees.sum() == 24 * 170
    assert degrees.max() <= 24


def test_rows_are_in_units_of_what_was_charged(of_records):
    evidence = of_records.round_evidence(1)
    table = of_queries(of_records, [])
    rows = table.round == 1
    deviation = 1.5 * 0.5
    assert table.squares[rows].sum() == pytest.approx(
        evidence.noise_sum_squares.sum() / deviation**2
    )
    assert table.samples[1] == pytest.approx(evidence.noise_sample / 1.5)
    clean = np.sqrt(evidence.clean_sum_squares.sum(axis=2)) * 12.0 / deviation
    assert table.clean[rows] == pytest.approx(clean.ravel())
    assert table.largest[rows] == pytest.approx(evidence.noise_largest.ravel() / 1.5)
    assert table.step[rows].tolist() == [0, 1, 2] * 3
    assert table.client[rows].tolist() == np.repeat(evidence.clients, 3).tolist()


def test_uploads_are_in_units_of_their_share(noised_by_clients):
    evidence = noised_by_clients.update_round(2)
    sums, uploads = of_rounds(noised_by_clients, [])
    rows, many = uploads.round == 2, len(evidence.clients)
    deviation = 1.5 * 0.5
    shares = evidence.upload_noise_sum_squares * many / deviation**2
    assert uploads.squares[rows] == pytest.approx(shares)
    clipped = evidence.clipped_norms * many**0.5 / deviation
    assert uploads.clean[rows] == pytest.approx(clipped)
    assert uploads.largest[rows] == pytest.approx(evidence.upload_noise_largest * many**0.5 / 1.5)
    assert uploads.silent[rows].tolist() == evidence.upload_noise_silent.tolist()
    row = sums.round == 2
    assert sums.client[row].tolist() == [-1]
    assert sums.squares[row][0] == pytest.approx(evidence.noise_sum_squares / deviation**2)
    assert sums.clean[row][0] == pytest.approx(evidence.clipped_norms.sum() / deviation)
    assert sums.largest[row][0] == pytest.approx(evidence.noise_largest / 1.5)
    assert (sums.gridded, uploads.gridded) == (False, True)


def test_which_sums_were_rounded_to_the_grid_and_which_to_float32(of_records, noised_by_clients):
    queries = of_queries(of_records, [])
    assert (queries.gridded, queries.narrow) == (False, True)
    sums, uploads = of_rounds(noised_by_clients, [])
    assert (sums.gridded, sums.narrow) == (False, False)
    assert (uploads.gridded, uploads.narrow) == (True, False)
    bare = changed(noised_by_clients, header={"grid": None})
    assert of_rounds(bare, [])[1].gridded is False
