"""Check "sensitivity" at client level: does one client move the sum of updates by at most C?

Two halves, as at record level: the recorded norms of every update, and the real sum under the
active probe with synthetic updates.
"""

from __future__ import annotations

import numpy as np

from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, listed, register
from audit.checks.record.sensitivity import SENSITIVITY
from audit.checks.shared.clipping import TOLERANCE, judge_probe, norm_faults
from audit.errors import UntrustedFileError, UnverifiedError
from audit.probe.update_probing import NONFINITE_KINDS, UPDATE_KINDS
from audit.reading.bundle import Bundle
from audit.reading.evidence import ProbeResults
from audit.verdict import Verdict


def _updates(bundle: Bundle, clip: float, reasons: list[str]) -> dict[str, object]:
    """Judge the recorded norms of all updates; returns private numbers."""
    count = clipped = 0
    for index, evidence in bundle.all_update_rounds():
        faults = norm_faults(evidence.raw_norms, evidence.clipped_norms, clip)
        reasons.extend(f"round {index}: {fault}" for fault in faults)
        if int(np.count_nonzero(~np.isfinite(evidence.raw_norms))) != evidence.nonfinite:
            reasons.append(f"round {index}: the count of non-finite updates is not the norms'")
        count += len(evidence.raw_norms)
        clipped += int(np.count_nonzero(~(evidence.raw_norms <= clip)))
    return {"updates_used": count, "share_clipped": clipped / count if count else None}


def _nonfinite(probe: ProbeResults, clip: float, reasons: list[str]) -> None:
    for row, (name, kind) in enumerate(zip(probe.names, probe.kinds, strict=True)):
        if kind in NONFINITE_KINDS and not probe.difference_norm[row] <= clip * TOLERANCE:
            reasons.append(f"probe, {name}: an update that is not finite does not count zero")


def _judge(bundle: Bundle) -> Judgement:
    clip = bundle.header.clipping_norm
    if clip is None:
        raise UnverifiedError("the ledger's header lacks C")
    reasons: list[str] = []
    private = _updates(bundle, clip, reasons)
    details: dict[str, object] = {}
    unreadable = ""
    try:
        probe = bundle.probe_results()
        details = {"probe": judge_probe(probe, clip, "client", reasons)}
        _nonfinite(probe, clip, reasons)
        if set(UPDATE_KINDS) - set(probe.kinds):
            unreadable = "the probe was not one of whole updates, or not of all their kinds"
        elif not np.any(probe.difference_norm > 0.0):
            unreadable = "no probe update contributes anything, so clipping was not exercised"
    except UntrustedFileError as error:
        unreadable = f"no results of the active probe ({error})"
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details, private)
    if unreadable:
        return Judgement(Verdict.NOT_VERIFIED, unreadable, details, private)
    return Judgement(
        Verdict.PASS,
        "norms of every client's whole update before and after clipping: each clipped norm is the "
        f"lesser of raw norm and C; and {len(probe.names)} synthetic neighbouring rounds, with "
        "extreme updates among them, move the real sum by at most C",
        details,
        private,
    )


CLIENT_SENSITIVITY = Check(
    name=SENSITIVITY.name,
    title="Does one client move the clipped sum by at most C?",
    units=AT_CLIENT_LEVEL,
    place=40,
    claim="Each client's whole update is clipped to norm C as one vector, and an update that is "
    "not finite counts zero.",
    tolerance="1e-4 of C for norms and sums computed in float32: a sum of d squares in float32 is "
    "off by at most a few times log2(d) rounding errors of 2^-24 each, below 1e-5; a sigma smaller "
    "by 1e-4 of itself changes epsilon by less than 0.03 %.",
    power="any update above C; clipping tensor by tensor or of the mean; non-finite or huge "
    "updates that slip through",
    limits="The probe uses synthetic updates, not the worst possible ones. That the recorded norms "
    "are those of the updates really summed is the recorder's word.",
    rule=_judge,
)
register(CLIENT_SENSITIVITY)
