"""Judges noise value by value: what drowns in sums over a block, a client or a run.

Parts of the check "noise-scale", with the laws of `audit.statistics.noise_values`. Each test here
takes the false alarms that it may raise and adds to the reasons what a correct run would show no
oftener than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from audit.checks.shared.noise_table import NoiseTable, coordinate_degrees
from audit.errors import UnverifiedError
from audit.reading.bundle import Bundle
from audit.statistics.noise_values import (
    coincidence_p_value,
    coordinate_p_values,
    extremes,
    halves_p_value,
    silent_p_values,
    zeros_expected,
)
from audit.untrusted.archives import Floats, Integers

NOT_RECORDED = (
    "the evidence does not say how much noise single coordinates got: some of them without noise, "
    "and tails that are cut off, were not looked for"
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
        reasons.append("values of the noise repeat themselves: a coarse grid, or a table, made it")


def drift(table: NoiseTable, alpha: float, reasons: list[str]) -> None:
    """The scale may not change between the first and the second half of the rounds, or of steps."""
    for what, column in (("rounds", table.round), ("steps", table.step)):
        values, place = np.unique(column, return_inverse=True)
        squares, degrees = (
            np.bincount(place, weights=weights, minlength=len(values)).astype(np.float64)
            for weights in (table.squares.sum(axis=1), table.coordinates)
        )
        if halves_p_value(squares, degrees) < 0.5 * alpha:
            reasons.append(f"the noise of the first {what} has another scale than that of the last")
