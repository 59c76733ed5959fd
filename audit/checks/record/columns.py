"""Check "columns": do the bounds of columns follow from histograms that had their noise?

The counts and what was sent of them are in the evidence. Their difference is held to the law of the
noise that was charged; the sums of counts to the records of each client; and the bounds are read
off the noised counts once more, and compared exactly with those in ledger and model.json.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from audit.accounting.budget import budget
from audit.accounting.comparison import ABSOLUTE, RELATIVE
from audit.accounting.sampling import queried
from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, conclude, register
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.columns import (
    Histograms,
    LearntColumn,
    Promised,
    Queries,
    promised,
    read_learnt,
)
from audit.reading.files import read_bytes
from audit.reading.ledger import Header, Ledger
from audit.reading.units import RECORD
from audit.statistics.intervals import (
    FALSE_ALARM,
    chi_square_interval,
    correlation_threshold,
    kolmogorov_p_value,
    sigma_half_width,
)
from audit.statistics.noise_values import largest_correlation
from audit.untrusted import fields
from audit.untrusted.archives import Floats
from audit.untrusted.documents import parse_json
from audit.untrusted.fields import FieldError

_MOST_BYTES = 1 << 26
_SAID = re.compile(r"bounds of columns were learnt.*histogram")
# An edge that is written in decimal and read again.
_EXACT = 1e-9


def edges_of(sums: Sequence[float], deviation: float, column: Promised) -> tuple[int, int]:
    """The edges of cells that become a column's bounds.

    Args:
        sums: noised counts of all clients together, by cell.
        deviation: of their noise.
        column: cells and quantiles.
    """
    least = deviation * math.sqrt(2.0 * math.log(2.0 * column.bins))
    kept = [one if one >= least else 0.0 for one in sums]
    total = math.fsum(kept)
    if total <= 0.0:
        return 0, column.bins
    low, high = (share * total for share in column.quantiles)
    first, last = 0, column.bins
    for edge in range(1, column.bins + 1):
        if math.fsum(kept[:edge]) <= low:
            first = edge
    for edge in range(column.bins, -1, -1):
        if math.fsum(kept[:edge]) >= high:
            last = edge
    return first, last


def unit_of(column: Promised, edge: int) -> float:
    """An edge in the column's unit."""
    low, high = column.low, column.high
    if edge == 0:
        return low
    if edge == column.bins:
        return high
    if not column.log:
        return low + edge / column.bins * (high - low)
    low, high = (math.copysign(math.log1p(abs(one)), one) for one in (low, high))
    at = low + edge / column.bins * (high - low)
    return math.copysign(math.expm1(abs(at)), at)


def _recomputed(
    columns: Sequence[Promised], found: Histograms, queries: Queries
) -> list[tuple[Promised, int, int]]:
    deviation = queries.noise_multiplier * math.sqrt(len(found.noised))
    again, start = [], 0
    for column in columns:
        part = found.noised[:, start : start + column.bins]
        start += column.bins
        sums = [math.fsum(one) for one in part.T.tolist()]
        again.append((column, *edges_of(sums, deviation, column)))
    return again


def _same(
    where: str,
    said: Sequence[LearntColumn],
    again: Sequence[tuple[Promised, int, int]],
    reasons: list[str],
) -> None:
    if len(said) != len(again):
        reasons.append(f"{where}: does not name the bounds of each column that was learnt")
        return
    for one, (column, first, last) in zip(said, again, strict=True):
        if (one.column, one.bins) != (column.name, column.bins):
            reasons.append(f"{where}: its columns or cells are not the spec's")
        elif (one.first, one.last) != (first, last):
            reasons.append(
                f"{where}: the bounds of {_shown(one.column)} are not those that the noised "
                "histograms give"
            )
        elif not all(
            math.isclose(stated, unit_of(column, edge), rel_tol=_EXACT, abs_tol=_EXACT)
            for stated, edge in ((one.low, first), (one.high, last))
        ):
            reasons.append(f"{where}: low or high of {_shown(one.column)} is not at its edge")


def _shown(name: str) -> str:
    return repr(name if len(name) <= 40 else f"{name[:40]}…")


def _counts(found: Histograms, header: Header, queries: Queries, reasons: list[str]) -> None:
    """Every record of a client is in exactly one cell of each column."""
    start = 0
    records = np.asarray(header.records)
    for name, bins in zip(queries.columns, queries.bins, strict=True):
        sums = found.counts[:, start : start + bins].sum(axis=1)
        start += bins
        if np.any(sums != records):
            reasons.append(
                f"the histogram of {_shown(name)} does not count each record of a client once: a "
                "record moves it by more, or by less, than is charged"
            )


def shared_alpha(columns: int) -> float:
    """False alarms of one test: of all noise, each column's, its shape, and of clients alike."""
    return FALSE_ALARM / (columns + 3)


def caught_scales(counts: int, columns: int) -> tuple[float, float, float]:
    """Half-width of the interval over all counts, and the nearest scales that it always catches.

    Args:
        counts: clients times cells.
        columns: how many have a test of their own.
    """
    low, high = interval = chi_square_interval(float(counts), shared_alpha(columns))
    # Noise of such a scale leaves the interval in 999 of 1000 runs.
    small = math.sqrt(low * counts / stats.chi2.ppf(0.999, counts))
    large = math.sqrt(high * counts / stats.chi2.ppf(0.001, counts))
    return sigma_half_width(interval), small, large


def _noise(noise: Floats, queries: Queries, reasons: list[str]) -> dict[str, Any]:
    """Hold what was added to the law that was charged; the intervals, for the finding."""
    starts = np.cumsum((0, *queries.bins))
    parts = [noise, *(noise[:, a:b] for a, b in itertools.pairwise(starts))]
    share = shared_alpha(len(queries.bins))
    for place, part in enumerate(parts):
        low, high = chi_square_interval(part.size, share)
        ratio = float(np.square(part).mean())
        if not low <= ratio <= high:
            which = "the histograms" if not place else f"the histogram of column {place}"
            reasons.append(
                f"the noise on {which} has {'less' if ratio < low else 'more'} than the standard "
                "deviation that is charged"
            )
    if kolmogorov_p_value(noise.ravel()) < share:
        reasons.append(
            "the noise on the histograms is not Gaussian with the charged standard deviation"
        )
    clients, cells = noise.shape
    if clients > 1 and cells >= 4:
        pairs = clients * (clients - 1) // 2
        if largest_correlation(noise) > correlation_threshold(cells, pairs, share):
            reasons.append("two clients' histograms have the same noise, which cancels out")
    width, small, large = caught_scales(noise.size, len(queries.bins))
    return {
        "cells": int(noise.size),
        "sigma_half_width": width,
        "caught_below": small,
        "caught_above": large,
    }


def _alone(ledger: Ledger, header: Header, reasons: list[str]) -> float:
    """What the histograms cost by themselves, as the claim must say."""
    delta = header.declared("delta")
    spent = budget(queried(ledger), delta).headline if ledger.queries else 0.0
    try:
        stated = fields.mapping(ledger.claim, "columns")
        epsilon = fields.number(stated, "epsilon", least=0.0)
        if fields.integer(stated, "learnt") != sum(item.steps for item in queried(ledger)):
            reasons.append("the claim gives a different number of columns with learnt bounds")
        if abs(epsilon - spent) > RELATIVE * spent + ABSOLUTE:
            reasons.append(
                f"the histograms alone are claimed to cost {epsilon:.4g}, but cost {spent:.4g}"
            )
    except FieldError as error:
        reasons.append(f"claim: {error}")
    return spent


def _judge(bundle: Bundle) -> Judgement:
    header, ledger = bundle.header, bundle.readable_ledger
    queries, reasons = header.column_queries, list[str]()
    if queries is None:
        raise UnverifiedError("the ledger's header lacks column_queries")
    if header.unit is not RECORD:
        reasons.append("bounds of columns are learnt, but the unit of protection is not the record")
    try:
        columns = promised(bundle.readable_spec)
        found = bundle.histograms(header.clients, sum(queries.bins))
        model = parse_json(read_bytes(bundle.root, "model.json", _MOST_BYTES))
        stated = read_learnt(model, "learnt")
    except UntrustedFileError as error:
        return conclude("", reasons, [str(error)])
    except FieldError as error:
        return conclude("", [*reasons, str(error)])
    if tuple((one.name, one.bins) for one in columns) != tuple(
        zip(queries.columns, queries.bins, strict=True)
    ):
        return conclude("", [*reasons, "the header's columns and cells are not the spec's"])
    if not ledger.answers:
        return conclude("", [*reasons, "the ledger does not say which bounds were learnt"])
    answer = ledger.answers[-1]
    _counts(found, header, queries, reasons)
    deviation = queries.noise_multiplier
    details = _noise((found.noised - found.counts) / deviation, queries, reasons)
    if hashlib.sha256(found.noised.astype("<f8").tobytes()).hexdigest() != answer.noised:
        reasons.append("evidence/columns.npz: its noised counts are not those the ledger names")
    again = _recomputed(columns, found, queries)
    _same("the ledger", answer.columns, again, reasons)
    _same("model.json", stated, again, reasons)
    if stated != answer.columns:
        reasons.append("model.json names bounds that are not the ledger's")
    alone = _alone(ledger, header, reasons)
    said = (ledger.claim or {}).get("assumptions")
    if not any(_SAID.search(str(one)[:4096]) for one in (said if isinstance(said, list) else ())):
        reasons.append("the claim does not say that bounds of columns were learnt")
    width = details["sigma_half_width"]
    return conclude(
        f"{details['cells']} counts of {header.clients} clients have Gaussian noise of the charged "
        f"standard deviation (within {width:.1%}). Each record is counted once in each of "
        f"{len(columns)} columns, and the bounds in ledger and model.json are those that the "
        f"noised counts give. On their own they cost epsilon = {alone:.4g}",
        reasons,
        details=details,
        power=f"noise of {details['caught_below']:.3f} times the standard deviation that is "
        f"charged or less, and of {details['caught_above']:.3f} times or more. Bounds that follow "
        "from counts without noise; a record that is counted twice or not at all; noise that two "
        "clients share",
    )


COLUMNS = Check(
    name="columns",
    title="Were the bounds of columns learnt only from noised counts?",
    units=AT_RECORD_LEVEL,
    place=56,
    meaning="If it fails, bounds that anyone can read in the model may reveal single records.",
    claim="Before the first round each client counted each of its records once in the histogram of "
    "each column whose bounds are learnt. It added Gaussian noise of the charged standard "
    "deviation to each count. The bounds follow from the noised counts alone.",
    tolerance="chi-square intervals on the variance of all noise and of each column's, a "
    "Kolmogorov-Smirnov test of its law, and correlations between clients, together at 0.1 %; "
    "counts, edges and digests exactly",
    power="noise whose standard deviation is off by more than the finding states (with few counts, "
    "half of it may go undetected). Bounds that follow from counts without noise; a record that is "
    "counted twice or not at all; noise that two clients share",
    limits="The counts are those that the trainer recorded; only someone with the data can check "
    "that they are the counts of the committed records, as re-execution does. A run's files "
    "cannot show that a client sent nothing else about its records before the first round.",
    rule=_judge,
    concerns=lambda header: header is not None and header.column_queries is not None,
)
register(COLUMNS)
