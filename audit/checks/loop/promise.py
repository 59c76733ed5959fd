"""Check "promise" on a recorded loop: one mechanism, charged as declared, divided by a constant."""

from __future__ import annotations

import numpy as np

from audit.accounting.sampling import ADJACENCY
from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.shared.agreement import claimed_delta, differs
from audit.errors import AuditError
from audit.reading.bundle import Bundle
from audit.reading.ledger_lines import last_spends
from audit.reading.units import LOOP
from audit.untrusted.fields import FieldError

# The divisor is taken from float32 values at the sampled coordinates.
_MEASURED = 1e-3


def _divisors(bundle: Bundle, reasons: list[str], unreadable: list[str]) -> None:
    charges = last_spends(bundle.readable_ledger.spends)
    for index, evidence in bundle.loop_rounds():
        charge = charges.get((index, 0))
        if charge is None:
            return
        measured = evidence.measured_divisor
        if np.any(measured == 0.0):
            unreadable.append(f"file {index}: what the noised sum was divided by does not show")
        due = charge.expected_batch_size
        known = measured != 0.0
        if np.any(np.abs(measured[known] / due - 1.0) > _MEASURED):
            reasons.append(
                f"file {index}: a noised sum was divided by something else than the public batch "
                "size, which makes the sensitivity depend on the data"
            )


def _judge(bundle: Bundle) -> Judgement:
    ledger, header = bundle.readable_ledger, bundle.header
    reasons: list[str] = []
    unreadable: list[str] = []
    for spend in ledger.spends:
        where = f"ledger.jsonl:{spend.line}"
        if spend.records != header.records[0]:
            reasons.append(f"{where}: records differ from the header's")
        if spend.sampling != header.sampling or spend.queries_per_step != 1:
            reasons.append(f"{where}: sampling differs from the header's")
    if ADJACENCY.get(header.sampling or "") != header.adjacency:
        reasons.append(f"{header.sampling} batches have no accounting under {header.adjacency}")
    delta = header.declared("delta")
    if delta * header.records[0] >= 1.0:
        reasons.append(f"delta is not below 1/{header.records[0]}, the number of records")
    try:
        claimed_delta(ledger, delta, reasons)
    except FieldError as error:
        reasons.append(str(error))
    if ledger.claim is not None and ledger.claim.get("adjacency") != header.adjacency:
        reasons.append("the claim's adjacency is not the header's")
    try:
        _divisors(bundle, reasons, unreadable)
    except AuditError as error:
        unreadable.append(str(error))
    clients = header.of_clients
    clips = {spend.clipping_norm for spend in ledger.spends}
    changed = any(differs(header.clipping_norm, clip) for clip in clips)
    return conclude(
        ("whole clients are protected, so that a record is a client and a step a round; " * clients)
        + "header and every charge agree on records, sampling, delta and adjacency"
        + (", C changes during the loop" if changed else " and C")
        + "; each noised sum was divided by the public batch size",
        reasons,
        unreadable,
        details={"delta_records": delta * header.records[0], "charges": len(ledger.spends)},
    )


PROMISE = Check(
    name="promise",
    title="Did the loop do what it declares, and no more?",
    units=(LOOP,),
    place=20,
    meaning="If it fails, the run was not the one that was described, whatever its numbers say.",
    claim="Every step is charged for the declared records and sampler, delta is below 1/n, and "
    "every noisy sum is divided by the public batch size.",
    tolerance="1e-9 relative for numbers of the ledger; 1e-3 for the divisor, which is measured on "
    "values of float32",
    power="any different parameter in a single charge; a divisor that is the realised batch size",
    limits="The declarations are those of the loop's own objects, such as its optimiser and its "
    "data loader, as the recorder read them.",
    rule=_judge,
)
register(PROMISE)
