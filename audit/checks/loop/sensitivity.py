"""Check "sensitivity" on a recorded loop: does one record move its clipped sum by C at most?

Two halves, as for the engine's runs. The sum that the loop made is held against one that the
recorder clipped and added up itself, at sampled coordinates; and the loop's own model and optimiser
are poked with synthetic records.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.shared.clipping import TOLERANCE, judge_probe
from audit.errors import AuditError, UnverifiedError
from audit.probe.probe_tally import ABSENT, ADDED, ELSEWHERE, NOT_DRAWN
from audit.probe.update_probing import UPDATE_KINDS
from audit.reading.bundle import Bundle
from audit.reading.evidence import ProbeResults
from audit.reading.ledger_lines import Spend, last_spends
from audit.reading.loop_evidence import LoopEvidence
from audit.reading.units import LOOP

# Sums of float32 in another order, and the 1e-6 that Opacus adds to every norm.
_SUMS = 2e-3
_EXTREME = (
    "scaled by 1e30", "plus infinity", "not a number", "one coordinate infinite", "minus 1e38",
)  # fmt: skip
UNGUARDED_UPDATE = (
    "a client whose update is not finite is not left out: it would make the model not finite, "
    "which tells that it was there"
)
UNTRAINED = "how a client comes to its update was not looked at"
UNGUARDED = (
    "a record whose gradient is not finite is not left out: it would make the model not finite, "
    "which tells that it was there"
)
_OF_RECORDS = (
    "the clipped sums of {steps} steps are those that the recorder computes of the records' "
    "own gradients at sampled coordinates; and synthetic neighbouring batches, records that "
    "must be clipped among them, move the sum of the loop's own model and optimiser by at most "
    "C where a record is added and by 2C where one is replaced"
)


def _sums(index: int, evidence: LoopEvidence, charge: Spend, reasons: list[str]) -> None:
    clip, where = charge.clipping_norm, f"file {index}"
    if np.any(evidence.nonfinite):
        reasons.append(f"{where}: a record's gradient is not finite")
        return
    apart = np.linalg.norm(evidence.clean - evidence.expected, axis=1)
    size = np.linalg.norm(evidence.expected, axis=1)
    if not np.all(apart <= _SUMS * (clip + size)):
        reasons.append(
            f"{where}: the sum is not that of this step's records, each clipped to C over all "
            "trained parameters (another norm, parameters left out of it, or sums of earlier steps)"
        )
    longest = np.sqrt(evidence.clean_sum_squares[0].sum(axis=1))
    if np.any(longest > evidence.batch_size[0] * clip * (1.0 + TOLERANCE) + clip * TOLERANCE):
        reasons.append(f"{where}: the sum is longer than its records, clipped to C, allow")


def _finite(probe: ProbeResults) -> tuple[ProbeResults, bool]:
    """The probe without extreme records whose sums are not finite, and whether there were any."""
    finite = np.isfinite(probe.difference_norm)
    finite &= np.isfinite(probe.norm_with) & np.isfinite(probe.norm_without)
    extreme = np.asarray([any(kind in name for kind in _EXTREME) for name in probe.names])
    kept = finite | ~extreme
    rows = np.flatnonzero(kept)
    return (
        replace(
            probe,
            names=tuple(probe.names[row] for row in rows),
            kinds=tuple(probe.kinds[row] for row in rows),
            batch_size=probe.batch_size[rows],
            difference_norm=probe.difference_norm[rows],
            norm_with=probe.norm_with[rows],
            norm_without=probe.norm_without[rows],
        ),
        bool(np.any(~kept)),
    )


def _judge(bundle: Bundle) -> Judgement:
    charges = last_spends(bundle.readable_ledger.spends)
    reasons: list[str] = []
    steps = clipped = norms = 0
    for index, evidence in bundle.loop_rounds():
        charge = charges.get((index, 0))
        if charge is None:
            raise UnverifiedError(f"file {index}: was never charged")
        _sums(index, evidence, charge, reasons)
        steps += evidence.batch_size.shape[1]
        norms += len(evidence.raw_norms)
        clipped += int(np.count_nonzero(evidence.raw_norms > charge.clipping_norm))
    details: dict[str, object] = {"steps": steps}
    unreadable: list[str] = []
    of_clients = bundle.header.of_clients
    beside: tuple[str, ...] = (UNTRAINED,) if of_clients else ()
    try:
        whole = bundle.probe_results()
        probe, dropped = _finite(whole)
        last = max(charges.values(), key=lambda spend: spend.line)
        one = "client" if of_clients else "record"
        details["probe"] = judge_probe(probe, last.clipping_norm, one, reasons)
        if dropped:
            beside = (*beside, UNGUARDED_UPDATE if of_clients else UNGUARDED)
        if of_clients and set(UPDATE_KINDS) - set(whole.kinds):
            unreadable.append("the probe is not one of whole updates")
        elif not of_clients and not {ADDED, NOT_DRAWN, ABSENT, ELSEWHERE} <= set(probe.kinds):
            unreadable.append("the probe is not one of whole steps")
        reach = probe.difference_norm[[kind not in (ADDED, ELSEWHERE) for kind in probe.kinds]]
        if not np.any(reach > 0.5 * last.clipping_norm):
            unreadable.append("no probe record had to be clipped, so clipping was not exercised")
    except AuditError as error:
        unreadable.append(f"no results of the active probe ({error})")
    if of_clients:
        passed = (
            f"the clipped sums of {steps} rounds are those that the recorder computes of the "
            "clients' own updates at sampled coordinates; and synthetic updates, some that must be "
            "clipped among them, move the program's own sum by at most C"
        )
    else:
        passed = _OF_RECORDS.format(steps=steps)
    return conclude(
        passed,
        reasons,
        unreadable,
        details=details,
        private={"records_used": norms, "share_clipped": clipped / norms if norms else None},
        qualifications=beside,
    )


SENSITIVITY = Check(
    name="sensitivity",
    title="Does one record move the clipped sum by no more than the noise is made for?",
    units=(LOOP,),
    place=40,
    meaning="If it fails, one record can weigh more than the noise was made to hide.",
    claim="Each record's whole gradient is clipped to norm C over all trained parameters, on "
    "itself alone, and the sum is that of the step's records.",
    tolerance="2e-3 of C and of the sum, for sums of float32 in another order and the 1e-6 that "
    "Opacus adds to each norm; 1e-4 of C for the probe. Not a statistical test: no false alarms "
    "but by rounding.",
    power="clipping of a batch's mean or sum, or of a part of the parameters; sums of earlier "
    "steps that were not cleared; a record that moves how others are read (batch statistics)",
    limits="Under ghost clipping no record's gradient is ever there, so that the recorder takes "
    "clipped gradients from the second backward pass: whether they are clipped rightly is then for "
    "the probe alone to say. The probe asks with one tensor of numbers, or of tokens, and one "
    "label a record; a model that reads anything else is NOT VERIFIED. Where whole clients are "
    "protected, a record is a client, its gradient the client's update, and the probe asks with "
    "made-up updates. Sums are compared at sampled coordinates.",
    rule=_judge,
)
register(SENSITIVITY)
