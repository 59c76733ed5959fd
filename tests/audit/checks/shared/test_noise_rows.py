"""Rows of the table of noise, from evidence that is made up here: every number is worked out."""

from __future__ import annotations

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
from audit.reading.ledger_lines import RoundSpend, Sparsification, Spend
from audit.untrusted.fields import FieldError

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
