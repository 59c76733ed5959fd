"""What every complete run has, whatever it protects: a chained, ordered ledger and its evidence.

The part of the check "integrity" that both units share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from audit.checks.base import Judgement, conclude
from audit.checks.shared.sites import sites_faults
from audit.errors import UntrustedFileError
from audit.reading.attested import attestation_faults
from audit.reading.bundle import Bundle
from audit.reading.ledger import Header, Ledger, Resume, Round
from audit.reading.spends import RoundSpend, Spend

_MOST_UNREADABLE = 100
# The command line lets the trainer sign before it audits; only a run whose signature was never
# made, or was deleted, comes here without.
UNATTESTED = (
    "nothing ties these files to the trainer: no attestation lies beside them, so that changes to "
    "model, metrics and most of the evidence would not be seen; `dpfedadamw sign --role trainer` "
    "makes one"
)


def judge_run(
    bundle: Bundle,
    rounds: Callable[[Ledger, Header, list[str]], None],
    evidence: Callable[[Bundle, Header, list[str], list[str]], None],
) -> Judgement:
    """Judge chain, order and spec, then what the unit's own rules say of rounds and evidence.

    Args:
        bundle: the run.
        rounds: adds reasons on charges and finished rounds.
        evidence: adds reasons on the evidence, and (last) what of it cannot be read.
    """
    reasons: list[str] = []
    unreadable = [str(problem) for problem in bundle.problems]
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
        rounds(ledger, header, reasons)
        evidence(bundle, header, reasons, unreadable)
        sites_faults(bundle, ledger, header, reasons, unreadable)
    attested = attestation_faults(bundle.root, reasons, unreadable)
    if not attested:
        unreadable.insert(0, UNATTESTED)
    details = {
        "ledger_lines": len(ledger.kinds) if ledger else 0,
        "rounds": len(ledger.rounds) if ledger else 0,
        "charges": len(ledger.spends) + len(ledger.round_spends) if ledger else 0,
        "attested": attested,
    }
    judged = conclude(
        "every line of the ledger names the digest of the line before and its own, the spec is the "
        "one the header names, all rounds are charged before they end, and all evidence is there"
        "; every file is the one that the trainer attested to",
        reasons,
        unreadable,
        details=details,
    )
    return judged if attested else replace(judged, qualifications=(UNATTESTED,))


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


def sequence_faults(ledger: Ledger, reasons: list[str]) -> None:
    """Rounds 0 to T-1 in order; after a cut the last finished one may run again, charged anew."""
    expected = 0
    entries: list[Round | Resume] = [*ledger.rounds, *ledger.resumes]
    for entry in sorted(entries, key=lambda one: one.line):
        where = f"ledger.jsonl:{entry.line}"
        if isinstance(entry, Round):
            if entry.round != expected:
                reasons.append(f"{where}: round {entry.round} ends where {expected} should")
            expected = entry.round + 1
        elif entry.round not in (expected, expected - 1):
            reasons.append(f"{where}: goes on at round {entry.round}, {expected} was next")
        else:
            expected = entry.round
    if expected != ledger.rounds_to_finish:
        last = ledger.rounds_to_finish - 1
        reasons.append(f"ledger.jsonl: the finished rounds are not 0 to {last}, each once")


def charged_in_time(
    spend: Spend | RoundSpend, finished: Mapping[int, Round], reasons: list[str]
) -> None:
    """A charge stands after the round before and before the end of its own."""
    where = f"ledger.jsonl:{spend.line}"
    if spend.round not in finished:
        reasons.append(f"{where}: round {spend.round} was not finished")
    elif spend.line > finished[spend.round].line:
        reasons.append(f"{where}: charged after its round had ended")
    if spend.round - 1 in finished and finished[spend.round - 1].line > spend.line:
        reasons.append(f"{where}: charged before the round before had ended")


def evidence_faults(
    bundle: Bundle,
    header: Header,
    compare: Callable[[int, Any], None],
    reasons: list[str],
    unreadable: list[str],
) -> None:
    """Look at the layout, every round's evidence, and the records' partition and moments.

    Args:
        bundle: the run.
        header: of its ledger.
        compare: holds one round's evidence against the ledger.
        reasons: gets what contradicts the ledger.
        unreadable: gets what cannot be read.
    """
    if not layout_fits(bundle, header, reasons, unreadable):
        return
    for index in range(bundle.ledger.rounds_to_finish if bundle.ledger else header.rounds):
        try:
            evidence = bundle.evidence_of_round(index, header.unit)
        except UntrustedFileError as error:
            unreadable.append(str(error))
            if len(unreadable) > _MOST_UNREADABLE:
                break
            continue
        compare(index, evidence)
    _note_unreadable_records(bundle, unreadable)


def layout_fits(bundle: Bundle, header: Header, reasons: list[str], unreadable: list[str]) -> bool:
    """Whether the evidence's layout can be read; what contradicts the ledger becomes a reason."""
    try:
        layout = bundle.layout()
    except UntrustedFileError as error:
        unreadable.append(str(error))
        return False
    if layout.parameters != header.parameters:
        reasons.append("evidence/layout.json: another number of parameters than the ledger's")
    if layout.round_files != header.rounds:
        reasons.append("evidence/layout.json: another number of rounds than the ledger's")
    if layout.unit != header.unit.name:
        reasons.append("evidence/layout.json: another unit than the ledger's")
    return True


def _note_unreadable_records(bundle: Bundle, unreadable: list[str]) -> None:
    """Note where the partition or the inputs' moments cannot be read."""
    for read in (bundle.holdings, bundle.moments):
        try:
            read()
        except UntrustedFileError as error:
            unreadable.append(str(error))
