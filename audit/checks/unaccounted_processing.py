"""Check "outside-budget": what is no noised query, is it harmless, or at least said?

Two things commonly happen to private records before the first charge: they are scaled by statistics
of their own, and settings are chosen by trial. The first shows in the records that the model reads.
The second shows nowhere, so the claim must say that it rests on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.shared.claimed import statement_faults
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle
from audit.reading.evidence import Moments, Reach
from audit.reading.ledger import Header
from audit.reading.units import PERSON, RECORD
from audit.statistics.intervals import FALSE_ALARM
from audit.untrusted import fields
from audit.untrusted.archives import Integers
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict

# Twice what rounding to float32 leaves of a mean up to twenty deviations away.
_EXACT = 5e-6
# Constants of three or four digits that somebody computed from the same records and printed.
_PRINTED = 2e-3

# Test records that have an equal among the training records beyond the share that training records
# have among themselves: publishers' own test sets have some.
_BY_CHANCE = 0.01

# What a claim rests on and no evidence can show, by the words that its sentence must have.
_SAID = {
    "that hyper-parameters were not tuned on the private records, or that this is accounted "
    "elsewhere": r"hyper-?\s?parameters?.*\b(tuned|tuning|chosen|choice)\b",
    "what neighbouring data sets differ by": r"neighbouring|each record belongs to one client"
    r"|each record is about one person",
}


def scaled_by_themselves(moments: Moments, row: int, tolerance: float) -> bool:
    """Whether numbers have mean 0 and deviation 1 as only their own statistics make them.

    Scaled column by column, a constant one becomes 0 and the others have variance 1, so that the
    variance of all numbers is the share of those that vary. Where none varies, all records are the
    same, and nothing tells how they were scaled.
    """
    numbers = int(moments.numbers[row])
    if numbers < 2 or not moments.varying[row] or abs(float(moments.mean[row])) > tolerance:
        return False
    variance = float(moments.deviation[row]) ** 2
    share = float(moments.varying[row]) / numbers
    # A deviation off by the tolerance makes a variance off by twice as much.
    return min(abs(variance - 1.0), abs(variance - share)) <= 2.0 * tolerance


def between_its_extremes(reach: Reach, row: int) -> bool:
    """Whether continuous numbers reach from exactly 0 or -1 to exactly 1, as only scaling does.

    Column by column, all of them do. Scaled all together, one number or two reach an end; numbers
    that are cut off there reach it often, and grey levels are not continuous.
    """
    columns = int(reach.continuous[row])
    if columns and int(reach.spanning[row]) == columns:
        return True
    ends = float(reach.least[row]) in (0.0, -1.0) and float(reach.greatest[row]) == 1.0
    return bool(columns) and ends and max(int(reach.lowest[row]), int(reach.highest[row])) <= 2


def _cut_at_stated_bounds(spec: Mapping[str, Any]) -> bool:
    """Whether a spec states bounds of a column, at which numbers beyond them are cut.

    A correct run's columns then reach both ends, and nothing in the records tells bounds that were
    known before from bounds that were taken from them.
    """
    data = spec.get("data")
    columns = data.get("columns") if isinstance(data, Mapping) else None
    return isinstance(columns, list) and any(
        isinstance(one, Mapping) and one.get("low") is not None for one in columns
    )


def _extremes(reach: Reach, reasons: list[str]) -> None:
    last = len(reach.least) - 1
    if between_its_extremes(reach, last):
        reasons.append(
            "the records that the models read range from exactly 0 (or -1) to exactly 1, which "
            "only scaling by their own minimum and maximum produces. No privacy budget "
            "covers that release"
        )
    elif last > 1 and all(between_its_extremes(reach, row) for row in range(last)):
        reasons.append(
            "each client's records range from exactly 0 (or -1) to exactly 1: scaled by their own "
            "minimum and maximum, one record changes all others of its client"
        )


def _tested_on(bundle: Bundle, reasons: list[str]) -> dict[str, object]:
    """Test records that were trained on: accuracy on them is a release that nothing pays for."""
    records = bundle.records()
    if records.contents is None or records.test_contents is None:
        return {}
    known, times = np.unique(_keys(records.contents), return_counts=True)
    tested = _keys(records.test_contents)
    seen = int(np.isin(tested, known).sum())
    # Some records have an equal among the others anyway, in a small table most of them.
    usual = float(times[times > 1].sum()) / max(1, len(records.contents))
    rate = min(1.0, usual + _BY_CHANCE)
    if seen and binom.sf(seen - 1, len(tested), rate) < FALSE_ALARM:
        reasons.append(
            "records used to measure accuracy were also used for training: the published accuracy "
            "reveals something about them that no privacy budget covers"
        )
    return {"test_records_in_training": seen, "share_of_records_with_an_equal": usual}


def _keys(contents: Integers) -> NDArray[np.void]:
    """Digests [n, 16] as one value each, [n]."""
    rows = np.ascontiguousarray(contents.astype(np.uint8))
    keys: NDArray[np.void] = rows.view(np.dtype((np.void, rows.shape[1]))).ravel()
    return keys


def _scaling(moments: Moments, reasons: list[str]) -> dict[str, object]:
    last = len(moments.numbers) - 1
    if scaled_by_themselves(moments, last, _EXACT):
        reasons.append(
            "the records that the models read have mean 0 and deviation 1 to the last digit: they "
            "were scaled by their own statistics, a release that no privacy budget covers"
        )
    clients = [row for row in range(last) if moments.numbers[row] > 1]
    if clients and all(scaled_by_themselves(moments, row, _EXACT) for row in clients):
        reasons.append(
            "each client's records have mean 0 and deviation 1 to the last digit. One record "
            "changes how all others of its client are scaled, and so affects more than its own "
            "gradient"
        )
    return {
        "mean": float(moments.mean[last]),
        "deviation": float(moments.deviation[last]),
        "as_printed_constants_would": scaled_by_themselves(moments, last, _PRINTED),
    }


# Of runs on single records whose batches are Poisson draws: q and R move under add or remove.
_STATED = r"sampling rate.*\bspec states\b"
_DERIVED = {
    RECORD: r"number of records.*\bpublic\b.*sampling rate"
    r"|number of records.*sampling rate.*\bpublic\b",
    PERSON: r"number of people.*\bpublic\b.*sampling rate",
}


def _sizes(header: Header) -> dict[str, str]:
    """What a claim must say of the sampling rate that the header has; nothing where none moves."""
    if header.unit not in _DERIVED or header.sampling != "poisson":
        return {}
    if header.sampling_rate is not None:
        return {"that the sampling rate is a constant that the spec states": _STATED}
    return {"that the sampling rate follows from public sizes": _DERIVED[header.unit]}


def _statements(claim: Mapping[str, Any] | None, header: Header, reasons: list[str]) -> None:
    if claim is None:
        reasons.append("there is no claim that could state its assumptions")
        return
    try:
        said = fields.sequence(claim, "assumptions", most=1000)
    except FieldError as error:
        reasons.append(f"claim: {error}")
        return
    for what, pattern in (_SAID | _sizes(header)).items():
        if not any(re.search(pattern, str(one)[:4096], re.IGNORECASE) for one in said):
            reasons.append(f"the claim does not say {what}")
    if header.rate_assumption is not None and header.rate_assumption not in said:
        reasons.append(
            "the claim does not state what the ledger's header says about sampling rates"
        )


def _judge(bundle: Bundle) -> Judgement:
    reasons: list[str] = []
    private: dict[str, object] = {}
    claim = bundle.readable_ledger.claim
    _statements(claim, bundle.header, reasons)
    qualifications: tuple[str, ...] = ()
    try:
        qualifications = statement_faults(bundle.readable_spec, claim or {}, reasons)
    except FieldError as error:
        reasons.append(str(error))
    measured = False
    unreadable: list[str] = []
    cut = _cut_at_stated_bounds(bundle.readable_spec)
    try:
        moments = bundle.moments()
        if len(moments.numbers) != bundle.header.clients + 1:
            reasons.append("evidence/inputs.npz: it does not cover every client")
        else:
            private = _scaling(moments, reasons)
            if moments.reach is not None and not cut:
                _extremes(moments.reach, reasons)
        measured = bool(np.any(moments.numbers))
        private |= _tested_on(bundle, reasons)
    except UntrustedFileError as error:
        unreadable = [str(error)]
    if not (measured or reasons or unreadable):
        return Judgement(
            Verdict.PASS,
            "the claim states its assumptions, and accuracy is not measured on training records; "
            "how the records were scaled was not measured, because they are tokens or too many",
            qualifications=qualifications,
            power="a claim that omits its assumptions",
        )
    ends = "neither mean 0 and deviation 1 nor the ends 0 and 1 of records scaled by themselves"
    if cut:
        ends = (
            "not the mean 0 and deviation 1 of records scaled by themselves. Columns are cut at "
            "bounds that the spec states as known without the records, which no run can show"
        )
    return conclude(
        "the claim states the assumptions that no run can show. The numbers that the models read "
        f"have {ends}. Accuracy is not measured on training records",
        reasons,
        unreadable,
        private=private,
        qualifications=qualifications,
    )


UNACCOUNTED_PROCESSING = Check(
    name="outside-budget",
    title="Is every use of the records outside the privacy budget disclosed?",
    place=130,
    meaning="If it fails, private records were used, or may have been, in a way that no privacy "
    "budget covers.",
    claim="Records are scaled by constants that do not come from them, and the claim says which "
    "choices on private data it does not account for.",
    tolerance="5e-6 for a mean of 0 and a deviation of 1. Records of float32 that were scaled by "
    "their own statistics are off by 2^-24 of their mean over their deviation, at most 2.4e-6 "
    "where that is below 40. Constants from elsewhere come this close by chance with a probability "
    "of the order of the tolerance squared.",
    power="records scaled to mean 0 and deviation 1 by statistics of all of them, of each client, "
    "or of each channel or column. Continuous records scaled to the range from 0 or -1 to 1 by "
    "their minimum and maximum, where the spec states no bounds of columns; test records used for "
    "training. A claim that does not mention "
    "tuning, or where sampling rates come from",
    limits="Identical records show no scaling, and grey levels have no minimum and maximum of "
    "their own. Scaling to other values, constants rounded to a few digits, and vocabularies or "
    "words chosen from the records are not detected. A run cannot show whether settings were "
    "really tuned as the spec says, or not at all.",
    rule=_judge,
)
register(UNACCOUNTED_PROCESSING)
