"""Check "integrity" on a recorded loop: is the recording complete, and its ledger unaltered?

As for the engine's runs, but that a loop has one client, is charged step by step, and that no file
says beforehand how long it will be.
"""

from __future__ import annotations

from collections import Counter

from audit.checks.base import Check, Judgement, register
from audit.checks.shared.completeness import judge_run, layout_fits, sequence_faults
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle, round_file
from audit.reading.ledger import Header, Ledger
from audit.reading.units import LOOP


def _rounds(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every step is charged before the line that ends its file, and none without one."""
    sequence_faults(ledger, reasons)
    for resumed in ledger.resumes:
        reasons.append(f"ledger.jsonl:{resumed.line}: a recording cannot be continued")
    finished = {item.round: item for item in ledger.rounds}
    charged = Counter(spend.round for spend in ledger.spends)
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


def _judge(bundle: Bundle) -> Judgement:
    return judge_run(bundle, _rounds, _evidence)


INTEGRITY = Check(
    name="integrity",
    title="Is the recording complete and its ledger unaltered?",
    units=(LOOP,),
    place=10,
    meaning="If it fails, files were changed or are missing, and no other finding can be relied "
    "on.",
    claim="The ledger is an unbroken hash chain from header to claim, and each step that was "
    "charged has its evidence.",
    tolerance="none: digests and counts are compared exactly",
    power="any single changed byte of ledger, spec or an array of the evidence; a step that was "
    "charged and never recorded",
    limits="A ledger rewritten as a whole, digests included, is consistent with itself; only the "
    "trainer's signature ties it to the moment of training. A step that the loop made behind the "
    "recorder's back has no line here; the check steps sees that the parameters moved.",
    rule=_judge,
)
register(INTEGRITY)
