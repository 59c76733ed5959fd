"""Check "sensitivity": how far does one record, or one client, move the clipped sum?

Two halves. The recorded norms of everything that was clipped are judged; and the real step, or the
real sum of updates, is poked with synthetic neighbours (the active probe), which also finds
clipping that looks right in the records but is applied to the wrong thing, such as the batch's
mean. One record's gradient and one client's update are clipped by the same rule. On single records
the batches are judged too: who is in them, and how often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from audit.checks.base import AT_CLIENT_LEVEL, AT_RECORD_LEVEL, Check, Judgement, conclude, register
from audit.errors import UntrustedFileError, UnverifiedError
from audit.probe.probing import PATH_KINDS
from audit.probe.updates import (
    ADDED,
    ADDED_PRECISELY,
    ALONE,
    CLIENT_KINDS,
    ELSEWHERE,
    MANY,
    NONFINITE_KINDS,
    REPEAT,
    REPLACED,
    ROUND_KINDS,
    UNEQUAL,
    UNMOVED,
    UPDATE_KINDS,
)
from audit.reading.bundle import Bundle
from audit.reading.evidence import ProbeResults, RoundEvidence, Seen
from audit.reading.ledger_lines import Spend, last_spends
from audit.reading.units import PERSON
from audit.statistics.batches import LAWS, Batches
from audit.untrusted.archives import Floats, Integers

TOLERANCE = 1e-4
# What float64 may leave of that: one rounding of it is a billion times smaller than float32's.
PRECISELY = 1e-6
# A record is left out whose gradient is so many times C long: the factor that would clip it is
# below the least normal float32, and rounded up it could leave more than C.
LEFT_OUT = (1.0 - 1e-6) * 2.0**126
# What float32's rounding can make of it where float64 shows that it is nothing else: behind a group
# norm, which divides a constant image by next to nothing, 0.0012 were seen.
ROUNDING = 1e-2
# A round's mean update is published with 16 significant bits, which leave an error of 2^-16 of it.
PUBLISHED = 1e-3


def norm_faults(raw: Floats, clipped: Floats, clip: float) -> list[str]:
    """What is wrong with norms before and after clipping to C; empty if nothing is.

    The clipped norm is the lesser of the raw norm and C, and 0 where the raw one is not finite;
    where it is finite and next to infinite, the record may count 0 as well.
    """
    if not np.isfinite(clipped).all() or np.any(clipped < 0.0):
        return ["a clipped norm is not a finite number from 0"]
    faults = []
    if np.any(clipped > clip * (1.0 + TOLERANCE)):
        faults.append("a clipped norm exceeds C")
    expected = np.where(np.isfinite(raw), np.minimum(raw, clip), 0.0)
    off = np.abs(clipped - expected) > clip * TOLERANCE
    if np.any(off & ~((clipped == 0.0) & (raw >= clip * LEFT_OUT))):
        faults.append("a clipped norm is not the lesser of its raw norm and C")
    return faults


def judge_probe(
    probe: ProbeResults, clip: float, one: str, reasons: list[str]
) -> dict[str, object]:
    """Judge the active probe: nobody moves the sum by more than C, whatever they bring.

    Replacing takes one contribution out and puts another one in, and may move the sum by 2C. A
    record that does not take part moves nothing, and one that does contributes independently of the
    rest. Other parameters must give another sum, or the step is taken at parameters that are not
    the model's.

    Args:
        probe: its raw results.
        clip: C of the ledger.
        one: whose data were added, "record" or "client".
        reasons: gets a sentence for everything that is wrong.

    Returns:
        Public numbers: everything here was measured on synthetic data.
    """
    if abs(probe.clipping_norm / clip - 1.0) > 1e-9:
        reasons.append("the probed step's clipping norm is not the ledger's C")
    excused = _known_as_rounding(probe, clip)
    pairs = _pairs(probe)
    for pair in pairs:
        reasons.extend(
            f"probe, {pair.name}: {fault}" for fault in _faults(pair, clip, one, excused)
        )
    elsewhere = [pair for pair in pairs if pair.kind == ELSEWHERE and pair.finite]
    if elsewhere and all(pair.difference == 0.0 and max(pair.norms) > 0.0 for pair in elsewhere):
        names = " and ".join(pair.name for pair in elsewhere)
        reasons.append(f"probe, {names}: the step does not depend on the model's parameters")
    replaced = np.asarray([kind == REPLACED for kind in probe.kinds], dtype=np.bool_)
    parts = (REPLACED, ADDED, UNEQUAL, ADDED_PRECISELY, ELSEWHERE)
    added = np.asarray([kind not in parts for kind in probe.kinds], dtype=np.bool_)

    def largest(chosen: NDArray[np.bool_]) -> float:
        norms = probe.difference_norm[chosen & np.isfinite(probe.difference_norm)]
        return float(norms.max(initial=0.0)) / clip

    return {
        "pairs": len(probe.names),
        "largest_difference_over_clipping_norm": largest(added),
        "largest_difference_of_a_replaced_one": largest(replaced) if replaced.any() else None,
        "tolerance": TOLERANCE,
        "pairs_judged_in_float64": len(excused),
    }


@dataclass(frozen=True)
class _Pair:
    """Two neighbouring batches that were probed.

    Attributes:
        name: what they are, for the reasons.
        kind: how they differ.
        difference: length of the difference of their sums.
        norms: lengths of the sums with and without what was added.
        batch_size: contributions to the smaller one.
    """

    name: str
    kind: str
    difference: float
    norms: tuple[float, float]
    batch_size: int

    @property
    def finite(self) -> bool:
        return bool(np.isfinite([self.difference, *self.norms]).all())


def _pairs(probe: ProbeResults) -> list[_Pair]:
    return [
        _Pair(
            name,
            kind,
            float(probe.difference_norm[row]),
            (float(probe.norm_with[row]), float(probe.norm_without[row])),
            int(probe.batch_size[row]),
        )
        for row, (name, kind) in enumerate(zip(probe.names, probe.kinds, strict=True))
    ]


def _faults(pair: _Pair, clip: float, one: str, excused: Mapping[str, float]) -> Iterator[str]:
    """What is wrong with one pair by itself.

    Args:
        pair: the pair.
        clip: C of the ledger.
        one: whose data were added, "record" or "client".
        excused: limits of pairs that rounding explains, as `_known_as_rounding` gives them.
    """
    kind, share = pair.kind, pair.difference / clip
    published = kind in CLIENT_KINDS or (one == "client" and kind == REPLACED)
    limit = clip * (1.0 + (PUBLISHED if published else TOLERANCE))
    changed = pair.difference > clip * TOLERANCE
    if not pair.finite:
        yield "the clipped sum is not finite"
    elif kind == ELSEWHERE:
        pass  # Judged with the others of its kind.
    elif kind in (ADDED, UNEQUAL, ADDED_PRECISELY):
        allowed = PRECISELY if kind == ADDED_PRECISELY else excused.get(pair.name, ALONE)
        if pair.difference > clip * allowed:
            precisely = ", in float64" if kind == ADDED_PRECISELY else ""
            yield (
                f"together with others, one {one} moves the sum by {share:.4g} C differently than "
                f"alone{precisely}"
            )
    elif kind in UNMOVED and kind != REPEAT and changed:
        yield f"one {one} that takes no part moves the sum by {share:.4g} C"
    elif pair.difference > limit * (2.0 if kind == REPLACED else 1.0):
        yield f"one {one} moves the sum by {share:.4g} C"
    # Summing in another order may change the last bits only.
    if kind == REPEAT and changed:
        yield "the same batch gives different sums"
    if kind != REPLACED and pair.batch_size == 0 and pair.norms[1] != 0.0:
        yield "an empty batch does not give the zero vector"
    if kind != ELSEWHERE and pair.norms[0] > (pair.batch_size + 1) * limit:
        yield f"the sum is longer than its {one}s allow"


def _known_as_rounding(probe: ProbeResults, clip: float) -> dict[str, float]:
    """Limits, as shares of C, of the pairs that are the same in float64, by name.

    Nothing is excused that has no second opinion, or one that is not far below the limit of all.
    """
    return {
        name: ROUNDING
        for row, (name, kind) in enumerate(zip(probe.names, probe.kinds, strict=True))
        if kind == ADDED_PRECISELY and float(probe.difference_norm[row]) <= clip * PRECISELY
    }


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
        raise UnverifiedError(f"the sampler {sampling[:40]!r} is unknown")
    batches, promised = Batches(sampling), bundle.header.contents is not None
    for index, evidence in bundle.all_rounds():
        _gradients(index, evidence, norms)
        _participations(index, evidence, charges, batches, reasons, promised)
    private = batches.judge(reasons) | norms.private("records")

    def fault(probe: ProbeResults) -> str | None:
        if set(PATH_KINDS) - set(probe.kinds):
            return (
                "the probe called only the clipped sum: the steps between the clients' rows and "
                "the sum were not exercised"
            )
        if bundle.header.unit is PERSON and MANY not in probe.kinds:
            return "the probe had no person with several records: their mean was not exercised"
        return _of_one_length(bundle, probe)

    one = "person" if bundle.header.unit is PERSON else "record"
    details, pairs, unreadable = _probe(bundle, norms, one, one, fault)
    return conclude(
        f"norms of every {one} of {batches.steps} steps before and after clipping: each clipped "
        f"norm is the lesser of raw norm and C; {LAWS[sampling]}. {pairs} synthetic neighbouring "
        f"batches, extreme {one}s among them, went through the real step, from the clients' rows "
        "on. They move its answer by at most C where one is added or removed, by 2C where one is "
        "replaced and not at all where one is not drawn",
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
            return "the probe summed made-up updates: the clients' local training was not exercised"
        return _of_one_length(bundle, probe)

    details, pairs, unreadable = _probe(bundle, norms, "client", "update", fault)
    return conclude(
        "norms of every client's whole update before and after clipping: each clipped norm is the "
        f"lesser of raw norm and C. {pairs} synthetic neighbouring rounds, with extreme "
        "updates and clients among them, move the real sum by at most C, local training included",
        reasons,
        unreadable,
        details=details,
        private=norms.private("updates"),
    )


_FLOAT32 = (
    "1e-4 of C for norms and sums computed in float32. A sum of d squares in float32 is off by at "
    "most a few times log2(d) rounding errors of 2^-24 each, below 1e-5. A sigma smaller by 1e-4 "
    "of itself changes epsilon by less than 0.03 %."
)
SENSITIVITY = Check(
    name="sensitivity",
    title="Does one record move the clipped sum by no more than the noise covers?",
    units=AT_RECORD_LEVEL,
    place=40,
    meaning="If it fails, one record can have a larger effect than the noise hides.",
    claim="Each record's whole gradient is clipped to norm C and counts zero if not finite. "
    "A record added or removed moves the sum by at most C and a replaced one by at most 2C. "
    "Batches are drawn as the ledger says.",
    tolerance=f"{_FLOAT32} Poisson batches: exact binomial test of the mean size for every client, "
    "and a test of the sizes' variance. Exact tests of how many batches of all clients are empty "
    "and how many are at either end of their distribution. A bound on how often records repeat "
    "between batches, and an exact binomial test of the record that is in most batches of its "
    "client. Together at most one false alarm in 1000 correct runs (Bonferroni). Fixed "
    "sizes and epochs exactly.",
    power="any record above C; clipping of a batch's mean or sum, or per tensor. Non-finite or "
    "huge records that slip through. A record that changes how others are read, whether by "
    "statistics of a batch, of a client or of all, by its length, by mixing, or by a divisor. A "
    "step at parameters that are not the model's; batches of fixed size that pose as Poisson "
    "samples; a record that is in most batches",
    limits="The probe uses synthetic records, not the worst possible ones, and starts after the "
    "data set has been read. It does not cover what a file reader does to all records. The "
    "evidence records how often a record was used in a participation, but not in which batches.",
    rule=_of_records,
)
register(SENSITIVITY)
register(
    replace(
        SENSITIVITY,
        title="Does one client move the clipped sum by at most C?",
        meaning="If it fails, one client can have a larger effect than the noise hides.",
        units=AT_CLIENT_LEVEL,
        claim="Each client's whole update is clipped to norm C as one vector, and an update that "
        "is not finite counts zero.",
        tolerance=_FLOAT32,
        power="any update above C; clipping tensor by tensor or of the mean. Non-finite or huge "
        "updates that slip through; a client that affects another one's local training, by "
        "leftover state or by statistics of all",
        limits="The probe uses synthetic updates, not the worst possible ones. That the recorded "
        "norms are those of the updates really summed rests on the recorder alone.",
        rule=_of_updates,
    )
)
