"""Check "promise": does the ledger record what the spec promised, and no more?

Compares spec, header and every charge; then the public divisor, on which the sensitivity
argument rests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.accounting.sampling import ADJACENCY, CLIENT_SAMPLERS, RECORD_SAMPLERS, rate
from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, conclude, register
from audit.checks.record.accounting import histories
from audit.checks.shared import columns
from audit.checks.shared.agreement import (
    agree_on_unit,
    budget_faults,
    claimed_delta,
    differs,
    divisor_fault,
    limit_faults,
    number_faults,
    target_fault,
    word_faults,
)
from audit.checks.shared.claimed import trial_faults, unread_faults
from audit.errors import AuditError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import last_spends
from audit.reading.units import PERSON
from audit.untrusted import fields
from audit.untrusted.fields import FieldError
from audit.verdict import Verdict

NO_PRIVACY = "no differential privacy"
_DIVIDED = (
    "a noisy sum was not divided by the public batch size, which makes the sensitivity depend on "
    "the data"
)


def _header(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    if not agree_on_unit(spec, header, reasons) or not header.unit.claims_privacy:
        return
    privacy = fields.mapping(spec, "privacy")
    sampling = fields.mapping(privacy, "sampling")
    norm, sigma = (fields.positive(privacy, key) for key in ("clipping_norm", "noise_multiplier"))
    delta = fields.positive(privacy, "delta", most=1.0)
    batch = (
        fields.positive(sampling, "expected_batch_size")
        if "expected_batch_size" in sampling
        else float(fields.integer(sampling, "batch_size", least=1))
    )
    numbers = (
        ("clipping_norm", norm, header.clipping_norm),
        ("noise_multiplier", sigma, header.noise_multiplier),
        ("delta", delta, header.delta),
        ("batch size", batch, header.expected_batch_size),
    )
    number_faults(numbers, reasons)
    _rate(sampling, batch, header, reasons)
    federation = fields.mapping(spec, "federation")
    words = (
        ("adjacency", fields.text(privacy, "adjacency"), header.adjacency),
        (
            "sampling",
            RECORD_SAMPLERS[fields.choice(sampling, "kind", tuple(RECORD_SAMPLERS))],
            header.sampling,
        ),
        (
            "client_sampling",
            CLIENT_SAMPLERS[fields.choice(federation, "client_sampling", tuple(CLIENT_SAMPLERS))],
            header.client_sampling,
        ),
    )
    word_faults(words, reasons)
    if header.unit is PERSON:
        _people(privacy, federation, header, reasons)
    if ADJACENCY.get(header.sampling or "") != header.adjacency:
        reasons.append(f"{header.sampling} batches have no accounting under {header.adjacency}")
    if header.sampling != "poisson" and header.declared("expected_batch_size") % 1.0:
        reasons.append("expected_batch_size: batches of an exact size need a whole number")


def _people(
    privacy: Mapping[str, Any], federation: Mapping[str, Any], header: Header, reasons: list[str]
) -> None:
    """How many records stand for a person, and at how many clients one may be."""
    for name, section, noted in (
        ("records_per_person", privacy, header.records_per_person),
        ("clients_per_person", federation, header.clients_per_person),
    ):
        promised = fields.integer(section, name, least=1)
        if promised != noted:
            reasons.append(f"{name}: the spec says {promised}, the ledger {noted}")
    for client, (people, rows) in enumerate(
        zip(header.records, header.training_records, strict=True)
    ):
        if people > rows:
            reasons.append(f"client {client} has more people than records")


def _said(claim: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    """The claim says of whom it holds: it reads as one on records else."""
    if header.unit is not PERSON:
        if "unit" in claim or "clients_per_person" in claim:
            reasons.append("the claim is about people, but the run does not protect people")
        return
    if claim.get("unit") != "person" or claim.get("clients_per_person") != (
        header.clients_per_person
    ):
        reasons.append("the claim does not say that it is about people, or at how many clients")


def _rate(sampling: Mapping[str, Any], batch: float, header: Header, reasons: list[str]) -> None:
    """The header states the sampling rate that the spec states, and none where it states none."""
    stated: float | None = None
    if sampling.get("rate") is not None:
        stated = fields.positive(sampling, "rate", most=1.0)
    elif sampling.get("reference_size") is not None:
        stated = batch / fields.positive(sampling, "reference_size")
    noted = header.sampling_rate
    if stated is None or noted is None:
        if stated is not noted:
            reasons.append("sampling_rate: only one of spec and ledger states one")
    elif differs(stated, noted):
        reasons.append("sampling_rate: the ledger's is not the spec's")
    if stated is not None and header.sampling != "poisson":
        reasons.append("sampling_rate: it is stated for batches that are not Poisson draws")


def _charges(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    for spend in ledger.spends:
        where = f"ledger.jsonl:{spend.line}"
        if spend.client < header.clients and spend.records != header.records[spend.client]:
            reasons.append(f"{where}: records of client {spend.client} differ from the header's")
        for name, charged, declared in (
            ("clipping_norm", spend.clipping_norm, header.clipping_norm),
            ("expected_batch_size", spend.expected_batch_size, header.expected_batch_size),
        ):
            if differs(declared, charged):
                reasons.append(f"{where}: {name} differs from the header's")
        stated = header.sampling_rate
        due = rate(spend.sampling, spend.expected_batch_size, spend.records, stated)
        if spend.rate_stated != (stated is not None):
            reasons.append(f"{where}: whether the sampling rate is stated differs from the header")
        if differs(due, spend.sampling_rate):
            reasons.append(f"{where}: sampling_rate is not the {due:.4g} of its sampler")
        if spend.sampling != header.sampling:
            reasons.append(f"{where}: sampling differs from the header's")
        if header.adaptation is not None:
            continue
        if differs(header.noise_multiplier, spend.noise_multiplier):
            reasons.append(f"{where}: noise_multiplier differs from the header's")
        if spend.steps != header.local_steps:
            reasons.append(f"{where}: steps differ from local_steps")
    charges = last_spends(ledger.spends)
    for item in ledger.rounds:
        for client, steps, queries in zip(item.clients, item.steps, item.queries, strict=True):
            spend_of = charges.get((item.round, client))
            paid = spend_of.steps * spend_of.queries_per_step if spend_of else 0
            if queries > paid or (spend_of is not None and steps > spend_of.steps):
                reasons.append(
                    f"ledger.jsonl:{item.line}: client {client} made more queries than were charged"
                )


def _delta(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    delta = header.declared("delta")
    for client, records in enumerate(header.records):
        # At delta = 1/n a mechanism may publish one record outright and still be called private.
        if delta * records >= 1.0:
            reasons.append(f"delta is not below 1/{records}, the records of client {client}")
    claimed_delta(ledger, delta, reasons)
    if ledger.claim is not None and ledger.claim.get("adjacency") != header.adjacency:
        reasons.append("the claim's adjacency is not the header's")


def _adaptation(
    spec: Mapping[str, Any], ledger: Ledger, header: Header, reasons: list[str]
) -> None:
    """A rule that adapts is declared, and did in each round what it says."""
    declared = {"noise_decay", "local_iterations"} & fields.mapping(spec, "algorithm").keys()
    if header.adaptation is None and not declared:
        return
    # Loaded for runs of such a rule alone.
    from audit.checks.shared import adaptive

    adaptive.declared(spec, header, reasons)
    if header.adaptation is not None:
        adaptive.turns(spec, ledger, header, reasons)
        adaptive.affordable(spec, ledger, header, reasons)


def _adapted(header: Header) -> str:
    if header.adaptation is None:
        return ""
    limit = header.adaptation.step_limit
    kept = f", {limit} steps in all at most" if limit is not None else ""
    return f", where steps and noise of every round are those that the adaptive rule gives{kept}"


def _judge(bundle: Bundle) -> Judgement:
    spec, ledger, header = bundle.readable_spec, bundle.readable_ledger, bundle.header
    reasons: list[str] = []
    unreadable: list[str] = []
    try:
        _header(spec, header, reasons)
        if not header.unit.claims_privacy:
            headline = fields.text(ledger.claim, "view_headline") if ledger.claim else None
            if headline != "none":
                reasons.append("the claim of a run without privacy is not none")
            unread_faults(ledger.claim or {}, header, reasons)
        else:
            _charges(ledger, header, reasons)
            _adaptation(spec, ledger, header, reasons)
            if columns.concern(spec, ledger, header):
                columns.query_faults(spec, ledger, header, reasons)
            _delta(ledger, header, reasons)
            _said(ledger.claim or {}, header, reasons)
            again = len(ledger.spends) - len(last_spends(ledger.spends))
            why = f" ({again} participations were charged again after a crash)" if again else ""
            target_fault(spec, ledger, "server", reasons, why=why)
            past = histories(ledger, header)
            limit_faults(spec, ledger, "server", past, reasons)
            budget_faults(spec, ledger, past.values(), reasons)
            trial_faults(bundle, reasons, unreadable)
    except FieldError as error:
        reasons.append(str(error))
    if header.unit.claims_privacy:
        try:
            batch = header.declared("expected_batch_size")
            divisor_fault(bundle.all_rounds(), batch, _DIVIDED, reasons)
        except AuditError as error:
            unreadable.append(str(error))
    largest = max(header.records)
    details = {
        "delta_records": (header.delta or 0.0) * largest,
        "largest_client_records": largest,
        "charges": len(ledger.spends),
    }
    if not (header.unit.claims_privacy or reasons):
        return Judgement(
            Verdict.PASS,
            "spec and ledger agree that no privacy is claimed",
            qualifications=(NO_PRIVACY,),
        )
    return conclude(
        "spec, header and every charge agree on sigma, C, B, q, K, T, S, delta, unit, sampling and "
        f"adjacency{_adapted(header)}; no more queries than charged; sums divided by the public B",
        reasons,
        unreadable,
        details=details,
    )


SPEC_CONFORMANCE = Check(
    name="promise",
    title="Did the run do what its spec promised, and no more?",
    units=AT_RECORD_LEVEL,
    place=20,
    meaning="If it fails, the run was not the one that was described, even if its numbers look "
    "right.",
    claim="The ledger records the spec's mechanism for every client and round. Delta is below 1/n "
    "for each client, sampler and adjacency have an accounting together, and every noisy sum is "
    "divided by the public batch size.",
    tolerance="1e-9 relative, for numbers written and read again in decimal; counts exactly",
    power="any different parameter in spec, header or a single charge; for adaptive rules, a "
    "round whose steps or noise are not those of the rule. A limit on epsilon that was exceeded, "
    "or that ended the run a round too early",
    limits="Client sizes, and with them B/n where the spec states no sampling rate, are taken as "
    "public metadata. One run's files cannot show that the only trials were those of a private "
    "selection, and that the best of them was published. The released values that adaptive rules "
    "use are read from the ledger. What other runs spent of a budget is not in this run's files.",
    rule=_judge,
    judges_no_claim=True,
)
register(SPEC_CONFORMANCE)
