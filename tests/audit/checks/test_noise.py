"""The check "noise-scale": each of its tests decides at its share of the false alarms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import base, noise
from audit.checks.shared.noise_table import samples_due
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.ledger_lines import Sparsification
from audit.reading.units import CLIENT, LOOP, RECORD
from audit.statistics.intervals import FALSE_ALARM, chi_square_interval
from tests.audit.checks.opened import changed, judged, says
from tests.audit.synthetic_run import Settings, build_run

NAME = "noise-scale"
SHARES = {
    "scale": noise._SCALE_SHARE,
    "single": noise._SINGLE_SHARE,
    "shape": noise._SHAPE_SHARE,
    "pair": noise._PAIR_SHARE,
    "sum": noise._SUM_SHARE,
    "drift": noise._DRIFT_SHARE,
    "silent": noise._SILENT_SHARE,
    "tail": noise._TAIL_SHARE,
    "coordinate": noise._COORDINATE_SHARE,
    "grain": noise._GRAIN_SHARE,
}


def test_the_shares_of_the_false_alarms_add_up_to_all_of_them() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    assert noise.scale_alpha(5) == pytest.approx(FALSE_ALARM * SHARES["scale"] / 5)
    assert noise.silent_alpha() == pytest.approx(FALSE_ALARM * SHARES["silent"] / 2)
    assert noise.tail_alpha() == pytest.approx(FALSE_ALARM * SHARES["tail"] / 4)
    assert noise.coordinate_alpha() == pytest.approx(FALSE_ALARM * SHARES["coordinate"] / 3)
    assert noise.drift_alpha() == pytest.approx(FALSE_ALARM * SHARES["drift"] / 2)
    assert noise.grain_alpha() == pytest.approx(FALSE_ALARM * SHARES["grain"])


Fake = Callable[[float], Callable[..., Any]]


def spread(name: str) -> Fake:
    """A p-value of one of the three tests of coordinates."""
    usual = {"low": 1.0, "high": 1.0, "shape": 1.0}
    return lambda value: lambda *_: SimpleNamespace(**{**usual, name: value})


def extreme(name: str) -> Fake:
    """A p-value of one of the four tests of largest values."""
    usual = {"too_small": 1.0, "lightness": 1.0, "too_large": 1.0, "shape": 1.0}
    return lambda value: lambda *_: SimpleNamespace(**{**usual, name: value})


@pytest.mark.parametrize(
    ("module", "law", "fake", "alpha", "said"),
    [
        (
            noise,
            "kolmogorov_p_value",
            lambda value: lambda *_: value,
            FALSE_ALARM * SHARES["shape"],
            "the sampled noise does not have the shape of the",
        ),
        (
            noise,
            "coincidence_p_value",
            lambda value: lambda *_: value,
            FALSE_ALARM * SHARES["grain"],
            "values of the noise repeat: it comes from a coarse grid, or a table",
        ),
        (
            noise,
            "halves_p_value",
            lambda value: lambda *_: value,
            FALSE_ALARM * SHARES["drift"] / 2,
            "the noise of the first rounds has a different scale from that of the last",
        ),
        (
            noise,
            "silent_p_values",
            lambda value: lambda silent, _: (np.ones(len(silent)), value),
            FALSE_ALARM * SHARES["silent"] / 2,
            "over the run, some coordinates carry no noise at all",
        ),
        (
            noise,
            "coordinate_p_values",
            spread("low"),
            FALSE_ALARM * SHARES["coordinate"] / 3,
            "some coordinates get too little noise, over all releases of the run",
        ),
        (
            noise,
            "coordinate_p_values",
            spread("high"),
            FALSE_ALARM * SHARES["coordinate"] / 3,
            "some coordinates get too much noise, over all releases of the run",
        ),
        (
            noise,
            "coordinate_p_values",
            spread("shape"),
            FALSE_ALARM * SHARES["coordinate"] / 3,
            "coordinates do not get equal amounts of noise",
        ),
        (
            noise,
            "extremes",
            extreme("too_small"),
            FALSE_ALARM * SHARES["tail"] / 4,
            "the noise has no tails: its largest values are too small",
        ),
        (
            noise,
            "extremes",
            extreme("lightness"),
            FALSE_ALARM * SHARES["tail"] / 4,
            "the noise has no tails: its largest values are too small",
        ),
        (
            noise,
            "extremes",
            extreme("too_large"),
            FALSE_ALARM * SHARES["tail"] / 4,
            "the noise has values that are too large for a Gaussian",
        ),
        (
            noise,
            "extremes",
            extreme("shape"),
            FALSE_ALARM * SHARES["tail"] / 4,
            "the largest values of the noise do not follow a Gaussian's law",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["of_records", "of_clients"])
def test_each_law_fails_below_its_share_and_not_above(
    kind: str,
    module: Any,
    law: str,
    fake: Fake,
    alpha: float,
    said: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = request.getfixturevalue(kind)

    def with_p_value(value: float) -> tuple[str, str]:
        monkeypatch.setattr(module, law, fake(value))
        return says(run, NAME)

    assert with_p_value(alpha)[0] == "PASS"
    verdict, text = with_p_value(alpha * 0.9999)
    assert verdict == "FAIL"
    assert said in text


def test_laws_that_are_given_their_false_alarms_get_their_shares(
    of_records: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, list[Any]] = {}

    def noting(name: str, place: int) -> None:
        real = getattr(noise, name)

        def wrapped(*arguments: Any) -> Any:
            given.setdefault(name, []).append((*arguments[:place], arguments[place]))
            return real(*arguments)

        monkeypatch.setattr(noise, name, wrapped)

    noting("chi_square_interval", 1)
    noting("correlation_threshold", 2)
    noting("any_repeated", 1)
    noting("quantile_verdicts", 1)
    assert says(of_records, NAME)[0] == "PASS"
    # Twelve participations of three queries; in each round 9 queries, of which 36 pairs.
    queries = 36
    alphas = {round(degrees): alpha for degrees, alpha in given["chi_square_interval"]}
    scale = FALSE_ALARM * SHARES["scale"] / (1 + 5 + 3 + 4 + 3)
    assert alphas[queries * 340] == pytest.approx(scale)
    assert alphas[340] == pytest.approx(FALSE_ALARM * SHARES["single"] / queries)
    summed = [alpha for _, alpha in given["chi_square_interval"]]
    assert summed.count(FALSE_ALARM * SHARES["sum"] / 4) == 4
    half = FALSE_ALARM * SHARES["pair"] / 2
    assert given["correlation_threshold"] == [(256, 4 * 36, half)]
    assert [alpha for _, alpha in given["any_repeated"]] == [half]
    assert [alpha for _, alpha in given["quantile_verdicts"]] == [FALSE_ALARM * SHARES["shape"]]


def scaled(bundle: Bundle, index: int, rows: tuple[int, ...], factor: float) -> Bundle:
    squares = bundle.round_evidence(index).noise_sum_squares.copy()
    squares[rows] *= factor
    return changed(bundle, evidence={index: {"noise_sum_squares": squares}})


def test_a_single_query_is_held_to_its_own_interval(of_records: Bundle) -> None:
    low, high = chi_square_interval(340.0, FALSE_ALARM * SHARES["single"] / 36)
    own = float(of_records.round_evidence(2).noise_sum_squares[1, 2].sum())
    ratio = own / 340 / (1.5 * 0.5) ** 2
    small, large = (
        "the noise of a single query is far too small",
        "of a single query is far too large",
    )
    for limit, said in ((low, small), (high, large)):
        inside = 1.0001 if limit == low else 0.9999
        for factor, told in ((inside, False), (1.0 / inside, True)):
            text = says(scaled(of_records, 2, (1, 2), limit / ratio * factor), NAME)[1]
            assert (f"round 2: {said}" in text or said in text) is told


def test_a_block_without_noise_is_told_as_that_and_not_as_too_small(of_records: Bundle) -> None:
    squares = of_records.round_evidence(1).noise_sum_squares.copy()
    squares[0, 0, 2] = 0.0
    run = changed(of_records, evidence={1: {"noise_sum_squares": squares}})
    assert "round 1: a query carries no noise in a whole block" in says(run, NAME)[1]


def test_the_noise_is_asked_for_in_every_client_block_round_and_step(of_records: Bundle) -> None:
    found = judged(of_records, NAME)
    names = set(found.private["variance_ratios"])
    assert names == {
        "all queries",
        *(f"client {client}" for client in range(5)),
        *(f"block layer-{index}" for index in range(3)),
        *(f"round {index}" for index in range(4)),
        *(f"step {index}" for index in range(3)),
    }
    assert found.details["tests"] == len(names)
    half = 100 * found.details["half_width_sigma"]
    assert (found.power or "").startswith(
        f"a noise multiplier off by more than {half:.2f} % over the whole run"
    )


def test_noise_that_depends_on_a_charge_is_judged_by_each_multiplier(of_records: Bundle) -> None:
    spends = tuple(
        replace(spend, noise_multiplier=1.5 if spend.round < 2 else 1.5000001)
        for spend in of_records.readable_ledger.spends
    )
    found = judged(changed(of_records, ledger={"spends": spends}), NAME)
    assert {"noise multiplier 1.5"} <= set(found.private["variance_ratios"])
    assert found.details["tests"] == 16 + 2


@pytest.mark.parametrize("name", ["noise_silent", "noise_largest"])
def test_evidence_that_leaves_out_single_coordinates_is_not_verified(
    of_records: Bundle, name: str
) -> None:
    whole = {index: {name: None} for index in range(4)}
    verdict, text = says(changed(of_records, evidence=whole), NAME)
    assert verdict == "NOT VERIFIED"
    assert text.startswith("the evidence does not say how much noise single coordinates got")
    # It does not help to leave it out of one round.
    assert says(changed(of_records, evidence={1: {name: None}}), NAME)[0] == "NOT VERIFIED"


def test_without_sums_by_coordinate_nothing_is_verified(of_records: Bundle) -> None:
    run = changed(of_records, files={"coordinate_sums": None})
    assert says(run, NAME)[0] == "NOT VERIFIED"


def test_sums_by_coordinate_are_of_all_rounds_and_of_the_same_noise(of_records: Bundle) -> None:
    sums = of_records.coordinate_sums()
    assert sums is not None
    other = changed(of_records, files={"coordinate_sums": replace(sums, rounds=3)})
    assert says(other, NAME) == (
        "NOT VERIFIED",
        "the sums by coordinate are not those of all rounds",
    )
    squares = sums.squares.copy()
    squares[:240] *= 1.01
    unlike = changed(of_records, files={"coordinate_sums": replace(sums, squares=squares)})
    assert "the noise by coordinate is not the noise by block" in says(unlike, NAME)[1]


@pytest.mark.parametrize("kind", ["of_records", "noised_by_clients"])
def test_a_negative_sum_of_squares_is_found(kind: str, request: pytest.FixtureRequest) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    evidence = bundle.evidence_of_round(1, bundle.header.unit)
    said = "round 1: a sum of squares is negative"
    for name in ("noise_sum_squares", "upload_noise_sum_squares"):
        found = getattr(evidence, name, None)
        if found is not None:
            squares = found.copy()
            squares.flat[0] = -1e-9
            verdict, text = says(changed(bundle, evidence={1: {name: squares}}), NAME)
            assert (verdict, said in text) == ("FAIL", True)


def test_a_query_that_was_never_charged_is_found_at_once(of_records: Bundle) -> None:
    spends = of_records.readable_ledger.spends
    run = changed(of_records, ledger={"spends": spends[1:]})
    assert says(run, NAME) == ("FAIL", f"round 0: client {spends[0].client} was never charged")


def test_the_noise_of_uploads_must_be_recorded(noised_by_clients: Bundle) -> None:
    run = changed(noised_by_clients, evidence={1: {"upload_noise_sum_squares": None}})
    assert says(run, NAME) == (
        "NOT VERIFIED",
        "round 1: the noise of its uploads is not recorded",
    )


def test_a_single_upload_or_sum_is_told_with_its_round(
    noised_by_clients: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    evidence = noised_by_clients.update_round(1)
    own = evidence.upload_noise_sum_squares
    assert own is not None

    def said(name: str, array: np.ndarray, factor: float) -> str:
        squares = array.copy()
        first = squares[0] if squares.ndim > 1 else squares
        first *= factor
        run = changed(noised_by_clients, evidence={1: {name: squares}})
        # Of many reasons six are told.
        monkeypatch.setattr(base, "_MOST_REASONS", 50)
        return says(run, NAME)[1]

    for name, array, what in (
        ("upload_noise_sum_squares", own, "an upload"),
        ("noise_sum_squares", evidence.noise_sum_squares, "the sum of updates"),
    ):
        assert f"round 1: {what} carries no noise in a whole block" in said(name, array, 0.0)
        assert f"round 1: {what} carries far too little noise" in said(name, array, 0.2)
        assert f"round 1: {what} carries far too much noise" in said(name, array, 5.0)


# Intervals: their ends belong to them. Of 2^k numbers a ratio at an end can be met to the last bit.


def portion(ratio: float, degrees: float = 1024.0) -> noise.Portion:
    return noise.Portion("all", ratio * degrees, degrees)


def test_a_variance_at_an_end_of_its_interval_lies_in_it() -> None:
    low, high = chi_square_interval(1024.0, noise.scale_alpha(1))

    def said(ratio: float) -> list[str]:
        reasons: list[str] = []
        noise._scale_tests([portion(ratio)], "what was charged", reasons)
        return [reason.split(" of ")[0] for reason in reasons]

    interval = f"[{low:.4f}, {high:.4f}]"
    assert said(low) == said(high) == said(1.0) == []
    assert said(np.nextafter(low, 0.0)) == [f"all: variance below {interval}"]
    assert said(np.nextafter(high, 9.0)) == [f"all: variance above {interval}"]


def table(squares: list[list[float]], noised: list[list[int]]) -> noise.NoiseTable:
    rows = len(squares)
    return noise.NoiseTable(
        round=np.arange(rows),
        client=np.zeros(rows, np.int64),
        noise_multiplier=np.ones(rows),
        squares=np.array(squares),
        noised=np.array(noised),
        step=np.zeros(rows, np.int64),
        clean=np.zeros(rows),
    )


def single(squares: list[list[float]], noised: list[list[int]], most: int | None = None) -> Any:
    reasons: list[str] = []
    kind = noise._Single(table(squares, noised), "silent", "small", "large", most=most)
    noise._single_tests([kind], reasons)
    return reasons


def test_a_single_release_at_an_end_of_its_interval_lies_in_it() -> None:
    low, high = chi_square_interval(1024.0, FALSE_ALARM * SHARES["single"])
    assert single([[1024.0 * low]], [[1024]]) == single([[1024.0 * high]], [[1024]]) == []
    assert single([[1024.0 * np.nextafter(low, 0.0)]], [[1024]]) == ["round 0: small"]
    assert single([[1024.0 * np.nextafter(high, 9.0)]], [[1024]]) == ["round 0: large"]


def test_a_block_of_four_coordinates_or_more_is_never_silent() -> None:
    assert single([[64.0, 0.0]], [[64, 3]]) == []
    assert single([[64.0, 0.0]], [[64, 4]]) == ["round 0: silent"]
    # Nor is a release of three coordinates in all.
    assert single([[0.0]], [[3]]) == ["round 0: silent"]


def test_rounds_of_one_fault_are_named_once_and_so_many_at_most() -> None:
    silent = [[0.0]] * 5
    assert single(silent, [[64]] * 5) == [f"round {n}: silent" for n in range(5)]
    assert single(silent, [[64]] * 5, most=3) == [f"round {n}: silent" for n in range(3)]


@pytest.mark.parametrize(("kind", "first"), [("of_records", True), ("of_clients", False)])
def test_silence_of_a_query_is_told_before_the_scale_and_of_a_sum_after_it(
    kind: str, first: bool, request: pytest.FixtureRequest
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    found = bundle.evidence_of_round(1, bundle.header.unit)
    none = {"noise_sum_squares": np.zeros_like(found.noise_sum_squares)}
    text = says(changed(bundle, evidence={1: none}), NAME)[1]
    silent, small = text.index("carries no noise in a whole block"), text.index("variance below")
    assert (silent < small) is first


def test_sums_over_terms_that_are_independent_have_variance_one() -> None:
    """Twice the same number in place of two has a sum of twice the variance."""
    draw = np.random.default_rng(3).standard_normal

    def said(samples: list[np.ndarray], axes: tuple[str, ...]) -> list[str]:
        reasons: list[str] = []
        noise._sum_tests(samples, axes, reasons)
        return reasons

    axes = ("clients", "steps", "coordinates", "rounds")
    assert said([draw((4, 3, 64)) for _ in range(6)], axes) == []
    for axis, name in enumerate(axes[:3]):
        shape = [4, 4, 64]
        shape[axis] = 1
        alike = [np.broadcast_to(draw(shape), (4, 4, 64)) for _ in range(6)]
        assert f"noise is correlated between {name}" in said(alike, axes)
    again = draw((4, 3, 64))
    assert "noise is correlated between rounds" in said([again] * 6, axes)
    # Rounds of other shapes are not added up.
    assert said([again, again[:2]], ("rounds",)) == []


def test_a_sum_at_an_end_of_its_interval_lies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = [np.ones((1, 4, 2))] * 3

    def said(low: float, high: float) -> list[str]:
        asked: list[tuple[float, float]] = []

        def interval(degrees: float, alpha: float) -> tuple[float, float]:
            asked.append((degrees, alpha))
            return low, high

        monkeypatch.setattr(noise, "chi_square_interval", interval)
        reasons: list[str] = []
        noise._sum_tests(ones, ("clients",), reasons)
        assert asked == [(24.0, FALSE_ALARM * SHARES["sum"])]
        return reasons

    # Sums over one client each: 24 squares of 1.
    assert said(1.0, 9.0) == said(0.0, 1.0) == []
    below, above = float(np.nextafter(1.0, 0.0)), float(np.nextafter(1.0, 2.0))
    assert said(above, 9.0) == said(0.0, below) == ["noise is correlated between clients"]


def test_pairs_are_compared_within_their_group_and_rows_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[int, int, float]] = []

    def threshold(length: int, pairs: int, alpha: float) -> float:
        counted.append((length, pairs, alpha))
        return 0.5

    found = iter([])
    monkeypatch.setattr(noise, "correlation_threshold", threshold)
    monkeypatch.setattr(noise, "largest_correlation", lambda _: next(found))
    groups = [("first alike", np.zeros((4, 6))), ("second alike", np.zeros((3, 6)))]

    def said(*largest: float, again: bool = False) -> tuple[tuple[float, float], list[str]]:
        nonlocal found
        found = iter(largest)
        monkeypatch.setattr(noise, "any_repeated", lambda rows, alpha: again)
        reasons: list[str] = []
        return noise._pair_tests(groups, np.zeros((7, 6)), "alike", reasons), reasons

    assert said(0.25, 0.125) == ((0.5, 0.25), [])
    assert said(0.125, 0.25) == ((0.5, 0.25), [])
    assert said(-0.25, -0.5) == ((0.5, 0.0), [])
    above = float(np.nextafter(0.5, 1.0))
    assert said(0.5, above) == ((0.5, above), ["second alike"])
    assert said(above, 0.5, again=True) == ((0.5, above), ["first alike", "alike"])
    # Six pairs of four and three of three.
    assert set(counted) == {(6, 9, FALSE_ALARM * SHARES["pair"] / 2)}


def test_values_are_alike_by_chance_within_the_rounding_of_float32_to_the_largest_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def p_value(rows: np.ndarray, resolution: float) -> float:
        asked.append(resolution)
        return 1.0

    monkeypatch.setattr(noise, "coincidence_p_value", p_value)
    one = replace(table([[1.0], [1.0]], [[4], [4]]), clean=np.array([3.0, 5.0]))
    for narrow in (True, False):
        noise.granularity(replace(one, narrow=narrow), np.zeros((2, 4)), 0.01, [])
    assert asked == [5.0 * 2.0**-23, 0.0]


def test_along_what_noise_must_not_be_correlated_follows_from_the_unit(
    of_records: Bundle, noised_by_clients: Bundle
) -> None:
    queries = noise._about_queries(of_records, [])
    assert queries is not None
    assert queries.axes == ("clients", "steps", "coordinates", "rounds")
    assert (queries.silence_first, queries.counted) == (True, "queries")
    assert [kind.most for kind in queries.kinds] == [None]
    rounds = noise._about_rounds(noised_by_clients, [])
    assert rounds.axes == ("rounds", "coordinates")
    assert (rounds.silence_first, rounds.counted) == (False, "rounds")
    assert [kind.most for kind in rounds.kinds] == [3, 3]
    assert len(rounds.groups) == 1
    assert rounds.portions[0].name == "noise on the sum"
    names = [one.name for one in rounds.portions]
    assert "noise on the uploads" in names
    assert [name for name in names if name.startswith("noise of client ")] == [
        f"noise of client {client}" for client in range(12)
    ]


@pytest.mark.parametrize("at", ["low", "high"])
def test_a_tail_at_its_share_leaves_an_odd_shape_to_be_told(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = 0.03 / 3

    def said(value: float) -> list[str]:
        values = {"low": 1.0, "high": 1.0, "shape": share * 0.99, at: value}
        monkeypatch.setattr(noise, "coordinate_p_values", lambda *_: SimpleNamespace(**values))
        reasons: list[str] = []
        noise.coordinates((np.ones(3), np.ones(3, np.int64)), 0.03, reasons)
        return reasons

    odd = "coordinates do not get equal amounts of noise"
    much = {"low": "little", "high": "much"}[at]
    beyond = f"some coordinates get too {much} noise, over all releases of the run"
    assert said(share) == said(1.0) == [odd]
    assert said(np.nextafter(share, 0.0)) == [beyond]


def test_a_negative_sum_of_squares_ends_the_question_of_queries(of_records: Bundle) -> None:
    squares = of_records.round_evidence(1).noise_sum_squares.copy()
    squares.flat[0] = -1e-9
    run = changed(of_records, evidence={1: {"noise_sum_squares": squares}})
    assert says(run, NAME) == ("FAIL", "round 1: a sum of squares is negative")


def test_rounds_and_steps_have_portions_from_two_of_them_on() -> None:
    def names(rounds: list[int], steps: list[int]) -> list[str]:
        many = len(rounds)
        one = table([[4.0]] * many, [[4]] * many)
        one = replace(one, round=np.array(rounds), step=np.array(steps))
        return [portion.name for portion in noise._by_time(one, "of ")]

    assert names([3, 3], [0, 0]) == []
    assert names([3, 5], [0, 0]) == ["of round 3", "of round 5"]
    assert names([3, 3], [0, 1]) == ["of step 0", "of step 1"]


def test_of_sums_and_uploads_both_say_what_single_coordinates_got() -> None:
    def kind(silent: Any, many: int = 2) -> Any:
        squares, noised = [[4.0]] * many, [[4]] * many
        return SimpleNamespace(releases=replace(table(squares, noised), silent=silent))

    def sees(*kinds: Any, sums: Any = ()) -> bool:
        return noise._sees_single(SimpleNamespace(by_coordinate=sums, kinds=kinds))

    counted = np.zeros(2, np.int64)
    assert sees(kind(counted)) is sees(kind(counted), kind(counted)) is True
    assert sees(kind(None), kind(counted)) is sees(kind(counted), kind(None)) is False
    assert sees(kind(counted), sums=None) is False


@pytest.mark.parametrize(
    ("sample", "pairs"), [(7, False), (8, True), (0, False), (255, True), (256, True)]
)
def test_pairs_of_queries_are_compared_from_eight_sampled_coordinates_on(
    sample: int, pairs: bool, tmp_path: Path
) -> None:
    found = judged(open_bundle(build_run(tmp_path / "run", Settings(sample=sample))), NAME)
    assert ("largest_pair_correlation" in found.private) is pairs
    few = "; too few sampled coordinates to compare pairs of queries"
    assert ((found.power or "").endswith(few)) is not pairs
    assert found.details["sampled_coordinates"] == sample
    assert ("kolmogorov_p_value" in found.private) is bool(sample)
    assert (found.details["quantiles"] is None) is (sample == 0)
    # Of 340 coordinates the engine samples 256.
    few = noise.TOO_FEW.format(sample, 256)
    said = (found.verdict.value, found.measurement)
    assert said == ("NOT VERIFIED", few) if sample < 256 else found.verdict.value == "PASS"


def test_a_pass_tells_the_comparisons_that_were_made(tmp_path: Path) -> None:
    """Of three parameters all are sampled, which are too few to compare two releases."""
    once = "no noise used twice"
    for sizes, compared in (((4, 4, 4), True), ((1, 1, 1), False)):
        run = build_run(tmp_path / f"run-{sum(sizes)}", Settings(sizes=sizes))
        found = judged(open_bundle(run), NAME)
        assert found.verdict.value == "PASS"
        assert (once in found.measurement) is compared
        assert found.details["sampled_coordinates"] == sum(sizes)


@pytest.mark.parametrize(
    ("header", "parameters", "due"),
    [
        ({"rounds": 1}, 340, 256),
        ({"rounds": 1}, 12, 12),
        # 20 rounds of 10 clients of 5 steps of 2 queries: 400,000 numbers in all.
        ({"rounds": 20}, 10**6, 200),
        ({"rounds": 10**6}, 10**6, 8),
        ({"rounds": 10**6}, 3, 3),
        ({"rounds": 10**4, "unit": CLIENT}, 10**6, 40),
        ({"rounds": 1, "unit": CLIENT, "sparsification": "random"}, 10**6, 100),
        ({"rounds": 1, "unit": CLIENT, "sparsification": "local-top"}, 10**6, 256),
        ({"rounds": 10**6, "unit": LOOP}, 10**6, 256),
        ({"rounds": 1, "unit": LOOP}, 255, 255),
    ],
)
def test_as_many_coordinates_are_due_as_the_engine_and_recorders_sample(
    header: dict[str, Any], parameters: int, due: int
) -> None:
    said: dict[str, Any] = {
        "unit": RECORD, "clients_per_round": 10, "local_steps": 5, "sparsification": None,
    } | header  # fmt: skip
    if kind := said["sparsification"]:
        said["sparsification"] = Sparsification(kind, parameters, 100, 1)
    run: Any = SimpleNamespace(
        header=SimpleNamespace(**said),
        layout=lambda: SimpleNamespace(parameters=parameters),
        readable_ledger=SimpleNamespace(spends=[SimpleNamespace(queries_per_step=2)]),
    )
    assert samples_due(run) == due


def test_the_private_numbers_are_told_by_name(of_records: Bundle, of_clients: Bundle) -> None:
    for run in (of_records, of_clients):
        private = judged(run, NAME).private
        assert set(private) == {
            "variance_ratios", "kolmogorov_p_value", "largest_pair_correlation",
        }  # fmt: skip
        assert 0.0 < float(str(private["kolmogorov_p_value"])) <= 1.0
        assert 0.0 < float(str(private["largest_pair_correlation"])) < 1.0


def test_what_the_finding_counts_is_told_by_name(of_records: Bundle) -> None:
    details = judged(of_records, NAME).details
    assert set(details) == {
        "queries", "coordinates", "sampled_coordinates", "tests", "half_width_sigma", "quantiles",
    }  # fmt: skip
    assert (details["queries"], details["coordinates"]) == (36, 340)
