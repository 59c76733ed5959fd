"""Check "integrity" at client level: one charge a round and attempt, and every round its evidence.

Beside the record level's check of the same name; the ledger's chain and order are judged by the
rules that both share (`completeness`).
"""

from __future__ import annotations

from audit.checks.base import AT_CLIENT_LEVEL, Check, Judgement, register
from audit.checks.record.integrity import INTEGRITY
from audit.checks.shared.completeness import (
    charged_in_time,
    evidence_faults,
    judge_run,
    sequence_faults,
)
from audit.reading.bundle import Bundle, round_file
from audit.reading.client_evidence import UpdateRound
from audit.reading.ledger import Header, Ledger
from audit.reading.ledger_lines import last_round_spends


def _rounds(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every round: charged once an attempt, then finished by exactly the clients charged for."""
    sequence_faults(ledger, reasons)
    finished = {item.round: item for item in ledger.rounds}
    for single in ledger.spends:
        reasons.append(f"ledger.jsonl:{single.line}: charges a single client's records")
    attempts: dict[int, list[int]] = {}
    for spend in ledger.round_spends:
        attempts.setdefault(spend.round, []).append(spend.attempt)
        if any(client >= header.clients for client in spend.clients):
            reasons.append(f"ledger.jsonl:{spend.line}: charges a client that does not exist")
        # Where ε is limited, the cut-off round after the last may have used up the rest.
        if spend.round < header.rounds and spend.round == ledger.rounds_to_finish:
            continue
        charged_in_time(spend, finished, reasons)
    charges = last_round_spends(ledger.round_spends)
    for item in finished.values():
        where = f"ledger.jsonl:{item.line}: round {item.round}"
        numbers = attempts.get(item.round, [])
        if numbers != list(range(1, len(numbers) + 1)) or not numbers:
            reasons.append(f"{where} is not charged once for each of its attempts 1, 2, …")
        elif set(charges[item.round].clients) != set(item.asked):
            reasons.append(f"{where}: the clients charged are not the clients that took part")


def _evidence(bundle: Bundle, header: Header, reasons: list[str], unreadable: list[str]) -> None:
    charges = last_round_spends(bundle.ledger.round_spends) if bundle.ledger is not None else {}

    rounds = bundle.ledger.rounds if bundle.ledger is not None else ()
    dropped = {item.round: item.dropped for item in rounds}

    def compare(index: int, evidence: UpdateRound) -> None:
        if index not in charges:
            return
        charge, where = charges[index], round_file(index)
        left = set(charge.clients) - set(dropped.get(index, ()))
        if sorted(int(client) for client in evidence.clients) != sorted(left):
            reasons.append(f"{where}: its clients are not the ledger's")
        if evidence.attempt != charge.attempt:
            reasons.append(f"{where}: is not of the last attempt charged")
        due = charge.noise_added_by == "clients" and bool(charge.clients)
        if due and evidence.upload_noise_sum_squares is None:
            unreadable.append(f"{where}: upload_noise_sum_squares is missing")
        elif not due and evidence.upload_noise_sum_squares is not None:
            reasons.append(f"{where}: has noise of uploads that the ledger knows nothing of")

    evidence_faults(bundle, header, compare, reasons, unreadable)


def _judge(bundle: Bundle) -> Judgement:
    return judge_run(bundle, _rounds, _evidence)


CLIENT_INTEGRITY = Check(
    name=INTEGRITY.name,
    title=INTEGRITY.title,
    units=AT_CLIENT_LEVEL,
    place=10,
    meaning="If it fails, files were changed or are missing, and no other finding can be relied "
    "on.",
    claim="The ledger is an unbroken hash chain from header to claim, begun from this spec; each "
    "round, empty ones included, is charged once an attempt before it ends and has its evidence.",
    tolerance=INTEGRITY.tolerance,
    power=INTEGRITY.power,
    limits=INTEGRITY.limits,
    rule=_judge,
)
register(CLIENT_INTEGRITY)
