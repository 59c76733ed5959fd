"""Check "sensitivity": how far does one record, or one client, move the clipped sum?

Two halves. The recorded norms of everything that was clipped are judged; and the real step, or the
real sum of updates, is poked with synthetic neighbours (the active probe), which also finds
clipping that looks right in the records but is applied to the wrong thing, such as the batch's
mean. On single records the batches are judged too: who is in them, and how often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from audit.checks.base import (
    AT_CLIENT_LEVEL,
    AT_RECORD_LEVEL,
    Check,
    Judgement,
    conclude,
    register,
)
from audit.checks.shared.clipping import TOLERANCE, judge_probe, norm_faults
from audit.errors import UntrustedFileError, UnverifiedError
from audit.probe.probe_tally import MANY, UNEQUAL
from audit.probe.probing import PATH_KINDS
from audit.probe.update_probing import NONFINITE_KINDS, ROUND_KINDS, UPDATE_KINDS
from audit.reading.bundle import Bundle
from audit.reading.evidence import ProbeResults, RoundEvidence, Seen
from audit.reading.ledger_lines import Spend, last_spends
from audit.reading.units import PERSON
from audit.statistics.batches import LAWS, Batches
from audit.untrusted.archives import Floats, Integers

Charges = Mapping[tuple[int, int], Spend]


class _Norms:
    """Norms before and after clipping, judged round by round and counted."""

    def __init__(self, bundle: Bundle, reasons: list[str]) -> None:
        clip = bundle.header.clipping_norm
        if clip is None:
            raise UnverifiedError("the ledger's header lacks C")
        self.clip = clip
        self.reasons = reasons
        self._count = self._clipped = 0

    def judge(self, index: int, raw: Floats, clipped: Floats) -> None:
        """Add one round."""
        faults = norm_faults(raw, clipped, self.clip)
        self.reasons.extend(f"round {index}: {fault}" for fault in faults)
        self._count += len(raw)
        self._clipped += int(np.count_nonzero(~(raw <= self.clip)))

    def private(self, what: str) -> dict[str, object]:
        """How many there were, and which share was clipped."""
        share = self._clipped / self._count if self._count else None
        return {f"{what}_used": self._count, "share_clipped": share}


def _gradients(index: int, evidence: RoundEvidence, norms: _Norms) -> None:
    """Norms of every gradient: as many, and as many that are not finite, as the batches say."""
    sizes = np.diff(evidence.record_offsets).reshape(evidence.batch_size.shape)
    if np.any(sizes != evidence.batch_size):
        norms.reasons.append(f"round {index}: as many norms as records are not recorded")
    norms.judge(index, evidence.raw_norms, evidence.clipped_norms)
    groups = np.repeat(np.arange(sizes.size), sizes.ravel())
    infinite = ~np.isfinite(evidence.raw_norms)
    bad = np.bincount(groups, weights=infinite, minlength=sizes.size).reshape(sizes.shape)
    if np.any(bad != evidence.nonfinite):
        fault = "the count of non-finite gradients is not that of the norms"
        norms.reasons.append(f"round {index}: {fault}")


def _participations(
    index: int,
    evidence: RoundEvidence,
    charges: Charges,
    batches: Batches,
    reasons: list[str],
    promised: bool = False,
) -> None:
    """Hand every client's batches of a round over to the judgement on the sampler.

    Which batch was read for each query counts where the header `promised` it, with the contents.
    """
    start = 0
    for row, client in enumerate(evidence.clients):
        charge = charges.get((index, int(client)))
        if charge is None:
            raise UnverifiedError(f"round {index}: client {int(client)} was never charged")
        used = evidence.inclusions[start : start + charge.records]
        start += charge.records
        where = f"round {index}, client {int(client)}"
        if len(used) == charge.records:
            read = _read_by(evidence.seen, int(client)) if promised else None
            batches.add(where, charge, evidence.batch_size[row], used, reasons, read)
    if start != len(evidence.inclusions):
        reasons.append(f"round {index}: not every record's use is counted")


def _read_by(seen: Seen | None, client: int) -> Integers | None:
    """Digests of the batches that a client's gradients were taken of, as far as they are told."""
    if seen is None or seen.batches is None:
        return None
    own: Integers = seen.batches[seen.clients == client]
    return own


def _probe(
    bundle: Bundle,
    norms: _Norms,
    one: str,
    brought: str,
    fault: Callable[[ProbeResults], str | None],
) -> tuple[dict[str, object], int, list[str]]:
    """Judge the active probe: its public numbers, its pairs, and why it shows nothing if so."""
    try:
        probe = bundle.probe_results()
    except UntrustedFileError as error:
        return {}, 0, [f"no results of the active probe ({error})"]
    found: dict[str, object] = {"probe": judge_probe(probe, norms.clip, one, norms.reasons)}
    why = fault(probe)
    if why is None and not np.any(probe.difference_norm > 0.0):
        why = f"no probe {brought} contributes anything, so clipping was not exercised"
    return found, len(probe.names), [] if why is None else [why]


def _of_one_length(bundle: Bundle, probe: ProbeResults) -> str | None:
    """Why the probe of a model that reads texts shows nothing: no record of it was padded."""
    model = bundle.readable_spec.get("model")
    keys = model if isinstance(model, Mapping) else {}
    if not keys.get("vocabulary", keys.get("length")) or UNEQUAL in probe.kinds:
        return None
    return (
        "the model reads texts, and no probed record was shorter than others: padding was not "
        "exercised"
    )


def _of_records(bundle: Bundle) -> Judgement:
    reasons: list[str] = []
    norms, charges = _Norms(bundle, reasons), last_spends(bundle.readable_ledger.spends)
    sampling = bundle.header.sampling or ""
    if sampling not in LAWS:
        raise UnverifiedError(f"nothing is known of the sampler {sampling[:40]!r}")
    batches, promised = Batches(sampling), bundle.header.contents is not None
    for index, evidence in bundle.all_rounds():
        _gradients(index, evidence, norms)
        _participations(index, evidence, charges, batches, reasons, promised)
    private = batches.judge(reasons) | norms.private("records")

    def fault(probe: ProbeResults) -> str | None:
        if set(PATH_KINDS) - set(probe.kinds):
            return (
                "the probe called the clipped sum alone: what lies between the clients' rows and "
                "it was not exercised"
            )
        if bundle.header.unit is PERSON and MANY not in probe.kinds:
            return "the probe had nobody with several records: their mean was not exercised"
        return _of_one_length(bundle, probe)

    one = "person" if bundle.header.unit is PERSON else "record"
    details, pairs, unreadable = _probe(bundle, norms, one, one, fault)
    return conclude(
        f"norms of every {one} of {batches.steps} steps before and after clipping: each clipped "
        f"norm is the lesser of raw norm and C; {LAWS[sampling]}; and {pairs} synthetic "
        f"neighbouring batches, extreme {one}s among them, move the real step's answer, from the "
        "clients' rows on, by at most C where one is added or removed, by 2C where one is replaced "
        "and not at all where one is not drawn",
        reasons,
        unreadable,
        details=details | {"steps": batches.steps, "clients_tested": batches.clients},
        private=private,
        power=f"{SENSITIVITY.power}; {batches.power()}" if reasons or not unreadable else None,
    )


def _of_updates(bundle: Bundle) -> Judgement:
    reasons: list[str] = []
    norms = _Norms(bundle, reasons)
    for index, evidence in bundle.all_update_rounds():
        norms.judge(index, evidence.raw_norms, evidence.clipped_norms)
        if int(np.count_nonzero(~np.isfinite(evidence.raw_norms))) != evidence.nonfinite:
            reasons.append(f"round {index}: the count of non-finite updates is not the norms'")

    def fault(probe: ProbeResults) -> str | None:
        for row, (name, kind) in enumerate(zip(probe.names, probe.kinds, strict=True)):
            if kind in NONFINITE_KINDS and not probe.difference_norm[row] <= norms.clip * TOLERANCE:
                reasons.append(f"probe, {name}: an update that is not finite does not count zero")
        if set(UPDATE_KINDS) - set(probe.kinds):
            return "the probe was not one of whole updates, or not of all their kinds"
        if set(ROUND_KINDS) - set(probe.kinds):
            return (
                "the probe summed updates that were made up: the clients' local training was not "
                "exercised"
            )
        return _of_one_length(bundle, probe)

    details, pairs, unreadable = _probe(bundle, norms, "client", "update", fault)
    return conclude(
        "norms of every client's whole update before and after clipping: each clipped norm is the "
        f"lesser of raw norm and C; and {pairs} synthetic neighbouring rounds, with extreme "
        "updates and clients among them, move the real sum by at most C, local training included",
        reasons,
        unreadable,
        details=details,
        private=norms.private("updates"),
    )


_FLOAT32 = (
    "1e-4 of C for norms and sums computed in float32: a sum of d squares in float32 is off by at "
    "most a few times log2(d) rounding errors of 2^-24 each, below 1e-5; a sigma smaller by 1e-4 "
    "of itself changes epsilon by less than 0.03 %."
)
SENSITIVITY = Check(
    name="sensitivity",
    title="Does one record move the clipped sum by no more than the noise is made for?",
    units=AT_RECORD_LEVEL,
    place=40,
    meaning="If it fails, one record can weigh more than the noise was made to hide.",
    claim="Each record's whole gradient is clipped to norm C and counts zero if not finite: "
    "a record added or removed moves the sum by at most C and a replaced one by at most 2C; and "
    "batches are drawn as the ledger says.",
    tolerance=f"{_FLOAT32} Poisson batches: exact "
    "binomial test of the mean size for every client, a test of the sizes' scatter, exact tests of "
    "how many batches of all clients are empty and how many lie at either end of their law, and a "
    "bound on how often records repeat between batches, together at most one false alarm in 1000 "
    "correct runs (Bonferroni); fixed sizes and epochs exactly.",
    power="any record above C; clipping of a batch's mean or sum, or per tensor; non-finite or "
    "huge records that slip through; a record that moves how others are read, whether by "
    "statistics of a batch, of a client or of all, by its length, by mixing, or by a divisor; a "
    "step at other parameters than the model's; batches of fixed size that pose as Poisson samples",
    limits="The probe uses synthetic records, not the worst possible ones, and begins where the "
    "data set has been read: what a reader of files does to all records lies before it. How often "
    "a record was used in a participation is recorded, not in which batches.",
    rule=_of_records,
)
register(SENSITIVITY)
register(
    replace(
        SENSITIVITY,
        title="Does one client move the clipped sum by at most C?",
        meaning="If it fails, one client can weigh more than the noise was made to hide.",
        units=AT_CLIENT_LEVEL,
        claim="Each client's whole update is clipped to norm C as one vector, and an update that "
        "is not finite counts zero.",
        tolerance=_FLOAT32,
        power="any update above C; clipping tensor by tensor or of the mean; non-finite or huge "
        "updates that slip through; a client that moves another one's local training, by what it "
        "leaves behind or by statistics of all",
        limits="The probe uses synthetic updates, not the worst possible ones. That the recorded "
        "norms are those of the updates really summed is the recorder's word.",
        rule=_of_updates,
    )
)
