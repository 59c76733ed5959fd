"""Check "sensitivity": does one record move the clipped sum by at most C, and are batches Poisson?

Two halves. The recorded norms of every record used in training are judged; and the real step is
poked with synthetic neighbouring batches (the active probe), which also finds clipping that looks
right in the records but is applied to the wrong thing, such as the batch's mean.
"""

from __future__ import annotations

import numpy as np

from audit.bundle import Bundle
from audit.checks.base import Check, Context, Judgement, listed, no_claim
from audit.checks.clipping import judge_probe, norm_faults
from audit.checks.noise import last_attempts
from audit.errors import UntrustedFileError, UnverifiedError
from audit.evidence import RoundEvidence
from audit.statistics import FALSE_ALARM, binomial_p_value, chi_square_interval
from audit.verdict import Severity, Verdict

_RATE_SHARE, _SPREAD_SHARE = 0.5, 0.5
_LEAST_VARIANCE = 1.0


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


def rate_alpha(clients: int) -> float:
    """False alarms that the test of one client's sampling rate may raise."""
    return FALSE_ALARM * _RATE_SHARE / max(1, clients)


class _Batches:
    """Realised batch sizes of every client, against Binomial(R, q)."""

    def __init__(self) -> None:
        self.sizes: dict[tuple[int, int, float], list[int]] = {}

    def add(self, client: int, records: int, rate: float, sizes: list[int]) -> None:
        self.sizes.setdefault((client, records, rate), []).extend(sizes)

    def judge(self, reasons: list[str]) -> dict[str, object]:
        alpha = rate_alpha(len(self.sizes))
        observed = expected = variance = 0.0
        p_values: dict[str, float] = {}
        for (client, records, rate), sizes in sorted(self.sizes.items()):
            trials = len(sizes) * records
            if max(sizes) > records:
                reasons.append(f"client {client}: a batch is larger than its records")
                continue
            p_values[str(client)] = binomial_p_value(sum(sizes), trials, rate)
            if p_values[str(client)] < alpha:
                reasons.append(f"client {client}: its batches are not drawn at rate q = B/R")
            spread = records * rate * (1.0 - rate)
            if spread >= _LEAST_VARIANCE:
                squares = np.square(np.asarray(sizes) - records * rate) / spread
                kurtosis = (1.0 - 6.0 * rate * (1.0 - rate)) / spread
                observed += float(squares.sum())
                expected += len(sizes)
                variance += len(sizes) * (2.0 + kurtosis)
        if expected:
            # The gamma law with the exact mean and variance of the sum of squares.
            degrees = 2.0 * expected**2 / variance
            low, high = chi_square_interval(degrees, FALSE_ALARM * _SPREAD_SHARE)
            if not low <= observed / expected <= high:
                side = "less" if observed < low * expected else "more"
                reasons.append(f"batch sizes scatter {side} than Poisson sampling lets them")
        return {
            "batch_rate_p_values": p_values,
            "batch_dispersion": observed / expected if expected else None,
        }


def _judge(bundle: Bundle, context: Context) -> Judgement:
    skipped = no_claim(bundle)
    if skipped is not None:
        return skipped
    clip = bundle.header.clipping_norm
    if clip is None:
        raise UnverifiedError("the ledger's header lacks C")
    charges = last_attempts(bundle.readable_ledger.spends)
    reasons: list[str] = []
    batches = _Batches()
    count = clipped = queries = 0
    for index, evidence in bundle.all_rounds():
        queries += evidence.batch_size.size
        _norms(index, evidence, clip, reasons)
        count += len(evidence.raw_norms)
        clipped += int(np.count_nonzero(~(evidence.raw_norms <= clip)))
        for row, client in enumerate(evidence.clients):
            charge = charges.get((index, int(client)))
            if charge is None:
                raise UnverifiedError(f"round {index}: client {int(client)} was never charged")
            # Queries on one batch have its size each, and count as one draw.
            sizes = evidence.batch_size[row].reshape(-1, charge.queries_per_step)
            if np.any(sizes != sizes[:, :1]):
                reasons.append(f"round {index}: queries on one batch are of different sizes")
            batches.add(
                charge.client,
                charge.records,
                charge.sampling_rate,
                [int(size) for size in sizes[:, 0]],
            )
    private = batches.judge(reasons)
    private |= {"records_used": count, "share_clipped": clipped / count if count else None}
    unreadable = ""
    details: dict[str, object] = {}
    try:
        probe = context.probe if context.probe is not None else bundle.probe_results()
        details = {"probe": judge_probe(probe, clip, "record", reasons)}
        if not np.any(probe.difference_norm > 0.0):
            unreadable = "no probe record contributes anything, so clipping was not exercised"
    except UntrustedFileError as error:
        unreadable = f"no results of the active probe ({error})"
    details |= {"queries": queries, "clients_tested": len(batches.sizes)}
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details, private)
    if unreadable:
        return Judgement(Verdict.NOT_VERIFIED, unreadable, details, private)
    return Judgement(
        Verdict.PASS,
        f"norms of every record of {queries} queries before and after clipping: each clipped norm "
        "is the lesser of raw norm and C; batch sizes follow Binomial(R, q) for every client; and "
        f"{len(probe.names)} synthetic neighbouring batches, extreme records among them, move the "
        "real step's sum by at most C",
        details,
        private,
    )


SENSITIVITY = Check(
    name="sensitivity",
    title="Does one record move the clipped sum by at most C?",
    severity=Severity.CRITICAL,
    claim="Each record's whole gradient is clipped to norm C, non-finite gradients count zero, and "
    "batches are Poisson samples.",
    tolerance="1e-4 of C for norms and sums computed in float32: a sum of d squares in float32 is "
    "off by at most a few times log2(d) rounding errors of 2^-24 each, below 1e-5; a sigma "
    "smaller by 1e-4 of itself changes epsilon by less than 0.03 %. Batch sizes: exact binomial "
    "test of the mean for every client and a test of the scatter, together one false alarm in "
    "1000 correct runs (Bonferroni).",
    power="any record above C; clipping of a batch's mean or sum, or per tensor; non-finite or "
    "huge records that slip through; batches of fixed size",
    limits="The probe uses synthetic records, not the worst possible ones. Which records a batch "
    "held is not recorded, so independence between batches is not tested.",
    judge=_judge,
)
