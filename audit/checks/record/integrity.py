"""Check "integrity": is the run complete, and is its ledger the one that was written?

First check of the audit: follows the ledger's hash chain, its order of lines, and looks for every
file of evidence. The others rely on it and repeat none of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from audit.checks.base import AT_RECORD_LEVEL, Check, Judgement, register
from audit.checks.shared.completeness import (
    charged_in_time,
    evidence_faults,
    judge_run,
    sequence_faults,
)
from audit.reading.bundle import Bundle, round_file
from audit.reading.evidence import RoundEvidence
from audit.reading.ledger import Header, Ledger, Round
from audit.reading.ledger_lines import Spend


def _rounds(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every round: charged for its clients, S or as many as were drawn, then finished, in order."""
    sequence_faults(ledger, reasons)
    finished = {item.round: item for item in ledger.rounds}
    for charge in ledger.round_spends:
        reasons.append(f"ledger.jsonl:{charge.line}: charges a round as if clients were protected")
    charges: dict[int, dict[int, list[Spend]]] = {}
    for spend in ledger.spends:
        charges.setdefault(spend.round, {}).setdefault(spend.attempt, []).append(spend)
        if spend.client >= header.clients:
            reasons.append(f"ledger.jsonl:{spend.line}: there is no client {spend.client}")
        # Where steps are limited, the cut-off round after the last may have used up the rest.
        if spend.round < header.rounds and spend.round == ledger.rounds_to_finish:
            continue
        charged_in_time(spend, finished, reasons)
    for item in finished.values():
        _round(item, charges.get(item.round, {}), header, reasons)


def _round(
    item: Round, attempts: Mapping[int, list[Spend]], header: Header, reasons: list[str]
) -> None:
    where = f"ledger.jsonl:{item.line}: round {item.round}"
    by_chance = header.client_sampling == "poisson"
    if not by_chance and len(item.asked) != header.clients_per_round:
        reasons.append(f"{where} does not have {header.clients_per_round} clients")
    if any(client >= header.clients for client in item.asked):
        reasons.append(f"{where} names a client that does not exist")
    if not header.unit.claims_privacy:
        if attempts:
            reasons.append(f"{where} was charged although the run claims no privacy")
        return
    if by_chance and not item.asked:
        # Nothing was asked of anybody; what an attempt before it was charged still counts.
        return
    if sorted(attempts) != list(range(1, len(attempts) + 1)) or not attempts:
        reasons.append(f"{where}: its attempts are not numbered 1, 2, …")
        return
    for number, spends in attempts.items():
        clients = [spend.client for spend in spends]
        if len(set(clients)) != len(clients):
            reasons.append(f"{where}, attempt {number}: a client is charged twice")
        # An earlier attempt may have been cut short by the crash that ended it.
        if number == len(attempts) and set(clients) != set(item.asked):
            reasons.append(f"{where}: the clients charged are not the clients that took part")


def _evidence(bundle: Bundle, header: Header, reasons: list[str], unreadable: list[str]) -> None:
    ledger = bundle.ledger
    if ledger is None or not header.unit.claims_privacy:
        return
    finished = {item.round: item for item in ledger.rounds}
    attempts: dict[int, int] = {}
    for spend in ledger.spends:
        attempts[spend.round] = max(attempts.get(spend.round, 0), spend.attempt)

    def compare(index: int, evidence: RoundEvidence) -> None:
        if index in finished:
            item = finished[index]
            rows = [int(client) for client in evidence.clients]
            if sorted(rows) != sorted(item.clients) or len(set(rows)) != len(rows):
                reasons.append(f"{round_file(index)}: its clients are not the ledger's")
            elif rows and set(item.queries) != {evidence.batch_size.shape[1]}:
                reasons.append(f"{round_file(index)}: its queries are not as many as the ledger's")
        if len(evidence.clients) and index in attempts and evidence.attempt != attempts[index]:
            reasons.append(f"{round_file(index)}: is not of the last attempt charged")

    evidence_faults(bundle, header, compare, reasons, unreadable)


def _judge(bundle: Bundle) -> Judgement:
    return judge_run(bundle, _rounds, _evidence)


INTEGRITY = Check(
    name="integrity",
    title="Is the run complete and its ledger unaltered?",
    units=AT_RECORD_LEVEL,
    place=10,
    meaning="If it fails, files were changed or are missing, and no other finding can be relied "
    "on.",
    claim="The ledger is an unbroken hash chain from header to claim, begun from this spec, and "
    "each finished round has its evidence.",
    tolerance="none: digests and counts are compared exactly",
    power="any single changed byte of ledger, spec or an array of the evidence; a process that "
    "went on after a crash of which the ledger has no line, where its note in the evidence is left",
    limits="A ledger rewritten as a whole, digests included, is consistent with itself; only the "
    "trainer's signature ties it to the moment of training. Weights, metrics and what of the "
    "evidence has no redundancy are compared with the digests in training.attestation.json where "
    "that exists; that the trainer signed them is for `verify` to say, not for an audit.",
    rule=_judge,
    judges_no_claim=True,
)
register(INTEGRITY)
