"""What every complete run has, whatever it protects: a chained, ordered ledger and its evidence.

The part of the check "integrity" that both units share.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from audit.checks.base import Judgement, conclude
from audit.checks.shared.sites import sites_faults
from audit.errors import UntrustedFileError
from audit.reading.attested import attestation_faults
from audit.reading.bundle import Bundle
from audit.reading.files import read_bytes
from audit.reading.ledger import Header, Ledger, Resume, Round
from audit.reading.ledger_lines import RoundSpend, Spend
from audit.untrusted.documents import DocumentError, parse_json

_MOST_UNREADABLE = 100
_MOST_BYTES = 1 << 16
_ENVIRONMENT = re.compile(r"environment-(\d{5,12})\.json")
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
        attempt_faults(ledger, header, reasons)
        process_faults(bundle, ledger, header, reasons)
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


def attempt_faults(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """A round is charged again after the run was cut off, and for no other reason.

    What a process charged is spent with it: the one that goes on begins the round with an attempt
    more, and the line that says where it goes on stands in between.
    """
    charges: list[Spend | RoundSpend] = [*ledger.spends, *ledger.round_spends]
    entries: list[Round | Resume | Spend | RoundSpend] = [
        *charges, *ledger.rounds, *ledger.resumes,
    ]  # fmt: skip
    running: dict[int, int] = {}
    before: dict[int, int] = {}
    for entry in sorted(entries, key=lambda one: one.line):
        where = f"ledger.jsonl:{entry.line}"
        if isinstance(entry, Resume):
            before |= running
            running.clear()
        elif isinstance(entry, Round):
            cut = entry.round in before and entry.round not in running
            if cut and (entry.asked or header.unit.whole_clients):
                reasons.append(
                    f"{where}: round {entry.round} ends after the run was cut off in it, and was "
                    "not charged again"
                )
        elif entry.attempt <= before.get(entry.round, 0):
            reasons.append(f"{where}: is charged to an attempt from before the run was cut off")
        elif entry.attempt > running.setdefault(entry.round, entry.attempt) or (
            entry.attempt > 1 + before.get(entry.round, 0)
        ):
            reasons.append(
                f"{where}: is charged to attempt {entry.attempt}, and no line says where the run "
                "went on after it was cut off"
            )
            running[entry.round] = entry.attempt


def process_faults(bundle: Bundle, ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Each process notes where it begins and by which key it draws: the ledger must know both."""
    try:
        names = sorted(one.name for one in os.scandir(bundle.root / "evidence"))
    except OSError:
        # That there is no evidence is told by whoever reads it.
        return
    for match in filter(None, map(_ENVIRONMENT.fullmatch, names)):
        index, name = int(match[1]), f"evidence/{match[0]}"
        keys = [one.commitment for one in ledger.resumes if one.round == index]
        if index and not keys:
            reasons.append(
                f"{name}: a process went on with the run at round {index}, and the ledger does not "
                "say that it was cut off"
            )
            continue
        try:
            noted = parse_json(read_bytes(bundle.root, name, _MOST_BYTES))
        except (UntrustedFileError, DocumentError) as error:
            reasons.append(f"{name}: cannot be read ({error})")
            continue
        # An earlier version notes no key.
        if isinstance(noted, dict) and "commitment" in noted:
            known = [*keys, header.commitment] if not index else keys
            if noted["commitment"] not in known:
                reasons.append(
                    f"{name}: a process drew noise by a key that the ledger does not name: the run "
                    "was cut off, and the ledger does not say so"
                )


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
