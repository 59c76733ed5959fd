"""One table of noised releases, fed by the evidence of queries and by that of whole rounds.

Rows are also made from evidence that is made up here: every number is worked out.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks.shared import noise_table
from audit.checks.shared.noise_table import (
    NoiseTable,
    _table,
    coordinate_degrees,
    of_queries,
    of_rounds,
    rounds_with_choices,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import open_bundle
from audit.reading.ledger_lines import RoundSpend, Sparsification, Spend
from audit.untrusted.fields import FieldError
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


SIZES = np.array([5, 3])


def spend(index: int, client: int, sigma: float, clip: float, attempt: int = 1) -> Spend:
    return Spend(
        line=2, round=index, client=client, attempt=attempt, records=9, sampling="poisson",
        sampling_rate=0.5, expected_batch_size=4.5, clipping_norm=clip, noise_multiplier=sigma,
        steps=3, queries_per_step=1,
    )  # fmt: skip


def queries(**changes: Any) -> Any:
    """Clients 7 and 4 with three queries each, of two blocks, seen at four coordinates."""
    made = {
        "clients": np.array([7, 4]),
        "noise_sum_squares": np.arange(1.0, 13.0).reshape(2, 3, 2),
        "noise_sample": np.arange(24.0).reshape(2, 3, 4),
        "clean_sum_squares": np.array([[[9.0, 16.0], [0.0, 1.0], [4.0, 0.0]]] * 2),
        "divisor": np.array([[2.0, -3.0, 1.0], [4.0, 5.0, 6.0]]),
        "noise_silent": np.arange(6).reshape(2, 3),
        "noise_largest": np.arange(1.0, 7.0).reshape(2, 3),
    }
    return SimpleNamespace(**{**made, **changes})


# Client 7 pays for twice its norm of 0.5, client 4 for four times its norm of 2.
PAID = (spend(3, 7, 2.0, 0.5), spend(3, 4, 4.0, 2.0))


def run_of(*rounds: Any, spends: tuple[Spend, ...] = PAID, first: int = 3) -> Any:
    return SimpleNamespace(
        readable_ledger=SimpleNamespace(spends=spends),
        layout=lambda: SimpleNamespace(sizes=SIZES),
        all_rounds=lambda: list(enumerate(rounds, start=first)),
    )


def table_of(*rounds: Any, spends: tuple[Spend, ...] = PAID) -> tuple[NoiseTable, list[str]]:
    reasons: list[str] = []
    table = of_queries(run_of(*rounds, spends=spends), reasons)
    assert table is not None
    return table, reasons


def test_a_query_is_told_in_units_of_what_its_own_client_paid() -> None:
    table, reasons = table_of(queries())
    assert reasons == []
    assert len(table) == 6
    assert table.round.tolist() == [3] * 6
    assert table.client.tolist() == [7, 7, 7, 4, 4, 4]
    assert table.step.tolist() == [0, 1, 2, 0, 1, 2]
    # The largest that was charged in the round.
    assert table.noise_multiplier.tolist() == [4.0] * 6
    assert table.squares.tolist() == [
        [1.0, 2.0], [3.0, 4.0], [5.0, 6.0],
        [7 / 64, 8 / 64], [9 / 64, 10 / 64], [11 / 64, 12 / 64],
    ]  # fmt: skip
    assert table.noised.tolist() == [[5, 3]] * 6
    assert table.coordinates.tolist() == [8.0] * 6
    assert table.coordinates.dtype == np.float64
    first, second = np.arange(12.0) / 2.0, np.arange(12.0, 24.0) / 4.0
    (sample,) = table.samples
    assert sample.tolist() == [first.reshape(3, 4).tolist(), second.reshape(3, 4).tolist()]
    # A mean's norm times what it was divided by, over the deviation: 5, 1 and 2.
    assert table.clean.tolist() == [10.0, 3.0, 2.0, 20.0 / 8, 5.0 / 8, 12.0 / 8]
    assert table.silent is not None
    assert table.silent.tolist() == [0, 1, 2, 3, 4, 5]
    assert table.largest is not None
    assert table.largest.tolist() == [0.5, 1.0, 1.5, 1.0, 1.25, 1.5]
    assert (table.gridded, table.narrow) == (False, True)


def test_rounds_of_queries_follow_each_other_and_the_last_attempt_pays() -> None:
    spends = (*PAID, spend(4, 7, 1.0, 0.5), spend(4, 4, 1.0, 2.0), spend(4, 7, 3.0, 0.5, attempt=2))
    table, _ = table_of(queries(), queries(), spends=spends)
    assert table.round.tolist() == [3] * 6 + [4] * 6
    assert table.noise_multiplier.tolist() == [4.0] * 6 + [3.0] * 6
    assert table.squares[6].tolist() == [1.0 / 2.25, 2.0 / 2.25]
    assert [one.shape for one in table.samples] == [(2, 3, 4)] * 2
    assert [(index, rows.shape) for index, rows in table.samples_by_round()] == [
        (3, (6, 4)), (4, (6, 4)),
    ]  # fmt: skip
    assert table.sample_rows().shape == (12, 4)
    assert table.sample_rows()[1].tolist() == [2.0, 2.5, 3.0, 3.5]
    assert dict(table.samples_by_round())[3][1].tolist() == [2.0, 2.5, 3.0, 3.5]


def test_single_coordinates_are_known_of_all_rounds_or_of_none() -> None:
    spends = (*PAID, spend(4, 7, 1.0, 0.5), spend(4, 4, 1.0, 2.0))
    for missing in ("noise_silent", "noise_largest"):
        table, _ = table_of(queries(), queries(**{missing: None}), spends=spends)
        assert (table.silent, table.largest) == (None, None)


@pytest.mark.parametrize(("squares", "negative"), [(0.0, False), (0.5, False), (-1e-300, True)])
def test_a_sum_of_squares_of_a_query_is_not_negative(squares: float, negative: bool) -> None:
    sums = queries().noise_sum_squares
    sums[1, 2, 1] = squares
    said = ["round 3: a sum of squares is negative"] if negative else []
    assert table_of(queries(noise_sum_squares=sums))[1] == said


def test_a_query_without_a_charge_ends_the_table() -> None:
    for spends, client in ((PAID[:1], 4), (PAID[1:], 7), ((), 7)):
        reasons: list[str] = []
        assert of_queries(run_of(queries(), spends=spends), reasons) is None
        assert reasons == [f"round 3: client {client} was never charged"]


def test_a_table_has_one_set_of_samples_a_round() -> None:
    table, _ = table_of(queries())
    less = _table([], 2, (np.zeros((1, 1, 2)),))
    with pytest.raises(ValueError, match="zip"):
        list(less.samples_by_round())
    assert len(list(table.samples_by_round())) == 1


def test_a_table_of_nothing_has_the_types_of_one() -> None:
    empty = _table([], 2)
    assert len(empty) == 0
    assert empty.squares.shape == empty.noised.shape == (0, 2)
    for name in ("round", "client", "noised", "step", "silent"):
        assert getattr(empty, name).dtype == np.int64
    for name in ("noise_multiplier", "squares", "clean", "largest"):
        assert getattr(empty, name).dtype == np.float64
    assert (empty.gridded, empty.narrow, empty.samples) == (False, False, ())
    assert _table([], 2, gridded=True).gridded is True


# Rounds of whole clients.


def paid(index: int, by: str = "server", **changes: Any) -> RoundSpend:
    made = {
        "line": 2, "round": index, "attempt": 1, "sampling": "poisson", "sampling_rate": 0.5,
        "expected_clients": 2.0, "clipping_norm": 0.5, "noise_multiplier": 4.0,
        "noise_added_by": by, "clients": (1, 6), "upload_noise_multiplier": None,
    }  # fmt: skip
    return RoundSpend(**{**made, **changes})


def updates(**changes: Any) -> Any:
    made = {
        "clients": np.array([1, 6]),
        "noise_sum_squares": np.array([8.0, 12.0]),
        "upload_noise_sum_squares": np.array([[2.0, 4.0], [6.0, 8.0]]),
        "clipped_norms": np.array([0.5, 0.25]),
        "noise_sample": np.array([2.0, 4.0, 8.0]),
        "noise_silent": np.int64(5),
        "noise_largest": np.float64(6.0),
        "upload_noise_silent": np.array([3, 4]),
        "upload_noise_largest": np.array([2.0, 10.0]),
        "released": None,
    }
    return SimpleNamespace(**{**made, **changes})


def rounds_of(
    *rounds: Any, by: str = "clients", grid: Any = None, **changes: Any
) -> tuple[NoiseTable, NoiseTable, list[str]]:
    made = {
        "readable_ledger": SimpleNamespace(
            round_spends=tuple(paid(index, by) for index in range(len(rounds)))
        ),
        "layout": lambda: SimpleNamespace(sizes=SIZES, kind="tensor", parameters=8),
        "all_update_rounds": lambda: list(enumerate(rounds)),
        "header": SimpleNamespace(sparsification=None, grid=grid),
    }
    reasons: list[str] = []
    bundle: Any = SimpleNamespace(**{**made, **changes})
    return (*of_rounds(bundle, reasons), reasons)


def test_a_round_s_sum_and_each_upload_are_told_in_units_of_their_noise() -> None:
    sums, uploads, reasons = rounds_of(updates(), updates())
    assert reasons == []
    # The deviation is 4 times 0.5; an upload's share of the variance is one in two.
    assert sums.round.tolist() == [0, 1]
    assert sums.client.tolist() == [-1, -1]
    assert sums.noise_multiplier.tolist() == [4.0, 4.0]
    assert sums.squares.tolist() == [[2.0, 3.0]] * 2
    assert sums.noised.tolist() == [[5, 3]] * 2
    assert sums.clean.tolist() == [0.375] * 2
    assert sums.silent is not None
    assert sums.silent.tolist() == [5, 5]
    assert sums.largest is not None
    assert sums.largest.tolist() == [1.5, 1.5]
    assert sums.step.tolist() == [0, 0]
    assert [one.tolist() for one in sums.samples] == [[[[0.5, 1.0, 2.0]]]] * 2
    assert uploads.round.tolist() == [0, 0, 1, 1]
    assert uploads.client.tolist() == [1, 6, 1, 6]
    assert uploads.noise_multiplier.tolist() == [4.0] * 4
    assert uploads.squares.tolist() == [[1.0, 2.0], [3.0, 4.0]] * 2
    assert uploads.noised.tolist() == [[5, 3]] * 4
    root = 2.0**0.5
    assert uploads.clean.tolist() == pytest.approx([0.25 * root, 0.125 * root] * 2, rel=1e-15)
    assert uploads.silent is not None
    assert uploads.silent.tolist() == [3, 4, 3, 4]
    assert uploads.largest is not None
    assert uploads.largest.tolist() == pytest.approx([root / 2, 2.5 * root] * 2, rel=1e-15)
    assert uploads.samples == ()
    assert (sums.gridded, sums.narrow, uploads.gridded, uploads.narrow) == (False,) * 4
    gridded = rounds_of(updates(), grid=object())
    assert (gridded[0].gridded, gridded[1].gridded) == (False, True)


def test_only_clients_that_add_the_noise_have_rows_of_their_own() -> None:
    assert len(rounds_of(updates(), by="server")[1]) == 0
    # A round of nobody has a sum and no upload, recorded or not.
    nobody = updates(
        clients=np.zeros(0, np.int64), clipped_norms=np.zeros(0), upload_noise_sum_squares=None
    )
    sums, uploads, reasons = rounds_of(nobody)
    assert (len(sums), len(uploads), reasons) == (1, 0, [])
    with pytest.raises(UnverifiedError, match="round 0: the noise of its uploads is not recorded"):
        rounds_of(updates(upload_noise_sum_squares=None))
    with pytest.raises(ValueError, match="zip"):
        rounds_of(updates(upload_noise_sum_squares=np.ones((3, 2))))
    ledger = SimpleNamespace(round_spends=(paid(0),))
    with pytest.raises(UnverifiedError, match="round 1: was never charged"):
        rounds_of(updates(), updates(), readable_ledger=ledger)


@pytest.mark.parametrize("place", [0, 1])
def test_single_coordinates_are_known_of_all_sums_or_of_none(place: int) -> None:
    rounds = [updates(), updates()]
    rounds[place] = updates(noise_silent=None, noise_largest=None)
    sums, uploads, _ = rounds_of(*rounds)
    assert (sums.silent, sums.largest) == (None, None)
    assert uploads.silent is not None
    rounds[place] = updates(upload_noise_silent=None, upload_noise_largest=None)
    sums, uploads, _ = rounds_of(*rounds)
    assert (uploads.silent, uploads.largest) == (None, None)
    assert sums.silent is not None


@pytest.mark.parametrize("name", ["noise_sum_squares", "upload_noise_sum_squares"])
@pytest.mark.parametrize(("squares", "negative"), [(0.0, False), (0.5, False), (-1e-300, True)])
def test_a_sum_of_squares_of_a_round_is_not_negative(
    name: str, squares: float, negative: bool
) -> None:
    sums = getattr(updates(), name)
    sums.flat[-1] = squares
    said = ["round 0: a sum of squares is negative"] if negative else []
    for by in ("server", "clients"):
        assert rounds_of(updates(**{name: sums}), by=by)[2] == said


# Public coordinates: each round releases two of eight.

PUBLIC = Sparsification("random", 8, 2, 0)


def choices(monkeypatch: pytest.MonkeyPatch, *chosen: list[int] | FieldError) -> None:
    def given(_: Any, released: Any) -> Any:
        for one, _released in zip(chosen, released, strict=True):
            if isinstance(one, FieldError):
                raise one
            yield np.array(one)

    monkeypatch.setattr(noise_table, "public_choices", given)


def test_public_coordinates_carry_noise_in_their_blocks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choices(monkeypatch, [0, 4], [4, 7], [4, 1])
    header = SimpleNamespace(sparsification=PUBLIC, grid=None)
    rounds = [updates() for _ in range(3)]
    sums, uploads, _ = rounds_of(*rounds, header=header)
    assert sums.noised.tolist() == [[2, 0], [1, 1], [2, 0]]
    assert uploads.noised.tolist() == [[2, 0]] * 2 + [[1, 1]] * 2 + [[2, 0]] * 2
    bundle: Any = SimpleNamespace(
        header=header,
        layout=lambda: SimpleNamespace(sizes=SIZES, parameters=8),
        all_update_rounds=lambda: list(enumerate(rounds)),
    )
    degrees = coordinate_degrees(bundle, 3)
    assert (degrees.tolist(), degrees.dtype) == ([1, 1, 0, 0, 3, 0, 0, 1], np.int64)
    for kind in (None, Sparsification("local-top", 8, 2, 0)):
        bundle.header = SimpleNamespace(sparsification=kind)
        assert coordinate_degrees(bundle, 3).tolist() == [3] * 8


def test_a_round_whose_coordinates_are_not_told_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    choices(monkeypatch, [0, 4], FieldError("released nothing"))
    bundle: Any = SimpleNamespace(all_update_rounds=lambda: [(5, updates()), (6, updates())])
    found = rounds_with_choices(bundle, PUBLIC)
    index, evidence, chosen = next(found)
    assert (index, evidence.clients.tolist(), chosen.tolist()) == (5, [1, 6], [0, 4])
    with pytest.raises(UnverifiedError, match="round 6: released nothing"):
        next(found)
