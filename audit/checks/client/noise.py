"""Check "noise-scale" at client level: is the noise on every sum of updates as large as charged?

One noise vector a round, empty rounds included; where the clients add it, also one on every upload,
smaller by the root of their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, listed, register
from audit.checks.client.coordinates import rounds_with_choices
from audit.checks.client.integrity import last_charges
from audit.checks.record.noise import NOISE
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.client_evidence import UpdateRound
from audit.reading.evidence import Layout
from audit.reading.sparsification import kept_by_block
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
_SCALE_SHARE, _SINGLE_SHARE, _SHAPE_SHARE, _PAIR_SHARE, _SUM_SHARE = 0.4, 0.15, 0.15, 0.15, 0.15
_Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class _Noise:
    """Noise in units of its charged standard deviation.

    Attributes:
        sums: [T, B] sums of squares on the sum of updates.
        samples: [T, k] noise on it at the sampled coordinates.
        uploads: [n, B] sums of squares on all uploads; n = 0 where the server adds the noise.
        round_of: [n] round of each upload.
        client_of: [n] client of each upload.
        noised: [T, B] coordinates of each block that carry noise: all, or the public ones.
        upload_noised: [n, B] the same for each upload.
    """

    sums: _Matrix
    samples: _Matrix
    uploads: _Matrix
    round_of: NDArray[np.int64]
    client_of: NDArray[np.int64]
    noised: NDArray[np.int64]
    upload_noised: NDArray[np.int64]


def _collect(bundle: Bundle, reasons: list[str]) -> _Noise:
    charges = last_charges(bundle.readable_ledger)
    layout = bundle.layout()
    sums, samples, uploads = [], [], [np.zeros((0, len(layout.sizes)))]
    round_of: list[int] = []
    client_of: list[int] = []
    noised: list[NDArray[np.int64]] = []
    upload_noised = [np.zeros((0, len(layout.sizes)), dtype=np.int64)]
    for index, evidence, counts in _rounds(bundle, layout):
        charge = charges.get(index)
        if charge is None:
            raise UnverifiedError(f"round {index}: was never charged")
        squares = evidence.upload_noise_sum_squares
        if np.any(evidence.noise_sum_squares < 0.0) or (
            squares is not None and (squares < 0).any()
        ):
            reasons.append(f"round {index}: a sum of squares is negative")
        variance = (charge.noise_multiplier * charge.clipping_norm) ** 2
        noised.append(counts)
        sums.append(evidence.noise_sum_squares / variance)
        samples.append(evidence.noise_sample / charge.noise_multiplier)
        if charge.noise_added_by == "clients" and len(evidence.clients):
            if squares is None:
                raise UnverifiedError(f"round {index}: the noise of its uploads is not recorded")
            # A share of 1/m each, so that m shares make the whole variance.
            uploads.append(squares * len(evidence.clients) / variance)
            upload_noised.append(np.tile(counts, (len(evidence.clients), 1)))
            round_of += [index] * len(evidence.clients)
            client_of += [int(client) for client in evidence.clients]
    return _Noise(
        np.asarray(sums),
        np.asarray(samples),
        np.concatenate(uploads),
        np.asarray(round_of, dtype=np.int64),
        np.asarray(client_of, dtype=np.int64),
        np.asarray(noised),
        np.concatenate(upload_noised),
    )


def _rounds(bundle: Bundle, layout: Layout) -> Iterator[tuple[int, UpdateRound, NDArray[np.int64]]]:
    """Every round with how many coordinates of each block must carry noise."""
    sparsification = bundle.header.sparsification
    if sparsification is None or not sparsification.public:
        for index, evidence in bundle.all_update_rounds():
            yield index, evidence, layout.sizes
        return
    if layout.kind != "tensor":
        raise UnverifiedError("the blocks of the layout are not runs of coordinates")
    for index, evidence, chosen in rounds_with_choices(bundle, sparsification):
        yield index, evidence, kept_by_block(chosen, layout.sizes)


def _totals(noise: _Noise, names: tuple[str, ...]) -> Iterator[tuple[str, float, float]]:
    """Name, sum of squares and degrees of freedom of every test of scale."""
    for kind, squares, noised in (
        ("the sum", noise.sums, noise.noised),
        ("the uploads", noise.uploads, noise.upload_noised),
    ):
        if len(squares):
            yield f"noise on {kind}", float(squares.sum()), float(noised.sum())
            for block, name in enumerate(names):
                # Where no coordinate of a block was ever kept, the overall test sees its noise.
                if degrees := float(noised[:, block].sum()):
                    yield f"noise on {kind}, block {name}", float(squares[:, block].sum()), degrees
    for client in np.unique(noise.client_of):
        own = noise.client_of == client
        degrees = float(noise.upload_noised[own].sum())
        yield f"noise of client {client}", float(noise.uploads[own].sum()), degrees


def _scale_tests(noise: _Noise, names: tuple[str, ...], reasons: list[str]) -> dict[str, float]:
    """Chi-square on sums of squares, over all, by block and by client; returns the ratios."""
    tests = list(_totals(noise, names))
    alpha = FALSE_ALARM * _SCALE_SHARE / len(tests)
    ratios = {}
    for name, total, degrees in tests:
        low, high = chi_square_interval(degrees, alpha)
        ratios[name] = total / degrees
        if not low <= ratios[name] <= high:
            side = "below" if ratios[name] < low else "above"
            reasons.append(f"{name}: variance {side} [{low:.4f}, {high:.4f}] of what was charged")
    return ratios


def _single_tests(noise: _Noise, reasons: list[str]) -> None:
    """Every single round, the empty ones too, and every upload must carry its noise."""
    # The same in every round: all coordinates, or k public ones.
    parameters = float(noise.noised[0].sum())
    count = len(noise.sums) + len(noise.uploads)
    low, high = chi_square_interval(parameters, FALSE_ALARM * _SINGLE_SHARE / count)
    for what, squares, noised, rounds in (
        ("the sum of updates", noise.sums, noise.noised, np.arange(len(noise.sums))),
        ("an upload", noise.uploads, noise.upload_noised, noise.round_of),
    ):
        ratio = squares.sum(axis=1) / parameters
        # A block of few coordinates may be all zero after rounding to the grid, if rarely.
        silent = ((squares == 0.0) & (noised >= 4)).any(axis=1) | (ratio == 0.0)
        for faulty, text in (
            (silent, "carries no noise in a whole block"),
            (~silent & (ratio < low), "carries far too little noise"),
            (~silent & (ratio > high), "carries far too much noise"),
        ):
            reasons.extend(f"round {index}: {what} {text}" for index in rounds[faulty][:3])


def _sample_tests(noise: _Noise, reasons: list[str]) -> dict[str, float]:
    """Shape, independence over rounds and coordinates, and reuse, at the sampled coordinates."""
    rounds, length = noise.samples.shape
    private = {"kolmogorov_p_value": kolmogorov_p_value(noise.samples.ravel())}
    if private["kolmogorov_p_value"] < FALSE_ALARM * _SHAPE_SHARE:
        reasons.append("the sampled noise does not have the shape of the charged Gaussian")
    for name, axis in (("rounds", 0), ("coordinates", 1)):
        summed = np.square(noise.samples.sum(axis=axis)) / noise.samples.shape[axis]
        low, high = chi_square_interval(float(summed.size), FALSE_ALARM * _SUM_SHARE / 2.0)
        if not low <= float(summed.mean()) <= high:
            reasons.append(f"noise is correlated between {name}")
    if length >= _LEAST_SAMPLE:
        alpha = FALSE_ALARM * _PAIR_SHARE / 2.0
        private["largest_pair_correlation"] = largest_correlation(noise.samples)
        threshold = correlation_threshold(length, rounds * (rounds - 1) // 2, alpha)
        if private["largest_pair_correlation"] > threshold or any_repeated(noise.samples, alpha):
            reasons.append("two rounds carry correlated noise (reuse)")
    return private


def _judge(bundle: Bundle) -> Judgement:
    layout = bundle.layout()
    reasons: list[str] = []
    noise = _collect(bundle, reasons)
    ratios = _scale_tests(noise, layout.names, reasons)
    _single_tests(noise, reasons)
    rounds, length = noise.samples.shape
    private: dict[str, object] = {"variance_ratios": ratios}
    shape = None
    if length:
        shape = quantile_verdicts(noise.samples, FALSE_ALARM * _SHAPE_SHARE)
        private |= _sample_tests(noise, reasons)
    alpha = FALSE_ALARM * _SCALE_SHARE / len(ratios)
    noised = int(noise.noised[0].sum())
    half_width = sigma_half_width(chi_square_interval(float(rounds * noised), alpha))
    reuse = "" if length >= _LEAST_SAMPLE else "; too few sampled coordinates to compare rounds"
    power = (
        f"a noise multiplier off by more than {100 * half_width:.2f} % over the whole run (99.9 % "
        f"half-width, {len(ratios)} scale tests); noise left out or reused in a single round{reuse}"
    )
    details = {
        "rounds": rounds,
        "coordinates": noised,
        "sampled_coordinates": length,
        "tests": len(ratios),
        "half_width_sigma": half_width,
        "quantiles": shape,
    }
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details, private, power=power)
    uploads = (
        ", and of every upload against sigma C over the root of m, per client and per block"
        if len(noise.uploads)
        else ""
    )
    return Judgement(
        Verdict.PASS,
        f"noise on the sum of updates of all {rounds} rounds against the ledger's sigma C: scale "
        f"overall and per block inside the interval in both directions{uploads}; every round "
        "noised, empty ones too; Gaussian shape; no noise used twice",
        details,
        private,
        power=power,
    )


CLIENT_NOISE = Check(
    name=NOISE.name,
    title=NOISE.title,
    units=AT_CLIENT_LEVEL,
    place=50,
    claim="Each round's sum of clipped updates carries fresh Gaussian noise of standard deviation "
    "sigma C in every coordinate that is released; where the clients add it, each upload carries a "
    "share of standard deviation sigma C over the root of m.",
    tolerance=NOISE.tolerance,
    power=NOISE.power,
    limits="The noise is the one recorded as released minus clean; that these are the values that "
    "were released is the recorder's word. Sampled coordinates stand for all in the tests of shape "
    "and independence; of single uploads scale alone is recorded. Of updates cut to public "
    "coordinates, positions among the kept ones are sampled. Quality of the entropy source is not "
    "tested.",
    rule=_judge,
)
register(CLIENT_NOISE)
