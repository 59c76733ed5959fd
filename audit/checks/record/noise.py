"""Check "noise-scale": is the noise that was really added as large as the ledger says?

Reads the recorded noise of every released query (sums of squares per block, and the noise itself
at sampled coordinates) and tests scale in both directions, shape, presence and independence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, listed, register
from audit.reading.bundle import Bundle
from audit.reading.spends import Spend
from audit.statistics.correlation import any_repeated, largest_correlation
from audit.statistics.intervals import (
    FALSE_ALARM,
    chi_square_interval,
    correlation_threshold,
    kolmogorov_p_value,
    sigma_half_width,
)
from audit.statistics.quantiles import quantile_verdicts
from audit.verdict import Verdict

_LEAST_SAMPLE = 8
_SCALE_SHARE, _QUERY_SHARE, _SHAPE_SHARE, _PAIR_SHARE, _SUM_SHARE = 0.4, 0.15, 0.15, 0.15, 0.15


@dataclass(frozen=True)
class _Noise:
    """Noise in units of the ledger's σC: squares [T][S,K,B], samples [T][S,K,m], σ [T]."""

    clients: list[NDArray[np.int64]]
    squares: list[NDArray[np.float64]]
    samples: list[NDArray[np.float64]]
    sizes: NDArray[np.int64]
    levels: list[float]


def scale_alpha(tests: int) -> float:
    """False alarms that one of so many tests of the noise's scale may raise."""
    return FALSE_ALARM * _SCALE_SHARE / tests


def last_attempts(spends: tuple[Spend, ...]) -> Mapping[tuple[int, int], Spend]:
    """The charge of each (round, client) under which the round was finished."""
    found: dict[tuple[int, int], Spend] = {}
    for spend in spends:
        key = (spend.round, spend.client)
        if key not in found or spend.attempt >= found[key].attempt:
            found[key] = spend
    return found


def _collect(bundle: Bundle) -> tuple[_Noise, list[str]]:
    spends = last_attempts(bundle.readable_ledger.spends)
    noise = _Noise([], [], [], bundle.layout().sizes, [])
    reasons: list[str] = []
    for index, evidence in bundle.all_rounds():
        scale = np.empty(len(evidence.clients))
        norm = np.empty(len(evidence.clients))
        for row, client in enumerate(evidence.clients):
            spend = spends.get((index, int(client)))
            if spend is None:
                reasons.append(f"round {index}: client {client} was never charged")
                return noise, reasons
            scale[row], norm[row] = spend.noise_multiplier, spend.clipping_norm
        if np.any(evidence.noise_sum_squares < 0.0):
            reasons.append(f"round {index}: a sum of squares is negative")
        noise.clients.append(evidence.clients)
        noise.levels.append(float(scale.max(initial=0.0)))
        noise.squares.append(evidence.noise_sum_squares / ((scale * norm) ** 2)[:, None, None])
        noise.samples.append(evidence.noise_sample / scale[:, None, None])
    return noise, reasons


def _scale_tests(
    noise: _Noise, reasons: list[str], names: tuple[str, ...]
) -> tuple[float, dict[str, Any]]:
    """Chi-square on the sum of squares: overall, per client, block and noise level.

    Returns:
        The half-width of the overall test, and the private ratios.
    """
    parameters = int(noise.sizes.sum())
    by_client: dict[int, list[float]] = {}
    by_block = np.zeros(len(noise.sizes))
    by_level: dict[float, list[float]] = {}
    queries = 0
    for clients, squares, level in zip(noise.clients, noise.squares, noise.levels, strict=True):
        entry = by_level.setdefault(level, [0.0, 0.0])
        entry[0] += float(squares.sum())
        entry[1] += float(squares.shape[0] * squares.shape[1] * parameters)
        by_block += squares.sum(axis=(0, 1))
        queries += squares.shape[0] * squares.shape[1]
        for row, client in enumerate(clients):
            entry = by_client.setdefault(int(client), [0.0, 0.0])
            entry[0] += float(squares[row].sum())
            entry[1] += float(squares.shape[1] * parameters)
    alpha = scale_alpha(_scale_test_count(noise))

    def judge(name: str, total: float, degrees: float) -> float:
        low, high = chi_square_interval(degrees, alpha)
        ratio = total / degrees
        if not low <= ratio <= high:
            side = "below" if ratio < low else "above"
            reasons.append(
                f"{name}: variance {side} [{low:.4f}, {high:.4f}] of the ledger's (sigma C)^2"
            )
        return ratio

    overall = judge("all queries", float(by_block.sum()), float(queries * parameters))
    clients_ratio = {
        str(client): judge(f"client {client}", total, degrees)
        for client, (total, degrees) in sorted(by_client.items())
    }
    blocks_ratio = {
        names[block]: judge(
            f"block {names[block]}", float(by_block[block]), float(queries * noise.sizes[block])
        )
        for block in range(len(noise.sizes))
    }
    levels_ratio = {
        f"{level:.6g}": judge(f"noise multiplier {level:.6g}", total, degrees)
        for level, (total, degrees) in sorted(by_level.items())
        if len(by_level) > 1
    }
    half_width = sigma_half_width(chi_square_interval(float(queries * parameters), alpha))
    private: dict[str, Any] = {
        "variance_ratio": overall,
        "variance_ratio_by_client": clients_ratio,
        "variance_ratio_by_block": blocks_ratio,
        "variance_ratio_by_noise_multiplier": levels_ratio,
    }
    return half_width, private


def _scale_test_count(noise: _Noise) -> int:
    """One over all, one a client, one a block, and one a noise multiplier where there are several.

    Without the last, noise that is wrong in a few rounds alone would drown in the others.
    """
    clients = {int(client) for some in noise.clients for client in some}
    levels = len(set(noise.levels))
    return 1 + len(clients) + len(noise.sizes) + (levels if levels > 1 else 0)


def _query_tests(noise: _Noise, reasons: list[str]) -> None:
    """Every single query must carry its noise, in every block worth the name."""
    parameters = float(noise.sizes.sum())
    queries = sum(squares.shape[0] * squares.shape[1] for squares in noise.squares)
    low, high = chi_square_interval(parameters, FALSE_ALARM * _QUERY_SHARE / queries)
    # A block of few coordinates may be all zero after rounding to the grid, if rarely.
    solid = noise.sizes >= 4
    for index, squares in enumerate(noise.squares):
        ratio = squares.sum(axis=2) / parameters
        if np.any(squares[:, :, solid] == 0.0) or np.any(ratio == 0.0):
            reasons.append(f"round {index}: a query carries no noise in a whole block")
        elif np.any(ratio < low):
            reasons.append(f"round {index}: the noise of a single query is far too small")
        elif np.any(ratio > high):
            reasons.append(f"round {index}: the noise of a single query is far too large")


def _pair_tests(noise: _Noise, reasons: list[str]) -> tuple[float, float]:
    """No two queries may share noise: all pairs of a round, and look-alikes across rounds."""
    length = noise.samples[0].shape[2]
    rows = [sample.reshape(-1, length) for sample in noise.samples]
    pairs = sum(len(row) * (len(row) - 1) // 2 for row in rows)
    alpha = FALSE_ALARM * _PAIR_SHARE / 2.0
    threshold = correlation_threshold(length, pairs, alpha)
    worst = 0.0
    for index, row in enumerate(rows):
        largest = largest_correlation(row)
        worst = max(worst, largest)
        if largest > threshold:
            reasons.append(f"round {index}: two queries carry correlated noise (reuse)")
    if any_repeated(np.concatenate(rows), alpha):
        reasons.append("two queries of the run carry the same noise (reuse)")
    return threshold, worst


def _sum_tests(noise: _Noise, reasons: list[str]) -> None:
    """Sums over clients, steps, coordinates, rounds must have the variance of independent terms."""
    totals = np.zeros((4, 2))
    shapes = {sample.shape for sample in noise.samples}
    for sample in noise.samples:
        for axis in (0, 1, 2):
            summed = sample.sum(axis=axis) / np.sqrt(sample.shape[axis])
            totals[axis] += float(np.square(summed).sum()), summed.size
    if len(shapes) == 1:
        summed = np.sum(noise.samples, axis=0) / np.sqrt(len(noise.samples))
        totals[3] = float(np.square(summed).sum()), summed.size
    alpha = FALSE_ALARM * _SUM_SHARE / len(totals)
    names = ("clients", "steps", "coordinates", "rounds")
    for name, (total, degrees) in zip(names, totals, strict=True):
        if degrees:
            low, high = chi_square_interval(float(degrees), alpha)
            if not low <= total / degrees <= high:
                reasons.append(f"noise is correlated between {name}")


def _judge(bundle: Bundle) -> Judgement:
    layout = bundle.layout()
    noise, reasons = _collect(bundle)
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons))
    # Silence is told first: it says more than the scale that follows from it.
    _query_tests(noise, reasons)
    half_width, private = _scale_tests(noise, reasons, layout.names)
    sample = np.concatenate([one.ravel() for one in noise.samples])
    queries = sum(one.shape[0] * one.shape[1] for one in noise.samples)
    length = len(layout.sample_coordinates)
    notes = ""
    shape = None
    if length:
        shape = quantile_verdicts(sample, FALSE_ALARM * _SHAPE_SHARE)
        p_value = kolmogorov_p_value(sample)
        private["kolmogorov_p_value"] = p_value
        if p_value < FALSE_ALARM * _SHAPE_SHARE:
            reasons.append("the sampled noise does not have the shape of the ledger's Gaussian")
        _sum_tests(noise, reasons)
    if length >= _LEAST_SAMPLE:
        threshold, worst = _pair_tests(noise, reasons)
        private["largest_pair_correlation"] = worst
        notes = f"; pairs of queries in a round with correlation above {threshold:.3f}"
    else:
        notes = "; too few sampled coordinates to compare pairs of queries"
    tests = _scale_test_count(noise)
    power = (
        f"a noise multiplier off by more than {100 * half_width:.2f} % over the whole run "
        f"(99.9 % half-width, {tests} scale tests){notes}"
    )
    details = {
        "queries": queries,
        "coordinates": layout.parameters,
        "sampled_coordinates": length,
        "tests": tests,
        "half_width_sigma": half_width,
        "quantiles": shape,
    }
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details, private, power=power)
    return Judgement(
        Verdict.PASS,
        f"noise of all {queries} released queries against the ledger's sigma C: scale overall, "
        "per client and per block inside the interval in both directions, every query noised, "
        "Gaussian shape, no noise used twice",
        details,
        private,
        power=power,
    )


NOISE = Check(
    name="noise-scale",
    title="Is the noise as large as the ledger says, everywhere and every time?",
    units=AT_RECORD_LEVEL,
    place=50,
    claim="Each query's clipped sum carries fresh Gaussian noise of standard deviation sigma C in "
    "every coordinate.",
    tolerance="Exact chi-square, beta and Kolmogorov laws; all tests together raise a false alarm "
    "in at most 1 of 1000 correct runs (Bonferroni). Rounding to the grid of spacing 2^-20 sigma C "
    "changes the variance by less than 1e-13 of itself.",
    power="scales of 2/3 and 3/2 are rejected from a few dozen coordinates on",
    limits="The noise is the one recorded as released minus clean; that these are the values that "
    "left the client is the recorder's word. Sampled coordinates stand for all in the tests of "
    "shape and independence. Quality of the entropy source is not tested.",
    rule=_judge,
)
register(NOISE)
