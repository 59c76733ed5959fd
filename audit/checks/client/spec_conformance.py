"""Check "promise" at client level: does the ledger record what the spec promised, and no more?

Compares spec, header and every round's charge; then the public divisor of the sum of updates, on
which the sensitivity argument rests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, conclude, register
from audit.checks.client.accounting import third_party_history
from audit.checks.record.spec_conformance import SPEC_CONFORMANCE
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
from audit.checks.shared.claimed import trial_faults
from audit.errors import AuditError
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import RoundSpend, promised
from audit.untrusted import fields
from audit.untrusted.fields import FieldError

_DIVIDED = (
    "the noisy sum was not divided by the public expected number of clients, which makes the "
    "sensitivity depend on who took part"
)


def _header(spec: Mapping[str, Any], header: Header, reasons: list[str]) -> None:
    if not agree_on_unit(spec, header, reasons):
        return
    privacy = fields.mapping(spec, "privacy")
    noted = {
        "clipping_norm": header.clipping_norm,
        "noise_multiplier": header.noise_multiplier,
        "delta": header.delta,
    }
    number_faults(
        ((name, fields.positive(privacy, name), value) for name, value in noted.items()), reasons
    )
    words = (
        ("adjacency", fields.text(privacy, "adjacency"), header.adjacency),
        ("noise_added_by", fields.text(privacy, "noise_added_by"), header.noise_added_by),
        ("sampling", fields.text(fields.mapping(privacy, "sampling"), "kind"), header.sampling),
    )
    word_faults(words, reasons)
    if promised(spec, header.parameters) != header.sparsification:
        reasons.append("sparsification: the ledger's is not the spec's")
    if header.adjacency != "add-remove" or header.client_sampling != "poisson":
        reasons.append("only Poisson sampling of clients under add-remove has this accounting")
    if differs(header.participation, header.clients_per_round / header.clients):
        reasons.append("participation: the ledger's is not clients_per_round / clients")


def _charge(spend: RoundSpend, header: Header, reasons: list[str]) -> None:
    where = f"ledger.jsonl:{spend.line}"
    for name, charged, declared in (
        ("clipping_norm", spend.clipping_norm, header.clipping_norm),
        ("noise_multiplier", spend.noise_multiplier, header.noise_multiplier),
        ("sampling_rate", spend.sampling_rate, header.participation),
        ("expected_clients", spend.expected_clients, float(header.clients_per_round)),
    ):
        if differs(declared, charged):
            reasons.append(f"{where}: {name} differs from the header's")
    if spend.sampling != header.client_sampling:
        reasons.append(f"{where}: sampling differs from the header's client_sampling")
    if spend.noise_added_by != header.noise_added_by:
        reasons.append(f"{where}: noise_added_by differs from the header's")
    if spend.noise_added_by == "clients" and spend.clients:
        share = spend.noise_multiplier / len(spend.clients) ** 0.5
        if differs(spend.upload_noise_multiplier, share):
            reasons.append(f"{where}: upload_noise_multiplier is not sigma over the root of m")
    elif spend.upload_noise_multiplier is not None:
        reasons.append(f"{where}: upload_noise_multiplier where no upload carries noise")


def _charges(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    for spend in ledger.round_spends:
        _charge(spend, header, reasons)
    for item in ledger.rounds:
        if any(steps > header.local_steps for steps in item.steps):
            reasons.append(f"ledger.jsonl:{item.line}: a client made more steps than promised")


def _delta(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    delta = header.declared("delta")
    # At delta = 1/N a mechanism may publish one client outright and still be called private.
    if delta * header.clients >= 1.0:
        reasons.append(f"delta is not below 1/{header.clients}, one over the number of clients")
    claimed_delta(ledger, delta, reasons)


def _judge(bundle: Bundle) -> Judgement:
    spec, ledger, header = bundle.readable_spec, bundle.readable_ledger, bundle.header
    reasons: list[str] = []
    unreadable: list[str] = []
    try:
        _header(spec, header, reasons)
        _charges(ledger, header, reasons)
        _delta(ledger, header, reasons)
        again = len(ledger.round_spends) - ledger.rounds_to_finish
        why = f" ({again} rounds were charged again after a crash)" if again > 0 else ""
        target_fault(spec, ledger, "third_party", reasons, why)
        past = third_party_history(ledger)
        limit_faults(spec, ledger, "third_party", {0: past}, reasons)
        budget_faults(spec, ledger, [past], reasons)
        trial_faults(bundle, reasons, unreadable)
    except FieldError as error:
        reasons.append(str(error))
    try:
        divisor_fault(
            bundle.all_update_rounds(), float(header.clients_per_round), _DIVIDED, reasons
        )
    except AuditError as error:
        unreadable.append(str(error))
    details = {
        "delta_clients": header.declared("delta") * header.clients,
        "clients": header.clients,
        "charges": len(ledger.round_spends),
    }
    return conclude(
        "spec, header and every round's charge agree on sigma, C, l = S/N, T, S, delta, unit, "
        "sampling of clients, adjacency and who adds the noise. Sums are divided by the public S, "
        "and delta is below 1/N",
        reasons,
        unreadable,
        details=details,
    )


CLIENT_SPEC_CONFORMANCE = Check(
    name=SPEC_CONFORMANCE.name,
    title=SPEC_CONFORMANCE.title,
    units=AT_CLIENT_LEVEL,
    place=20,
    meaning="If it fails, the run was not the one that was described, even if its numbers look "
    "right.",
    claim="The ledger records the spec's mechanism for every round, delta is below 1/N, and every "
    "noisy sum of updates is divided by the public expected number of clients.",
    tolerance=SPEC_CONFORMANCE.tolerance,
    power=SPEC_CONFORMANCE.power,
    limits="A run cannot show that each client is one person or institution, or that none of "
    "these is two clients.",
    rule=_judge,
)
register(CLIENT_SPEC_CONFORMANCE)
