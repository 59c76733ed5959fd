"""What the ledger of a recorded loop says, and what nobody can judge of such a loop.

* "integrity": as for the engine's runs, but that a loop has one client, is charged step by step,
  and that no file says beforehand how long it will be;
* "promise": spec, header, charges and the measured divisors agree;
* "accounting": the ε that the loop prints is what its steps cost. What the ledger charged is
  composed over all steps that were recorded, whatever counted them. A loop that makes its
  accountant once more in each round, or counts what was no step, prints another number;
* "randomness", "reexecution" and "outside-budget" ask what the engine's runs answer and a loop of
  somebody else's cannot: who could draw the noise again, whether computing it again from the data
  leads to the same, and what happened to the records before training, of which the weights that it
  began with may be made. They are said by name, and are never a PASS but for a secure generator.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from audit.accounting.budget import Budget, budget, epsilon_curve, merge, methods
from audit.accounting.comparison import Comparison, overstates, understates
from audit.accounting.laplace import laplace_budget, laplace_curve
from audit.accounting.registry import Steps
from audit.accounting.sampling import ADJACENCY, cost_of
from audit.checks.base import Check, Judgement, conclude, register
from audit.checks.integrity import judge_run, layout_fits, sequence_faults
from audit.checks.randomness import SEEDED, drawn_again
from audit.checks.shared.agreement import claimed_delta, differs
from audit.checks.shared.claimed import judgement_on, unread_faults
from audit.errors import AuditError, UntrustedFileError, UnverifiedError
from audit.reading.bundle import Bundle, round_file
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import (
    GAUSSIAN,
    LAPLACE,
    Spend,
    claimed_epsilons,
    last_spends,
)
from audit.reading.units import LOOP
from audit.untrusted import fields
from audit.untrusted.fields import FieldError
from audit.verdict import Severity, Verdict


def _rounds(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every step is charged before the line that ends its file, and none without one."""
    sequence_faults(ledger, reasons)
    for resumed in ledger.resumes:
        reasons.append(f"ledger.jsonl:{resumed.line}: a recording cannot be continued")
    finished = {item.round: item for item in ledger.rounds}
    charged = Counter(spend.round for spend in ledger.spends)
    # Other checks hold a whole file to its last charge, so that it must be that of each step.
    charges = defaultdict[int, set[Spend]](set)
    for spend in ledger.spends:
        charges[spend.round].add(replace(spend, line=0))
    for spend in ledger.spends:
        where = f"ledger.jsonl:{spend.line}"
        if spend.round not in finished:
            reasons.append(f"{where}: a step was charged that no evidence covers")
        elif spend.line > finished[spend.round].line:
            reasons.append(f"{where}: charged after its file was written")
        if spend.client != 0 or spend.steps != 1:
            reasons.append(f"{where}: a loop has one client, and is charged step by step")
    for item in finished.values():
        if item.clients != (0,) or header.clients != 1:
            reasons.append(f"ledger.jsonl:{item.line}: a loop has one client")
        elif item.queries != (charged[item.round],) or item.steps != item.queries:
            reasons.append(f"ledger.jsonl:{item.line}: its steps are not those that were charged")
        if len(charges[item.round]) > 1:
            reasons.append(f"ledger.jsonl:{item.line}: its steps are charged differently")


def _evidence(bundle: Bundle, header: Header, reasons: list[str], unreadable: list[str]) -> None:
    ledger = bundle.ledger
    if ledger is None or not layout_fits(bundle, header, reasons, unreadable):
        return
    for item in {one.round: one for one in ledger.rounds}.values():
        try:
            evidence = bundle.evidence_of_round(item.round, LOOP)
        except UntrustedFileError as error:
            unreadable.append(str(error))
            continue
        if item.queries != (evidence.batch_size.shape[1],):
            reasons.append(f"{round_file(item.round)}: its steps are not as many as the ledger's")
    try:
        bundle.loop_end()
    except UntrustedFileError as error:
        unreadable.append(str(error))


def _judge_integrity(bundle: Bundle) -> Judgement:
    return judge_run(bundle, _rounds, _evidence)


INTEGRITY = Check(
    name="integrity",
    title="Is the recording complete and its ledger unaltered?",
    units=(LOOP,),
    place=10,
    meaning="If it fails, files were changed or are missing, and no other finding can be relied "
    "on.",
    claim="The ledger is an unbroken hash chain from header to claim, each step that was "
    "charged has its evidence, and all steps of a file have one charge.",
    tolerance="none: digests and counts are compared exactly",
    power="any single changed byte of ledger, spec or an array of the evidence; a step that was "
    "charged and never recorded, or otherwise than the others of its file",
    limits="A ledger rewritten as a whole, digests included, is consistent with itself; only the "
    "trainer's signature ties it to the moment of training. A step that the loop made without the "
    "recorder has no line here; the check steps detects that the parameters moved.",
    rule=_judge_integrity,
)
register(INTEGRITY)


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
            unreadable.append(f"file {index}: the divisor of the noised sum cannot be determined")
        due = charge.expected_batch_size
        known = measured != 0.0
        if np.any(np.abs(measured[known] / due - 1.0) > _MEASURED):
            reasons.append(
                f"file {index}: a noised sum was not divided by the public batch size, which makes "
                "the sensitivity depend on the data"
            )


def _judge_promise(bundle: Bundle) -> Judgement:
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
        ("whole clients are protected, so a record is a client and a step is a round; " * clients)
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
    meaning="If it fails, the run was not the one that was described, even if its numbers look "
    "right.",
    claim="Every step is charged for the declared records and sampler, delta is below 1/n, and "
    "every noisy sum is divided by the public batch size.",
    tolerance="1e-9 relative for numbers of the ledger; 1e-3 for the divisor, which is measured on "
    "values of float32",
    power="any different parameter in a single charge; a divisor that is the realised batch size",
    limits="The declarations are those of the loop's own objects, such as its optimiser and its "
    "data loader, as the recorder read them.",
    rule=_judge_promise,
)
register(PROMISE)


_MOST_POINTS = 40
# What Opacus calls its accountants, and by which of the auditor's their numbers are known.
_KNOWN = {"prv": "pld", "pld": "pld", "rdp": "rdp"}
# What evidence would have to hold, where more than the noise decides what a mechanism costs.
_NEEDED = {
    "sparse vector": "its threshold, the noise on threshold and on answers, and how many values "
    "each step released",
}
_NEEDED_ELSE = "its noise and what one record can change"
NOTHING_STATED = "the loop states no epsilon: pass it to the recorder's close"


def _history(ledger: Ledger) -> list[Steps]:
    return [cost_of(spend) for spend in ledger.spends]


def _spent(history: list[Steps], mechanism: str, delta: float) -> Budget:
    """What the steps cost.

    Raises:
        UnverifiedError: no accountant of the auditor covers the mechanism.
    """
    if mechanism == GAUSSIAN:
        return budget(history, delta)
    if mechanism == LAPLACE:
        return laplace_budget(history, delta)
    raise UnverifiedError(
        f"mechanism unknown: {mechanism}. The auditor has accountants for gaussian and laplace "
        "noise on clipped sums. To verify this one it needs an accountant (audit/accounting) and "
        f"evidence of {_NEEDED.get(mechanism, _NEEDED_ELSE)}"
    )


def _counted(claim: Mapping[str, Any], ledger: Ledger, reasons: list[str]) -> None:
    """What the loop's own accountant counted is what was charged."""
    if "accountant_history" not in claim:
        return
    claimed: Counter[tuple[float, float]] = Counter()
    for entry in fields.sequence(claim, "accountant_history"):
        if not isinstance(entry, list) or len(entry) != 3:
            raise FieldError("accountant_history has an entry that is not three numbers")
        noise, rate = (fields.as_number(one, "accountant_history", least=0.0) for one in entry[:2])
        claimed[_rounded(noise, rate)] += fields.as_integer(entry[2], "accountant_history")
    paid: Counter[tuple[float, float]] = Counter()
    for spend in ledger.spends:
        paid[_rounded(spend.noise_multiplier, spend.sampling_rate)] += spend.steps
    if claimed == paid:
        return
    made, counted = sum(paid.values()), sum(claimed.values())
    if made != counted:
        reasons.append(f"the loop's accountant counted {counted} steps, but {made} were made")
    else:
        reasons.append("the loop's accountant counted a noise or rate that was not used")


def _rounded(noise: float, rate: float) -> tuple[float, float]:
    return float(f"{noise:.9g}"), float(f"{rate:.9g}")


def _stated(claim: Mapping[str, Any], spent: Budget, comparison: Comparison) -> tuple[str, float]:
    """Judge each epsilon of the claim; returns the promised one, and by which accountant it is.

    Nothing hides who takes part in a loop's steps: a third party's epsilon is the server's.

    Raises:
        FieldError: a view cannot be read, or names none of several accountants.
        UnverifiedError: the loop states no epsilon.
    """
    view = fields.mapping(claim, "server")
    party = fields.mapping(claim, "third_party") if "third_party" in claim else {}
    if party and party != view:
        _numbers(party, spent, comparison)
    if not view:
        raise UnverifiedError(NOTHING_STATED)
    return _numbers(view, spent, comparison)


def _numbers(view: Mapping[str, Any], spent: Budget, comparison: Comparison) -> tuple[str, float]:
    stated = claimed_epsilons(view)
    alone = len(stated) == 1 and "accountant" not in view
    promised = next(iter(stated)) if alone else fields.text(view, "accountant")
    fields.number(stated, promised)
    for name, epsilon in stated.items():
        known = spent.by_accountant.get(_KNOWN.get(name, ""))
        # A number that is too high protects nobody less.
        if known is not None and overstates(epsilon, known.most, 0.05):
            comparison.high.append(
                f"epsilon by {name} is overstated ({epsilon:.4g} for {known.most:.4g})"
            )
        # The promised one holds if it covers the steps, whatever it was computed by.
        due = spent.at if known is None or name == promised else known.at
        if understates(epsilon, due):
            comparison.reasons.append(
                f"epsilon by {name} is stated as {epsilon:.4g}, but the steps cost {due(0):.4g}"
            )
        elif known is None and name != promised:
            comparison.unknown.add(name)
    return promised, stated[promised]


def over_steps(ledger: Ledger, delta: float, mechanism: str = GAUSSIAN) -> list[dict[str, Any]]:
    """ε after up to 40 of the steps, for the report's curve."""
    history = _history(ledger)
    kinds = {item.kind: place for place, item in enumerate(merge(history))}
    counts, curve, points = [0] * len(kinds), [], []
    every = max(1, -(-len(history) // _MOST_POINTS))
    for made, item in enumerate(history, start=1):
        counts[kinds[item.kind]] += item.steps
        if made % every == 0 or made == len(history):
            points.append(made)
            curve.append(tuple(counts))
    composed = laplace_curve if mechanism == LAPLACE else epsilon_curve
    found = composed(merge(history), curve, delta)
    return [
        {"round": made, "server": epsilon, "third_party": epsilon}
        for made, epsilon in zip(points, found, strict=True)
    ]


def _methods(mechanism: str) -> str:
    return (
        methods() if mechanism == GAUSSIAN else f"privacy loss distributions of {mechanism} noise"
    )


def _judge_accounting(bundle: Bundle) -> Judgement:
    ledger, delta = bundle.readable_ledger, bundle.header.declared("delta")
    if delta >= 1.0:
        raise UnverifiedError("delta is not below 1")
    if ledger.claim is None or not ledger.spends:
        raise UnverifiedError("the ledger has no claim or no charges")
    mechanism = bundle.header.mechanism
    spent = _spent(_history(ledger), mechanism, delta)
    comparison = Comparison()
    details: dict[str, Any] = {
        "delta": delta,
        "epsilon": spent.headline,
        "steps": len(ledger.spends),
    }
    name, epsilon = "", 0.0
    try:
        unread_faults(ledger.claim, bundle.header, comparison.reasons)
        if ledger.claim.get("view_headline", "server") != "server":
            comparison.reasons.append("the headline is not the server's view, a loop's only one")
        _counted(ledger.claim, ledger, comparison.reasons)
        name, epsilon = _stated(ledger.claim, spent, comparison)
    except FieldError as error:
        comparison.reasons.append(f"claim: {error}")
    except UnverifiedError:
        if not comparison.reasons:
            raise
    details |= {"stated": epsilon, "accountant": name, "by_accountant": spent.epsilon}
    details["over_rounds"] = over_steps(ledger, delta, mechanism)
    return judgement_on(
        comparison,
        f"{len(ledger.spends)} charged steps cost epsilon = {spent.headline:.4g} at delta = "
        f"{delta:g}, recomposed by {_methods(mechanism)}; the loop states {epsilon:.4g} by {name}, "
        "which is not less"
        + (", and its accountant counted these steps" * ("accountant_history" in ledger.claim)),
        details,
    )


ACCOUNTING = Check(
    name="accounting",
    title="Is the epsilon that the loop prints what its steps cost?",
    units=(LOOP,),
    place=70,
    meaning="If it fails, the stated loss is not what the ledger's queries cost.",
    claim="The stated epsilon covers every step that was recorded, and the loop's own accountant "
    "counted these steps, at their noise and rate.",
    tolerance="A stated number may lie below the auditor's tight one by 1e-4 of it. One that is "
    "more than 5 % and 0.01 too high, by an accountant that the auditor has too, is reported but "
    "does not fail. The counts of the loop's accountant are compared exactly.",
    power="steps that were not counted, or counted twice; a different noise, rate or formula, if "
    "it changes epsilon by about 1 %",
    limits="The check composes the charges as the recorder wrote them; other checks tie them to "
    "what ran. Training without an attached recorder is not in the ledger, nor is tuning. "
    "Noise that is neither Gaussian nor Laplace is not accounted.",
    rule=_judge_accounting,
)
register(ACCOUNTING)


NOT_COMPUTED_AGAIN = (
    "nobody has recomputed any of this from the data: a recorder that forged all the evidence "
    "consistently would pass"
)
NOT_SECURE = (
    "noise and batches come from a generator that is not cryptographic: anyone who learns its "
    "state, or enough of its output, can reproduce the noise"
)
NOT_LOOKED_AT = (
    "not examined: how records were scaled, chosen or encoded before training, whether settings "
    "were tuned on them, and whether the starting weights were made from them"
)


def _unjudged(why: str) -> Judgement:
    return Judgement(
        Verdict.NOT_VERIFIED, why, qualifications=(why,), severity=Severity.THEORETICAL
    )


def _judge_randomness(bundle: Bundle) -> Judgement:
    try:
        if drawn_again(bundle) is not None:
            return Judgement(Verdict.FAIL, SEEDED)
    except AuditError as error:
        return Judgement(
            Verdict.NOT_VERIFIED,
            f"could not test whether the noise is that of a usual seed: {error}",
        )
    producer = bundle.header.producer
    if producer is None or not producer.secure:
        return _unjudged(NOT_SECURE)
    return Judgement(
        Verdict.PASS, "the noise is not that of any usual seed; the generator is declared secure"
    )


RANDOMNESS = Check(
    name="randomness",
    title="Could anyone reproduce the noise?",
    units=(LOOP,),
    place=110,
    meaning="If it fails, somebody may be able to reproduce the noise and remove it.",
    claim="Noise comes from a cryptographic generator whose state nobody knows.",
    tolerance="2e-5 of the standard deviation, on six values in a row of one of the usual "
    "generators: by chance in fewer than one loop in 10^12",
    power="NumPy's, Python's and torch's CPU generators seeded with one of about 50 numbers that "
    "anyone would try first",
    limits="Other seeds, and other draws from the generator, are not tried.",
    rule=_judge_randomness,
)
register(RANDOMNESS)
REEXECUTION = Check(
    name="reexecution",
    title="Does recomputing the training from the data give the same result?",
    units=(LOOP,),
    place=66,
    meaning="If it fails, the run is not what its data and key produce: somebody changed the "
    "computation, or the record of it. If nothing was recomputed, all other findings judge what "
    "the trainer's own process recorded.",
    claim="Batches, sums and noise are those that the data and the generator produce.",
    tolerance="none: nothing was computed",
    power="none",
    limits="The auditor cannot run somebody else's program again.",
    rule=lambda _: _unjudged(NOT_COMPUTED_AGAIN),
)
register(REEXECUTION)
OUTSIDE_BUDGET = Check(
    name="outside-budget",
    title="Is every use of the records outside the privacy budget disclosed?",
    units=(LOOP,),
    place=130,
    meaning="If it fails, private records were used, or may have been, in a way that no privacy "
    "budget covers.",
    claim="What happens to the records outside the recorded steps is for the loop's author to "
    "state.",
    tolerance="none: nothing was measured",
    power="none",
    limits="The recorder sees only the steps of the training loop.",
    rule=lambda _: _unjudged(NOT_LOOKED_AT),
)
register(OUTSIDE_BUDGET)
