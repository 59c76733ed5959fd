"""Noise value by value: each test at its share of the false alarms, its laws made up here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import noise
from audit.checks.noise import (
    by_coordinate,
    coordinates,
    drift,
    granularity,
    silence,
    tails,
)
from audit.checks.shared.noise_table import NoiseTable
from audit.errors import UnverifiedError

ALPHA = 0.012


def a_table(rows: int = 4, **changes: Any) -> NoiseTable:
    """Noised sums of two blocks, of two coordinates and of one, each in a round of its own."""
    made = {
        "round": np.arange(rows) + 10,
        "client": np.zeros(rows, np.int64),
        "noise_multiplier": np.ones(rows),
        "squares": np.full((rows, 2), 2.0),
        "noised": np.tile([2, 1], (rows, 1)),
        "step": np.arange(rows) % 2,
        "clean": np.full(rows, 3.0),
        "silent": np.zeros(rows, np.int64),
        "largest": np.ones(rows),
    }
    return NoiseTable(**{**made, **changes})


OF_ROUND = "round {}: some coordinates carry no noise at all"
OF_RUN = "over the run, some coordinates carry no noise at all"


def silent(
    monkeypatch: pytest.MonkeyPatch, each: list[float], together: float, tables: int = 1
) -> list[str]:
    def law(*_: Any) -> tuple[Any, float]:
        return np.array(each), together

    monkeypatch.setattr(noise, "silent_p_values", law)
    reasons: list[str] = []
    silence([a_table(len(each))] * tables, ALPHA, reasons)
    return reasons


def test_a_vector_or_a_run_may_have_so_many_zeros_by_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = 0.5 * ALPHA
    own, below = half / 4, np.nextafter(half / 4, 0.0)
    assert silent(monkeypatch, [own] * 4, half) == []
    assert silent(monkeypatch, [own, below, 1.0, 1.0], 1.0) == [OF_ROUND.format(11)]
    assert silent(monkeypatch, [1.0] * 4, float(np.nextafter(half, 0.0))) == [OF_RUN]
    # A round that is named says it of the run, and three are named.
    assert silent(monkeypatch, [below] * 4, 0.0) == [OF_ROUND.format(n) for n in (10, 11, 12)]
    # Two tables share the false alarms.
    assert silent(monkeypatch, [half / 8] * 4, half / 2, tables=2) == []
    assert silent(monkeypatch, [1.0] * 4, float(np.nextafter(half / 2, 0.0)), 2) == [OF_RUN] * 2
    less = float(np.nextafter(half / 8, 0.0))
    assert silent(monkeypatch, [less, 1.0, 1.0, 1.0], 1.0, tables=2) == [OF_ROUND.format(10)] * 2


def test_zeros_are_expected_of_each_vector_s_own_size_and_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def expected(coordinates: Any, clean: Any, *, gridded: bool = False) -> Any:
        asked.append((coordinates.tolist(), clean.tolist(), gridded))
        return np.full(len(clean), 7.0)

    def law(silent: Any, expected: Any) -> tuple[Any, float]:
        asked.append((silent.tolist(), expected.tolist()))
        return np.ones(len(silent)), 1.0

    monkeypatch.setattr(noise, "zeros_expected", expected)
    monkeypatch.setattr(noise, "silent_p_values", law)
    counted = a_table(2, silent=np.array([5, 6]))
    # One that was not recorded is passed over, and not what follows it.
    silence([a_table(silent=None), counted, a_table(1, gridded=True)], ALPHA, [])
    assert asked == [
        ([3.0, 3.0], [3.0, 3.0], False),
        ([5, 6], [7.0, 7.0]),
        ([3.0], [3.0], True),
        ([0], [7.0]),
    ]


SMALL = "the noise has no tails: its largest values are too small"
LARGE = "the noise has values that are too large for a Gaussian"
SHAPE = "the largest values of the noise do not follow a Gaussian's law"


@pytest.mark.parametrize(
    ("low", "said"),
    [
        (("too_small",), [SMALL]),
        (("lightness",), [SMALL]),
        (("too_small", "lightness"), [SMALL]),
        (("too_large",), [LARGE]),
        (("shape",), [SHAPE]),
        (("too_large", "shape"), [LARGE]),
        (("too_small", "too_large"), [SMALL, LARGE]),
        (("lightness", "shape"), [SMALL, SHAPE]),
    ],
)
@pytest.mark.parametrize("tables", [1, 2])
def test_the_largest_values_are_as_large_as_chance_has_them(
    monkeypatch: pytest.MonkeyPatch, tables: int, low: tuple[str, ...], said: list[str]
) -> None:
    share = ALPHA / 4 / tables

    def told(value: float) -> list[str]:
        names = ("too_small", "lightness", "too_large", "shape")
        found = {name: value if name in low else share for name in names}
        monkeypatch.setattr(noise, "extremes", lambda *_: SimpleNamespace(**found))
        reasons: list[str] = []
        tails([a_table()] * tables, ALPHA, reasons)
        return reasons

    assert told(share) == []
    assert told(float(np.nextafter(share, 0.0))) == said * tables


def test_a_table_without_its_largest_values_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def law(largest: Any, of: Any) -> Any:
        asked.append((largest.tolist(), of.tolist()))
        return SimpleNamespace(too_small=1.0, lightness=1.0, too_large=1.0, shape=1.0)

    monkeypatch.setattr(noise, "extremes", law)
    tails([a_table(largest=None), a_table(2, largest=np.array([4.0, 5.0]))], ALPHA, [])
    assert asked == [([4.0, 5.0], [3.0, 3.0])]


def run_with(squares: list[float] | None, **changes: Any) -> Any:
    """A run of three rounds, of three coordinates in blocks of two and of one."""
    sums = None
    if squares is not None:
        own = {"rounds": 3, "chosen": False, "squares": np.array(squares)}
        sums = SimpleNamespace(**{**own, **changes.pop("sums", {})})
    sizes = changes.pop("sizes", np.array([2, 1]))
    layout = SimpleNamespace(of_coordinate=np.array([0, 0, 1]), sizes=sizes)
    made = {
        "coordinate_sums": lambda: sums,
        "layout": lambda: layout,
        "readable_ledger": SimpleNamespace(rounds_to_finish=3),
        "header": SimpleNamespace(sparsification=changes.pop("sparsification", None)),
    }
    return SimpleNamespace(**{**made, **changes})


# Four vectors, whose blocks add up to 8 each.
EVEN = [4.0, 4.0, 8.0]


def found_in(run: Any, table: NoiseTable | None = None) -> tuple[Any, list[str]]:
    reasons: list[str] = []
    found = by_coordinate(run, a_table() if table is None else table, reasons)
    return None if found is None else tuple(one.tolist() for one in found), reasons


def test_squares_by_coordinate_are_those_of_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "coordinate_degrees", lambda _, queries: np.array([queries, 1, 0]))
    assert found_in(run_with(None)) == (None, [])
    # A coordinate that never got noise has no part in it.
    assert found_in(run_with(EVEN)) == (([4.0, 4.0], [4, 1]), [])
    with pytest.raises(UnverifiedError, match="not those of all rounds"):
        found_in(run_with(EVEN, sums={"rounds": 2}))
    # Sums of coordinates that were chosen to be looked at are not held against blocks.
    chosen = run_with([1.0, 2.0], sums={"chosen": True})
    assert found_in(chosen) == (([1.0, 2.0], [4, 4]), [])
    for kind, kept in (("released-top", ([], [])), ("random", ([4.0, 4.0], [4, 1]))):
        run = run_with(EVEN, sparsification=SimpleNamespace(kind=kind))
        _, degrees = by_coordinate(run, a_table(), []) or (None, np.zeros(0))
        assert degrees.dtype == np.int64
        assert found_in(run) == (kept, [])


UNLIKE = ["the noise by coordinate is not the noise by block"]


def test_coordinates_add_up_to_their_blocks_as_float32_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise, "coordinate_degrees", lambda _, queries: np.full(3, queries))
    # A ten-thousandth of the larger one, and a ten-thousandth besides.
    for off, said in ((8.9e-4, []), (9.1e-4, UNLIKE), (-8.9e-4, []), (-9.1e-4, UNLIKE)):
        assert found_in(run_with([4.0 + off, 4.0, 8.0]))[1] == said
        assert found_in(run_with([4.0, 4.0, 8.0 + off]))[1] == said
    # Of the larger of two, whichever that is.
    none = a_table(squares=np.zeros((4, 2)))
    for amount, said in ((1.00009e-4, []), (1.0002e-4, UNLIKE)):
        assert found_in(run_with([amount, 0.0, 0.0]), none)[1] == said
        table = a_table(2, squares=np.array([[amount, 0.0], [0.0, 0.0]]))
        assert found_in(run_with([0.0, 0.0, 0.0]), table)[1] == said
    # Just at it: b = 1e-4 b + 1e-4, in floats.
    at = 1e-4
    for _ in range(20):
        at = 1e-4 * at + 1e-4
    assert at == 1e-4 * at + 1e-4
    assert found_in(run_with([at, 0.0, 0.0]), none)[1] == []
    # A block may have no coordinate at all.
    empty = a_table(squares=np.array([[2.0, 2.0, 0.0]] * 4), noised=np.array([[2, 1, 0]] * 4))
    assert found_in(run_with(EVEN, sizes=np.array([2, 1, 0])), empty)[1] == []


LOW = "some coordinates get too little noise, over all releases of the run"
HIGH = "some coordinates get too much noise, over all releases of the run"
UNEQUAL = "coordinates do not get equal amounts of noise"


@pytest.mark.parametrize(
    ("low", "said"),
    [
        (("low",), [LOW]),
        (("high",), [HIGH]),
        (("shape",), [UNEQUAL]),
        (("low", "high"), [LOW, HIGH]),
        (("low", "shape"), [LOW]),
        (("high", "shape"), [HIGH]),
        (("low", "high", "shape"), [LOW, HIGH]),
    ],
)
def test_every_coordinate_gets_as_much_noise_as_the_others(
    monkeypatch: pytest.MonkeyPatch, low: tuple[str, ...], said: list[str]
) -> None:
    share = ALPHA / 3
    given = np.array([1.0, 2.0]), np.array([3, 4])

    def told(value: float) -> list[str]:
        found = {name: value if name in low else share for name in ("low", "high", "shape")}

        def law(squares: Any, degrees: Any) -> Any:
            assert (squares, degrees) == (given[0], given[1])
            return SimpleNamespace(**found)

        monkeypatch.setattr(noise, "coordinate_p_values", law)
        reasons: list[str] = []
        coordinates(given, ALPHA, reasons)
        return reasons

    assert told(share) == []
    assert told(float(np.nextafter(share, 0.0))) == said


def test_no_coordinate_at_all_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        noise, "coordinate_p_values", lambda *_: pytest.fail("was asked of nothing")
    )
    reasons: list[str] = []
    coordinates((np.zeros(0), np.zeros(0, np.int64)), ALPHA, reasons)
    assert reasons == []


def test_values_that_repeat_are_told_below_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def told(value: float, table: NoiseTable) -> list[str]:
        def law(rows: Any, resolution: float) -> float:
            asked.append(resolution)
            return value

        monkeypatch.setattr(noise, "coincidence_p_value", law)
        reasons: list[str] = []
        granularity(table, np.ones((2, 3)), ALPHA, reasons)
        return reasons

    narrow = a_table(2, narrow=True, clean=np.array([3.0, 0.5]))
    assert told(ALPHA, narrow) == []
    (said,) = told(float(np.nextafter(ALPHA, 0.0)), a_table())
    assert said.startswith("values of the noise repeat: ")
    # One unit in the last place of float32, of the longest sum; a sum of nothing has none.
    told(1.0, a_table(2, narrow=True, clean=np.array([0.25, 0.5])))
    told(1.0, a_table(0, narrow=True))
    assert asked == [3.0 / 8_388_608, 0.0, 0.5 / 8_388_608, 0.0]


def test_halves_of_rounds_and_of_steps_have_one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def told(*values: float) -> list[str]:
        left = list(values)

        def law(squares: Any, degrees: Any) -> float:
            asked.append((squares.tolist(), degrees.tolist()))
            assert squares.dtype == degrees.dtype == np.float64
            return left.pop(0)

        monkeypatch.setattr(noise, "halves_p_value", law)
        reasons: list[str] = []
        squares = np.array([[1.0, 0.5], [2.0, 0.0], [4.0, 0.0], [8.0, 0.0]])
        rounds = np.array([7, 7, 5, 9])
        drift(a_table(squares=squares, round=rounds, noised=np.array([[2, 1]] * 3 + [[5, 1]])),
              ALPHA, reasons)  # fmt: skip
        return reasons

    half, less = 0.5 * ALPHA, float(np.nextafter(0.5 * ALPHA, 0.0))
    assert told(half, half) == []
    said = "the noise of the first {0} has a different scale from that of the last"
    assert told(less, half) == [said.format("rounds")]
    assert told(half, less) == [said.format("steps")]
    # In the order of rounds 5, 7 and 9, and of steps 0 and 1.
    assert asked[:2] == [([4.0, 3.5, 8.0], [3.0, 6.0, 6.0]), ([5.5, 10.0], [6.0, 9.0])]
