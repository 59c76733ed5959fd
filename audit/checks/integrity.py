"""Check "integrity": is the run complete, and is its ledger the one that was written?

First check of the audit: follows the ledger's hash chain, its order of lines, and looks for every
file of evidence. The others rely on it and repeat none of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from audit.bundle import Bundle, round_file
from audit.checks.base import Check, Context, Judgement, listed
from audit.errors import UntrustedFileError
from audit.ledger import Header, Ledger, Round
from audit.spends import Spend
from audit.verdict import Severity, Verdict


def _order(ledger: Ledger, reasons: list[str]) -> None:
    kinds = [kind for _, kind in ledger.kinds]
    if not kinds or kinds[0] != "header":
        reasons.append("ledger.jsonl:1: the first line is not the header")
    for line, kind in ledger.kinds[1:]:
        if kind == "header":
            reasons.append(f"ledger.jsonl:{line}: a second header")
    claims = [line for line, kind in ledger.kinds if kind == "claim"]
    if not claims:
        reasons.append("ledger.jsonl: there is no claim; the run did not finish")
    elif len(claims) > 1 or kinds[-1] != "claim":
        reasons.append(f"ledger.jsonl:{claims[0]}: the claim is not the one last line")


def _rounds(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every round: charged for exactly S clients, then finished, in order, T of them."""
    _sequence(ledger, header, reasons)
    finished = {item.round: item for item in ledger.rounds}
    charges: dict[int, dict[int, list[Spend]]] = {}
    for spend in ledger.spends:
        charges.setdefault(spend.round, {}).setdefault(spend.attempt, []).append(spend)
        if spend.client >= header.clients:
            reasons.append(f"ledger.jsonl:{spend.line}: there is no client {spend.client}")
        if spend.round not in finished:
            reasons.append(f"ledger.jsonl:{spend.line}: round {spend.round} was not finished")
        elif spend.line > finished[spend.round].line:
            reasons.append(f"ledger.jsonl:{spend.line}: charged after its round had ended")
        if spend.round - 1 in finished and finished[spend.round - 1].line > spend.line:
            reasons.append(f"ledger.jsonl:{spend.line}: charged before the round before had ended")
    for item in finished.values():
        _round(item, charges.get(item.round, {}), header, reasons)


def _sequence(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Rounds 0 to T-1 in order; after a cut the last finished one may be run again, charged anew."""
    expected = 0
    for entry in sorted((*ledger.rounds, *ledger.resumes), key=lambda one: one.line):
        where = f"ledger.jsonl:{entry.line}"
        if isinstance(entry, Round):
            if entry.round != expected:
                reasons.append(f"{where}: round {entry.round} ends where {expected} should")
            expected = entry.round + 1
        elif entry.round not in (expected, expected - 1):
            reasons.append(f"{where}: goes on at round {entry.round}, {expected} was next")
        else:
            expected = entry.round
    if expected != header.rounds:
        reasons.append(
            f"ledger.jsonl: the finished rounds are not 0 to {header.rounds - 1}, each once"
        )


def _round(
    item: Round, attempts: Mapping[int, list[Spend]], header: Header, reasons: list[str]
) -> None:
    where = f"ledger.jsonl:{item.line}: round {item.round}"
    if len(item.clients) != header.clients_per_round:
        reasons.append(f"{where} does not have {header.clients_per_round} clients")
    if any(client >= header.clients for client in item.clients):
        reasons.append(f"{where} names a client that does not exist")
    if header.unit == "none":
        if attempts:
            reasons.append(f"{where} was charged although the run claims no privacy")
        return
    if sorted(attempts) != list(range(1, len(attempts) + 1)) or not attempts:
        reasons.append(f"{where}: its attempts are not numbered 1, 2, …")
        return
    for number, spends in attempts.items():
        clients = [spend.client for spend in spends]
        if len(set(clients)) != len(clients):
            reasons.append(f"{where}, attempt {number}: a client is charged twice")
        # An earlier attempt may have been cut short by the crash that ended it.
        if number == len(attempts) and set(clients) != set(item.clients):
            reasons.append(f"{where}: the clients charged are not the clients that took part")


def _evidence(bundle: Bundle, header: Header, reasons: list[str], unreadable: list[str]) -> None:
    try:
        layout = bundle.layout()
    except UntrustedFileError as error:
        unreadable.append(str(error))
        return
    if layout.parameters != header.parameters:
        reasons.append("evidence/layout.json: another number of parameters than the ledger's")
    if layout.round_files != header.rounds:
        reasons.append("evidence/layout.json: another number of rounds than the ledger's")
    ledger = bundle.ledger
    finished = {item.round: item for item in ledger.rounds} if ledger else {}
    attempts: dict[int, int] = {}
    for spend in ledger.spends if ledger else ():
        attempts[spend.round] = max(attempts.get(spend.round, 0), spend.attempt)
    for index in range(header.rounds):
        try:
            evidence = bundle.round_evidence(index)
        except UntrustedFileError as error:
            unreadable.append(str(error))
            if len(unreadable) > 100:
                break
            continue
        if index in finished:
            item = finished[index]
            rows = [int(client) for client in evidence.clients]
            if sorted(rows) != sorted(item.clients) or len(set(rows)) != len(rows):
                reasons.append(f"{round_file(index)}: its clients are not the ledger's")
            elif set(item.queries) != {evidence.batch_size.shape[1]}:
                reasons.append(f"{round_file(index)}: its queries are not as many as the ledger's")
        if index in attempts and evidence.attempt != attempts[index]:
            reasons.append(f"{round_file(index)}: is not of the last attempt charged")
    try:
        bundle.partition()
    except UntrustedFileError as error:
        unreadable.append(str(error))


def _judge(bundle: Bundle, context: Context) -> Judgement:
    del context
    reasons: list[str] = []
    unreadable = [f"{problem.file}: {problem.what}" for problem in bundle.problems]
    ledger = bundle.ledger
    header = ledger.header if ledger else None
    if ledger is not None:
        for fault in ledger.faults:
            where = f"ledger.jsonl:{fault.line}" if fault.line else "ledger.jsonl"
            reasons.append(f"{where} {fault.what}")
        _order(ledger, reasons)
    if ledger is not None and header is not None:
        if bundle.spec_sha256 is not None and bundle.spec_sha256 != header.spec_sha256:
            reasons.append("spec.yaml: is not the spec whose sha256 the ledger's header names")
        _rounds(ledger, header, reasons)
        if header.unit == "record":
            _evidence(bundle, header, reasons, unreadable)
    details = {
        "ledger_lines": len(ledger.kinds) if ledger else 0,
        "rounds": len(ledger.rounds) if ledger else 0,
        "charges": len(ledger.spends) if ledger else 0,
    }
    if reasons:
        return Judgement(Verdict.FAIL, listed(reasons), details)
    if unreadable:
        return Judgement(Verdict.NOT_VERIFIED, listed(unreadable), details)
    return Judgement(
        Verdict.PASS,
        "every line of the ledger names the digest of the line before and its own, the spec is the "
        "one the header names, all rounds are charged before they end, and all evidence is there",
        details,
    )


INTEGRITY = Check(
    name="integrity",
    title="Is the run complete and its ledger unaltered?",
    severity=Severity.CRITICAL,
    claim="The ledger is an unbroken hash chain from header to claim, begun from this spec, and "
    "each finished round has its evidence.",
    tolerance="none: digests and counts are compared exactly",
    power="any single changed byte of ledger, spec or an array of the evidence",
    limits="A ledger rewritten as a whole, digests included, is consistent with itself; only the "
    "trainer's signature ties it to the moment of training. Weights and metrics are hashed, not "
    "judged. Names and sampled coordinates in evidence/layout.json carry no claim.",
    judge=_judge,
)
