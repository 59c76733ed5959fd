"""Check "sensitivity": how far does one record move the clipped sum, and who is in a batch?

Two halves. The recorded norms of every record used in training are judged; and the real step is
poked with synthetic neighbouring batches (the active probe), which also finds clipping that looks
right in the records but is applied to the wrong thing, such as the batch's mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, listed, register
from audit.checks.record.noise import last_attempts
from audit.checks.shared.clipping import judge_probe, norm_faults
from audit.errors import UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle
from audit.reading.evidence import RoundEvidence
from audit.reading.spends import Spend
from audit.statistics.batches import LAWS, Batches
from audit.verdict import Verdict

Charges = Mapping[tuple[int, int], Spend]


def _norms(index: int, evidence: RoundEvidence, clip: float, reasons: list[str]) -> None:
    sizes = np.diff(evidence.record_offsets).reshape(evidence.batch_size.shape)
    if np.any(sizes != evidence.batch_size):
        reasons.append(f"round {index}: as many norms as records are not recorded")
    faults = norm_faults(evidence.raw_norms, evidence.clipped_norms, clip)
    reasons.extend(f"round {index}: {fault}" for fault in faults)
    finite = np.isfinite(evidence.raw_norms)
    groups = np.repeat(np.arange(sizes.size), sizes.ravel())
    bad = np.bincount(groups, weights=~finite, minlength=sizes.size).reshape(sizes.shape)
    if np.any(bad != evidence.nonfinite):
        reasons.append(f"round {index}: the count of non-finite gradients is not that of the norms")


def _participations(
    index: int, evidence: RoundEvidence, charges: Charges, batches: Batches, reasons: list[str]
) -> None:
    """Hand every client's batches of a round over to the judgement on the sampler."""
    start = 0
    for row, client in enumerate(evidence.clients):
        charge = charges.get((index, int(client)))
        if charge is None:
            raise UnverifiedError(f"round {index}: client {int(client)} was never charged")
        used = evidence.inclusions[start : start + charge.records]
        start += charge.records
        where = f"round {index}, client {int(client)}"
        if len(used) == charge.records:
            batches.add(where, charge, evidence.batch_size[row], used, reasons)
    if start != len(evidence.inclusions):
        reasons.append(f"round {index}: not every record's use is counted")


def _judge(bundle: Bundle) -> Judgement:
    clip = bundle.header.clipping_norm
    if clip is None:
        raise UnverifiedError("the ledger's header lacks C")
    charges = last_attempts(bundle.readable_ledger.spends)
    reasons: list[str] = []
    sampling = bundle.header.sampling or ""
    if sampling not in LAWS:
        raise UnverifiedError(f"nothing is known of the sampler {sampling[:40]!r}")
    batches = Batches(sampling)
    count = clipped = 0
    for index, evidence in bundle.all_rounds():
        _norms(index, evidence, clip, reasons)
        count += len(evidence.raw_norms)
        clipped += int(np.count_nonzero(~(evidence.raw_norms <= clip)))
        _participations(index, evidence, charges, batches, reasons)
    private = batches.judge(reasons)
    private |= {"records_used": count, "share_clipped": clipped / count if count else None}
    unreadable = ""
    details: dict[str, object] = {}
    try:
        probe = bundle.probe_results()
        details = {"probe": judge_probe(probe, clip, "record", reasons)}
        if not np.any(probe.difference_norm > 0.0):
            unreadable = "no probe record contributes anything, so clipping was not exercised"
    except UntrustedFileError as error:
        unreadable = f"no results of the active probe ({error})"
    power = f"{SENSITIVITY.power}; {batches.power()}"
    details |= {"steps": batches.steps, "clients_tested": batches.clients}
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details, private, power=power)
    if unreadable:
        return Judgement(Verdict.NOT_VERIFIED, unreadable, details, private)
    return Judgement(
        Verdict.PASS,
        f"norms of every record of {batches.steps} steps before and after clipping: each clipped "
        f"norm is the lesser of raw norm and C; {LAWS[sampling]}; and {len(probe.names)} synthetic "
        "neighbouring batches, extreme records among them, move the real step's sum by at most C "
        "where one is added or removed and 2C where one is replaced",
        details,
        private,
        power=power,
    )


SENSITIVITY = Check(
    name="sensitivity",
    title="Does one record move the clipped sum by no more than the noise is made for?",
    units=AT_RECORD_LEVEL,
    place=40,
    claim="Each record's whole gradient is clipped to norm C and counts zero if not finite: "
    "a record added or removed moves the sum by at most C and a replaced one by at most 2C; and "
    "batches are drawn as the ledger says.",
    tolerance="1e-4 of C for norms and sums computed in float32: a sum of d squares in float32 is "
    "off by at most a few times log2(d) rounding errors of 2^-24 each, below 1e-5; a sigma "
    "smaller by 1e-4 of itself changes epsilon by less than 0.03 %. Poisson batches: exact "
    "binomial test of the mean size for every client, a test of the sizes' scatter, and a bound on "
    "how often records repeat between batches, together at most one false alarm in 1000 correct "
    "runs (Bonferroni); fixed sizes and epochs exactly.",
    power="any record above C; clipping of a batch's mean or sum, or per tensor; non-finite or "
    "huge records that slip through; batches of fixed size that pose as Poisson samples",
    limits="The probe uses synthetic records, not the worst possible ones. How often a record was "
    "used in a participation is recorded, not in which batches.",
    rule=_judge,
)
register(SENSITIVITY)
