"""Check "noise-scale": is the noise that was really added as large as the ledger says?

One law for all units, on the table of noised releases: scale in both directions (over all, and by
client, block, round, step and noise multiplier), every single release and coordinate, shape and
tails, independence, and whether values repeat. What is released differs: an answer to a query, or a
round's sum of updates and its uploads.

The tests of single values come first: what drowns in sums over a block, a client or a run. Each
test takes the false alarms that it may raise and adds to the reasons what a correct run would show
no oftener than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb

import numpy as np

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    conclude,
    listed,
    register,
)
from audit.checks.shared.noise_table import (
    NoiseTable,
    Portion,
    coordinate_degrees,
    of_queries,
    of_rounds,
    samples_due,
)
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.ledger_lines import GAUSSIAN
from audit.reading.units import LOOP
from audit.statistics.intervals import (
    FALSE_ALARM,
    chi_square_interval,
    correlation_threshold,
    kolmogorov_p_value,
    sigma_half_width,
)
from audit.statistics.noise_values import (
    any_repeated,
    coincidence_p_value,
    coordinate_p_values,
    extremes,
    halves_p_value,
    largest_correlation,
    quantile_verdicts,
    silent_p_values,
    zeros_expected,
)
from audit.untrusted.archives import Floats, Integers
from audit.verdict import Verdict

NOT_RECORDED = (
    "the evidence does not say how much noise single coordinates got: it was not checked whether "
    "some have none, or whether tails are cut off"
)
TOO_FEW = (
    "the noise itself is recorded at {} coordinates and not at {}: its shape, and whether it is "
    "used twice, were not tested as they should be"
)
# Sums of float32 norms and of float32 squares are a few parts in a million apart.
_AGREEMENT = 1e-4
_FLOAT32 = 2.0**-23


def silence(tables: Sequence[NoiseTable], alpha: float, reasons: list[str]) -> None:
    """No vector may have more coordinates without noise than rounding leaves."""
    for table in tables:
        if table.silent is None:
            continue
        expected = zeros_expected(table.coordinates, table.clean, gridded=table.gridded)
        each, together = silent_p_values(table.silent, expected)
        share = 0.5 * alpha / len(tables)
        rounds = dict.fromkeys(table.round[each < share / len(table)].tolist())
        reasons.extend(
            f"round {index}: some coordinates carry no noise at all" for index in list(rounds)[:3]
        )
        if together < share and not rounds:
            reasons.append("over the run, some coordinates carry no noise at all")


def tails(tables: Sequence[NoiseTable], alpha: float, reasons: list[str]) -> None:
    """The largest noise of each vector must be as large as chance has it, and not larger."""
    for table in tables:
        if table.largest is None:
            continue
        found = extremes(table.largest, table.coordinates)
        share = alpha / (4 * len(tables))
        if found.too_small < share or found.lightness < share:
            reasons.append("the noise has no tails: its largest values are too small")
        if found.too_large < share:
            reasons.append("the noise has values that are too large for a Gaussian")
        elif found.shape < share:
            reasons.append("the largest values of the noise do not follow a Gaussian's law")


def by_coordinate(
    bundle: Bundle, table: NoiseTable, reasons: list[str]
) -> tuple[Floats, Integers] | None:
    """Sums of squares of all noise at each coordinate that ever got some, and of how many vectors.

    Returns:
        None where an older run has none. No coordinate at all where the last release chooses them:
        the larger a coordinate's noise, the sooner it is chosen again, so that its sum does not
        follow the law of squares of Gaussians.

    Raises:
        UnverifiedError: they are of other rounds than the run has.
    """
    sums, layout = bundle.coordinate_sums(), bundle.layout()
    if sums is None:
        return None
    if sums.rounds != bundle.readable_ledger.rounds_to_finish:
        raise UnverifiedError("the sums by coordinate are not those of all rounds")
    if sums.chosen:
        return sums.squares, np.full(len(sums.squares), len(table), dtype=np.int64)
    blocks = np.bincount(layout.of_coordinate, weights=sums.squares, minlength=len(layout.sizes))
    total = table.squares.sum(axis=0)
    if np.any(np.abs(blocks - total) > _AGREEMENT * np.maximum(blocks, total) + _AGREEMENT):
        reasons.append("the noise by coordinate is not the noise by block")
    sparsification = bundle.header.sparsification
    if sparsification is not None and sparsification.kind == "released-top":
        return np.empty(0), np.empty(0, dtype=np.int64)
    degrees = coordinate_degrees(bundle, len(table))
    noised = degrees > 0
    return sums.squares[noised], degrees[noised]


def coordinates(found: tuple[Floats, Integers], alpha: float, reasons: list[str]) -> None:
    """Every coordinate must get as much noise as the others, over all vectors of the run."""
    if not len(found[0]):
        return
    spread = coordinate_p_values(*found)
    share = alpha / 3
    if spread.low < share:
        reasons.append("some coordinates get too little noise, over all releases of the run")
    if spread.high < share:
        reasons.append("some coordinates get too much noise, over all releases of the run")
    if spread.shape < share and spread.low >= share and spread.high >= share:
        reasons.append("coordinates do not get equal amounts of noise")


def granularity(table: NoiseTable, rows: Floats, alpha: float, reasons: list[str]) -> None:
    """No more of the sampled values may be alike than chance makes."""
    resolution = _FLOAT32 * float(table.clean.max(initial=0.0)) if table.narrow else 0.0
    if coincidence_p_value(rows, resolution) < alpha:
        reasons.append("values of the noise repeat: it comes from a coarse grid, or a table")


def drift(table: NoiseTable, alpha: float, reasons: list[str]) -> None:
    """The scale may not change between the first and the second half of the rounds, or of steps."""
    for what, column in (("rounds", table.round), ("steps", table.step)):
        values, place = np.unique(column, return_inverse=True)
        squares, degrees = (
            np.bincount(place, weights=weights, minlength=len(values)).astype(np.float64)
            for weights in (table.squares.sum(axis=1), table.coordinates)
        )
        if halves_p_value(squares, degrees) < 0.5 * alpha:
            reasons.append(
                f"the noise of the first {what} has a different scale from that of the last"
            )


_LEAST_SAMPLE = 8
# Shares of the false alarms that this check may raise; they add up to 1.
_SCALE_SHARE, _SINGLE_SHARE, _SHAPE_SHARE, _PAIR_SHARE, _SUM_SHARE = 0.3, 0.1, 0.1, 0.1, 0.1
_DRIFT_SHARE, _SILENT_SHARE, _TAIL_SHARE, _COORDINATE_SHARE, _GRAIN_SHARE = (
    0.05,
    0.05,
    0.08,
    0.08,
    0.04,
)
_AXES = {"clients": 0, "steps": 1, "coordinates": 2}


def scale_alpha(tests: int) -> float:
    """False alarms that one of so many tests of the noise's scale may raise."""
    return FALSE_ALARM * _SCALE_SHARE / tests


def silent_alpha() -> float:
    """False alarms that all tests of single vectors for coordinates without noise may raise."""
    return FALSE_ALARM * _SILENT_SHARE / 2


def tail_alpha() -> float:
    """False alarms that one of the four tests of the largest values may raise."""
    return FALSE_ALARM * _TAIL_SHARE / 4


def coordinate_alpha() -> float:
    """False alarms that one of the three tests of sums by coordinate may raise."""
    return FALSE_ALARM * _COORDINATE_SHARE / 3


def drift_alpha() -> float:
    """False alarms that one of the two tests of halves may raise."""
    return FALSE_ALARM * _DRIFT_SHARE / 2


def grain_alpha() -> float:
    """False alarms that the count of values alike may raise."""
    return FALSE_ALARM * _GRAIN_SHARE


def _scale_tests(
    portions: Sequence[Portion], charged: str, reasons: list[str]
) -> tuple[float, dict[str, float]]:
    """Chi-square on the sum of squares of every portion, the first of which is all of the noise.

    Returns:
        The half-width of the first test, and the private ratios by portion.
    """
    alpha = scale_alpha(len(portions))
    ratios = {}
    for portion in portions:
        low, high = chi_square_interval(portion.degrees, alpha)
        ratios[portion.name] = ratio = portion.total / portion.degrees
        if not low <= ratio <= high:
            side = "below" if ratio < low else "above"
            reasons.append(f"{portion.name}: variance {side} [{low:.4f}, {high:.4f}] of {charged}")
    return sigma_half_width(chi_square_interval(portions[0].degrees, alpha)), ratios


@dataclass(frozen=True)
class _Single:
    """Releases that must each carry their noise, and what is said of one that does not.

    Attributes:
        releases: the rows.
        silent, small, large: what is wrong with a row.
        most: rows named of each fault; None for all.
    """

    releases: NoiseTable
    silent: str
    small: str
    large: str
    most: int | None = None


def _single_tests(kinds: Sequence[_Single], reasons: list[str]) -> None:
    """Every single release must carry its noise, in every block worth the name."""
    # The same in every release: all coordinates, or k public ones.
    parameters = float(kinds[0].releases.noised[0].sum())
    count = sum(len(kind.releases) for kind in kinds)
    low, high = chi_square_interval(parameters, FALSE_ALARM * _SINGLE_SHARE / count)
    for kind in kinds:
        squares, noised = kind.releases.squares, kind.releases.noised
        ratio = squares.sum(axis=1) / parameters
        # A block of few coordinates may be all zero after rounding to the grid, if rarely.
        silent = ((squares == 0.0) & (noised >= 4)).any(axis=1) | (ratio == 0.0)
        for faulty, text in (
            (silent, kind.silent),
            (~silent & (ratio < low), kind.small),
            (~silent & (ratio > high), kind.large),
        ):
            rounds = kind.releases.round[faulty][: kind.most]
            reasons.extend(f"round {index}: {text}" for index in dict.fromkeys(rounds.tolist()))


def _sum_tests(samples: Sequence[Floats], axes: Sequence[str], reasons: list[str]) -> None:
    """Sums over clients, steps, coordinates, rounds must have the variance of independent terms."""
    for name in axes:
        total, degrees = 0.0, 0
        for summed in _summed(samples, name):
            total, degrees = total + float(np.square(summed).sum()), degrees + summed.size
        if degrees:
            low, high = chi_square_interval(float(degrees), FALSE_ALARM * _SUM_SHARE / len(axes))
            if not low <= total / degrees <= high:
                reasons.append(f"noise is correlated between {name}")


def _summed(samples: Sequence[Floats], name: str) -> Iterable[Floats]:
    """Sums along an axis, of variance 1 each where the terms are independent."""
    if name in _AXES:
        axis = _AXES[name]
        return [one.sum(axis=axis) / np.sqrt(one.shape[axis]) for one in samples]
    if len({one.shape for one in samples}) > 1:
        return []
    return [np.sum(samples, axis=0) / np.sqrt(len(samples))]


def _pair_tests(
    groups: Sequence[tuple[str, Floats]], rows: Floats, repeated: str, reasons: list[str]
) -> tuple[float, float]:
    """No two releases may share noise: all pairs of a group, and look-alikes among all rows.

    Returns:
        The correlation that none may exceed, and the (private) largest one.
    """
    pairs = sum(comb(len(group), 2) for _, group in groups)
    alpha = FALSE_ALARM * _PAIR_SHARE / 2.0
    threshold = correlation_threshold(rows.shape[1], pairs, alpha)
    worst = 0.0
    for text, group in groups:
        largest = largest_correlation(group)
        worst = max(worst, largest)
        if largest > threshold:
            reasons.append(text)
    if any_repeated(rows, alpha):
        reasons.append(repeated)
    return threshold, worst


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What is asked of the noise of one unit of protection, and in which words.

    Attributes:
        kinds: releases that must each carry their noise; the first kind has the samples.
        portions: what has a test of scale of its own; the first is all of the first kind.
        groups: releases of which all pairs are compared, with what is said of a pair alike.
        axes: along which the samples must not be correlated.
        charged, gaussian: the variance and the law that they are compared with.
        repeated: what is said of two releases anywhere that carry the same noise.
        counted: the name of the number of releases.
        seen: what the comparison of pairs would have found, given the correlation it allows.
        unseen: the same where there are too few sampled coordinates.
        passed: what a pass says.
        unshared: what it says in addition where releases were compared with each other.
        by_coordinate: sums of squared noise at each coordinate, with how many vectors each is of;
            None where there are none.
        silence_first: whether single releases are judged before the scale.
    """

    kinds: tuple[_Single, ...]
    portions: Sequence[Portion]
    groups: Sequence[tuple[str, Floats]]
    axes: tuple[str, ...]
    charged: str
    gaussian: str
    repeated: str
    counted: str
    seen: str
    unseen: str
    passed: str
    unshared: str
    by_coordinate: tuple[Floats, Integers] | None = None
    silence_first: bool = False


def _judge(ask: Callable[[Bundle, list[str]], _Question | None], bundle: Bundle) -> Judgement:
    reasons: list[str] = []
    asked = ask(bundle, reasons)
    if asked is None:
        return Judgement(Verdict.FAIL, listed(reasons))
    releases = asked.kinds[0].releases
    tables = [kind.releases for kind in asked.kinds if len(kind.releases)]
    if asked.silence_first:
        _single_tests(asked.kinds, reasons)
        silence(tables, FALSE_ALARM * _SILENT_SHARE, reasons)
    half_width, ratios = _scale_tests(asked.portions, asked.charged, reasons)
    if not asked.silence_first:
        _single_tests(asked.kinds, reasons)
        silence(tables, FALSE_ALARM * _SILENT_SHARE, reasons)
    drift(releases, FALSE_ALARM * _DRIFT_SHARE, reasons)
    tails(tables, FALSE_ALARM * _TAIL_SHARE, reasons)
    if asked.by_coordinate is not None:
        coordinates(asked.by_coordinate, FALSE_ALARM * _COORDINATE_SHARE, reasons)
    rows = releases.sample_rows()
    length, shape, notes, passed = rows.shape[1], None, asked.unseen, asked.passed
    private: dict[str, object] = {"variance_ratios": ratios}
    if length:
        shape = quantile_verdicts(rows, FALSE_ALARM * _SHAPE_SHARE)
        private["kolmogorov_p_value"] = p_value = kolmogorov_p_value(rows.ravel())
        if p_value < FALSE_ALARM * _SHAPE_SHARE:
            reasons.append(
                f"the sampled noise does not have the shape of {asked.gaussian} Gaussian"
            )
        _sum_tests(releases.samples, asked.axes, reasons)
        granularity(releases, rows, FALSE_ALARM * _GRAIN_SHARE, reasons)
    if length >= _LEAST_SAMPLE:
        alike: list[str] = []
        threshold, worst = _pair_tests(asked.groups, rows, asked.repeated, alike)
        # Noise that is used twice says more than what it does to the scale.
        reasons = alike + reasons
        private["largest_pair_correlation"] = worst
        notes, passed = asked.seen.format(threshold), asked.passed + asked.unshared
    # A trainer who leaves these numbers out must not pass as an older version.
    missing = [] if _sees_single(asked) else [NOT_RECORDED]
    if length < (due := samples_due(bundle)):
        missing.append(TOO_FEW.format(length, due))
    return conclude(
        passed,
        reasons,
        missing,
        details={
            asked.counted: len(releases),
            "coordinates": int(releases.noised[0].sum()),
            "sampled_coordinates": length,
            "tests": len(asked.portions),
            "half_width_sigma": half_width,
            "quantiles": shape,
        },
        private=private,
        power=f"a noise multiplier off by more than {100 * half_width:.2f} % over the whole run "
        f"(99.9 % half-width, {len(asked.portions)} scale tests){notes}",
    )


def _sees_single(asked: _Question) -> bool:
    """Whether the evidence says what single coordinates got."""
    return asked.by_coordinate is not None and all(
        kind.releases.silent is not None for kind in asked.kinds if len(kind.releases)
    )


def _by_time(releases: NoiseTable, name: str) -> Iterator[Portion]:
    """A portion for each round, and for each step of a participation, where there are several."""
    for column, text in ((releases.round, "round"), (releases.step, "step")):
        portions = list(releases.by(column, f"{name}{text} {{}}".format))
        if len(portions) > 1:
            yield from portions


def _about_queries(bundle: Bundle, reasons: list[str]) -> _Question | None:
    if (mechanism := bundle.header.mechanism) != GAUSSIAN:
        raise UnverifiedError(
            f"the loop states {mechanism} noise, and the auditor tests Gaussian noise alone: "
            "whether this noise is as large as stated is unknown"
        )
    releases = of_queries(bundle, reasons)
    if reasons or releases is None:
        return None
    portions = [
        releases.all_together("all queries"),
        *releases.by(releases.client, "client {}".format),
        *releases.by_block(bundle.layout().names, "block {}"),
        *_by_time(releases, ""),
    ]
    # Without these, noise that is wrong in a few rounds alone would drown in the others.
    levels = list(releases.by(releases.noise_multiplier, "noise multiplier {:.6g}".format))
    silent, far = "carries no noise in a whole block", "the noise of a single query is far too"
    return _Question(
        kinds=(_Single(releases, f"a query {silent}", f"{far} small", f"{far} large"),),
        portions=portions + (levels if len(levels) > 1 else []),
        groups=[
            (f"round {index}: two queries carry correlated noise (reuse)", rows)
            for index, rows in releases.samples_by_round()
        ],
        axes=("clients", "steps", "coordinates", "rounds"),
        charged="the ledger's (sigma C)^2",
        gaussian="the ledger's",
        repeated="two queries of the run carry the same noise (reuse)",
        counted="queries",
        seen="; pairs of queries in a round with correlation above {:.3f}",
        unseen="; too few sampled coordinates to compare pairs of queries",
        passed=f"noise of all {len(releases)} released queries against the ledger's sigma C. Scale "
        "overall, per client, block, round and step inside the interval in both directions, every "
        "query noised at every coordinate, Gaussian shape and tails",
        unshared=", no noise used twice",
        by_coordinate=by_coordinate(bundle, releases, reasons),
        # Silence says more than the scale that follows from it.
        silence_first=True,
    )


def _about_rounds(bundle: Bundle, reasons: list[str]) -> _Question:
    sums, uploads = of_rounds(bundle, reasons)
    portions: list[Portion] = []
    for kind, releases in (("the sum", sums), ("the uploads", uploads)):
        if len(releases):
            portions.append(releases.all_together(f"noise on {kind}"))
            portions += releases.by_block(bundle.layout().names, f"noise on {kind}, block {{}}")
            portions += _by_time(releases, f"noise on {kind}, ")
    portions += uploads.by(uploads.client, "noise of client {}".format)
    reused = "two rounds carry correlated noise (reuse)"
    also = ", and of every upload against sigma C over the root of m, per client and per block"
    seen = "; noise left out or reused in a single round"
    return _Question(
        kinds=tuple(
            _Single(
                one,
                f"{what} carries no noise in a whole block",
                f"{what} carries far too little noise",
                f"{what} carries far too much noise",
                most=3,
            )
            for what, one in (("the sum of updates", sums), ("an upload", uploads))
        ),
        portions=portions,
        groups=[(reused, sums.sample_rows())],
        axes=("rounds", "coordinates"),
        charged="what was charged",
        gaussian="the charged",
        repeated=reused,
        counted="rounds",
        seen=seen,
        unseen=f"{seen}; too few sampled coordinates to compare rounds",
        passed=f"noise on the sum of updates of all {len(sums)} rounds against the ledger's sigma "
        "C. Scale overall, per block and per round inside the interval in both "
        f"directions{also if len(uploads) else ''}. Every round noised, empty ones too, at every "
        "coordinate; Gaussian shape and tails",
        unshared="; no noise used twice",
        by_coordinate=by_coordinate(bundle, sums, reasons),
    )


NOISE = Check(
    name="noise-scale",
    title="Is the noise as large as the ledger says, everywhere and every time?",
    units=(*AT_RECORD_LEVEL, LOOP),
    place=50,
    meaning="If it fails, the noise is not what the loss was computed for.",
    claim="Each query's clipped sum carries fresh Gaussian noise of standard deviation sigma C in "
    "every coordinate.",
    tolerance="Exact chi-square, beta and Kolmogorov laws; all tests together raise a false alarm "
    "in at most 1 of 1000 correct runs (Bonferroni). Rounding to the grid of spacing 2^-20 sigma C "
    "changes the variance by less than 1e-13 of itself.",
    power="scales of 2/3 and 3/2 are rejected from a few dozen coordinates on; single coordinates "
    "without noise in a single query; docs/detection.md has the rest",
    limits="The noise is the one recorded as released minus clean; that these are the values that "
    "left the client rests on the recorder alone. Sampled coordinates stand for all in the tests "
    "of shape, independence and repeated values. Quality of the entropy source is not tested.",
    rule=partial(_judge, _about_queries),
)
register(NOISE)
register(
    replace(
        NOISE,
        units=AT_CLIENT_LEVEL,
        claim="Each round's sum of clipped updates carries fresh Gaussian noise of standard "
        "deviation sigma C in every coordinate that is released. Where the clients add it, each "
        "upload carries a share of standard deviation sigma C over the root of m.",
        limits="The noise is the one recorded as released minus clean; that these are the released "
        "values rests on the recorder alone. Sampled coordinates stand for all in the tests of "
        "shape, independence and repeated values; for single uploads only scale, silence and "
        "largest value are recorded. For updates cut to public coordinates, positions among the "
        "kept ones are sampled; if the last release chooses them, single coordinates are not "
        "judged. Quality of the entropy source is not tested.",
        rule=partial(_judge, _about_rounds),
    )
)
