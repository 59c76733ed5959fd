"""Check "integrity": is the run complete, and is its ledger the one that was written?

First check of the audit: follows the ledger's hash chain, its order of lines and the attempts of
its rounds, and looks for every file of evidence. The others rely on it and repeat none of it. What
is charged differs by what is protected, a client's round or a whole one; all else is one law.

Files are also held against the digests in the trainer's attestation, where there is one: weights,
metrics and much of the evidence bear no redundancy, so only a digest taken at the moment of
training can show that they were changed since. Digests alone are compared; whether the attestation
itself is the trainer's is what `verify` answers, with keys.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from audit.checks.base import AT_CLIENT_LEVEL, AT_RECORD_LEVEL, Check, Judgement, conclude, register
from audit.errors import UntrustedFileError
from audit.reading.bundle import Bundle, round_file
from audit.reading.evidence import RoundEvidence
from audit.reading.files import hash_file, read_bytes
from audit.reading.ledger import Header, Ledger, Resume, Round
from audit.reading.ledger_lines import RoundSpend, Spend, last_round_spends
from audit.reading.units import RECORD
from audit.untrusted import fields
from audit.untrusted.documents import DocumentError, parse_json
from audit.untrusted.fields import FieldError
from audit.untrusted.files import FileError, Refusal, keyed_digest

if TYPE_CHECKING:
    from audit.reading.client_evidence import UpdateRound

ENVELOPE = "training.attestation.json"
# What is written together with the envelope or after it; where one of these lies, it was there.
_BESIDE = ("trainer.pub", "auditor.pub", "attestation.json")
_EVIDENCE, _SALT = "evidence", "salt"
_UNCOVERED = ("findings.json",)
# What every attestation names, in addition to spec, ledger and weights.
_ALSO_NAMED = (_EVIDENCE, "metrics.jsonl", "model.json")
_MOST_ENVELOPE_BYTES, _MOST_SUBJECTS = 1 << 20, 64
# What is wrong with the folder as a whole; a name that is no plain text is not repeated.
_OF_FOLDER = (Refusal.CANNOT_LIST, Refusal.TOO_DEEP, Refusal.TOO_MANY, Refusal.UNUSUAL_NAME)
_NAME = r"[A-Za-z0-9._][A-Za-z0-9._-]{0,99}"
_HEX = r"[0-9a-f]{64}"


def attestation_faults(root: Path, reasons: list[str], unreadable: list[str]) -> bool:
    """Compare every file that the trainer's attestation names with its digest there.

    Args:
        root: the run directory.
        reasons: gets a sentence for each file that is not the one named.
        unreadable: gets a sentence for what cannot be read.

    Returns:
        Whether there is an attestation.
    """
    try:
        raw = read_bytes(root, ENVELOPE, _MOST_ENVELOPE_BYTES)
    except UntrustedFileError as error:
        if error.missing and not any(os.path.lexists(root / name) for name in _BESIDE):
            return False
        unreadable.append(f"{ENVELOPE}: {error.what}")
        return True
    try:
        subjects = _subjects(raw)
    except ValueError as error:
        unreadable.append(f"{ENVELOPE}: {error}")
        return True
    for name in _ALSO_NAMED:
        if name not in subjects and os.path.lexists(root / name):
            unreadable.append(
                f"{ENVELOPE}: does not name {name}, so nothing ties it to the trainer"
            )
    for name, (kind, digest) in subjects.items():
        try:
            found = hash_file(root, name) if kind == "sha256" else _evidence_digest(root)
        except UntrustedFileError as error:
            unreadable.append(f"{error.file}: {error.what}")
            continue
        if not hmac.compare_digest(found, digest):
            reasons.append(f"{name}: is not what {ENVELOPE} names; it has changed since")
    return True


def _subjects(raw: bytes) -> dict[str, tuple[str, str]]:
    """Name to kind and value of its digest, from the envelope's payload."""
    encoded = fields.text(parse_json(raw), "payload", pattern=r"[A-Za-z0-9+/=]{0,1000000}")
    statement = parse_json(base64.b64decode(encoded, validate=True))
    found: dict[str, tuple[str, str]] = {}
    for entry in fields.sequence(statement, "subject", most=_MOST_SUBJECTS):
        name = fields.text(entry, "name", pattern=_NAME)
        kind = "hmacSha256" if name == _EVIDENCE else "sha256"
        digest = fields.text(fields.mapping(entry, "digest"), kind, pattern=_HEX)
        if name in found:
            raise FieldError(f"names {name} twice")
        found[name] = (kind, digest)
    if not {"ledger.jsonl", "model.safetensors", "spec.yaml"} <= set(found):
        raise FieldError("does not name spec, ledger and model")
    return found


def _evidence_digest(root: Path) -> str:
    try:
        return keyed_digest(root, _EVIDENCE, _SALT, _UNCOVERED)
    except FileError as error:
        plain = error.name.isascii() and error.name.isprintable()
        file = error.name if plain and error.refusal not in _OF_FOLDER else _EVIDENCE
        raise UntrustedFileError(file, error.what) from error


_MOST_UNREADABLE = 100
_MOST_NOTE_BYTES = 1 << 16
_STATE = "evidence/state-{:05d}.safetensors"
_ENVIRONMENT = re.compile(r"environment-(\d{5,12})\.json")
# The command line lets the trainer sign before it audits; only a run whose signature was never
# made, or was deleted, comes here without.
UNATTESTED = (
    "nothing ties these files to the trainer. There is no attestation, so changes to model, "
    "metrics and most of the evidence would not be detected; `dpfedadamw sign --role trainer` "
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
        evidence: adds reasons on the evidence, and (last) which parts cannot be read.
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
        if (ledger.queries or ledger.answers) and header.unit is not RECORD:
            reasons.append(
                "ledger.jsonl: bounds of columns are learnt, but the unit of protection is not the "
                "record"
            )
        if bundle.spec_sha256 is not None and bundle.spec_sha256 != header.spec_sha256:
            reasons.append("spec.yaml: is not the spec whose sha256 the ledger's header names")
        rounds(ledger, header, reasons)
        attempt_faults(ledger, header, reasons)
        process_faults(bundle, ledger, header, reasons)
        state_faults(bundle, ledger, reasons, unreadable)
        evidence(bundle, header, reasons, unreadable)
        if header.sites or header.drop_outs or any(item.dropped for item in ledger.rounds):
            # Loaded for a federation of several machines alone: others have no clients' ledgers.
            from audit.checks.shared.sites import sites_faults

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
        "every line of the ledger names the digest of the line before and its own. The spec is the "
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
    """Rounds 0 to T-1 in order; after a cut the last finished one may run again, charged again."""
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
                    f"{where}: round {entry.round} ends after the run was interrupted in it, and "
                    "was not charged again"
                )
        elif entry.attempt <= before.get(entry.round, 0):
            reasons.append(f"{where}: is charged to an attempt from before the interruption")
        elif entry.attempt > running.setdefault(entry.round, entry.attempt) or (
            entry.attempt > 1 + before.get(entry.round, 0)
        ):
            reasons.append(
                f"{where}: is charged to attempt {entry.attempt}, but no line says where the "
                "interrupted run continued"
            )
            running[entry.round] = entry.attempt


def process_faults(bundle: Bundle, ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Each process notes where it begins and by which key it draws: the ledger must know both."""
    try:
        names = sorted(one.name for one in os.scandir(bundle.root / "evidence"))
    except OSError:
        # Missing evidence is reported by the code that reads it.
        return
    for match in filter(None, map(_ENVIRONMENT.fullmatch, names)):
        index, name = int(match[1]), f"evidence/{match[0]}"
        keys = [one.commitment for one in ledger.resumes if one.round == index]
        if index and not keys:
            reasons.append(
                f"{name}: a process continued the run at round {index}, but the ledger records no "
                "interruption"
            )
            continue
        try:
            noted = parse_json(read_bytes(bundle.root, name, _MOST_NOTE_BYTES))
        except (UntrustedFileError, DocumentError) as error:
            reasons.append(f"{name}: cannot be read ({error})")
            continue
        # An earlier version notes no key.
        if isinstance(noted, dict) and "commitment" in noted:
            known = [*keys, header.commitment] if not index else keys
            if noted["commitment"] not in known:
                reasons.append(
                    f"{name}: a process drew noise with a key that the ledger does not name: the "
                    "run was interrupted, and the ledger does not say so"
                )


def state_faults(bundle: Bundle, ledger: Ledger, reasons: list[str], unreadable: list[str]) -> None:
    """A state in the evidence is the one that its round's line notes."""
    for item in {one.round: one for one in ledger.rounds}.values():
        name, noted = _STATE.format(item.round), item.digests.get("state_sha256")
        if noted is None or not os.path.lexists(bundle.root / name):
            continue
        try:
            found = hash_file(bundle.root, name)
        except UntrustedFileError as error:
            unreadable.append(f"{error.file}: {error.what}")
            continue
        if found != noted:
            reasons.append(f"{name}: is not the state that the ledger notes")


def _commitment_fault(
    item: Round,
    header: Header,
    evidence: RoundEvidence | UpdateRound,
    reasons: list[str],
    unreadable: list[str],
) -> None:
    """Commitments to participations are those that the round's line notes.

    Clients with ledgers of their own sign theirs, which `sites` compares.
    """
    noted = item.digests.get("participations_sha256")
    if noted is None or header.sites or not item.clients:
        return
    committed = evidence.commitment
    if committed is None:
        unreadable.append(f"{round_file(item.round)}: lacks the commitments that the ledger notes")
    elif hashlib.sha256(committed.astype(np.uint8).tobytes()).hexdigest() != noted:
        reasons.append(
            f"{round_file(item.round)}: its commitments are not those that the ledger notes"
        )


# By round, each line in which it ended and the line up to which that holds.
Ends = Mapping[int, Sequence[tuple[int, float]]]


def ends_of_rounds(ledger: Ledger) -> Ends:
    """Where each round ended; that holds until the run goes on at it, since its state was lost."""
    ends: dict[int, list[tuple[int, float]]] = {}
    for item in ledger.rounds:
        lost = [
            one.line for one in ledger.resumes if one.line > item.line and one.round <= item.round
        ]
        ends.setdefault(item.round, []).append((item.line, min(lost, default=math.inf)))
    return ends


def charged_in_time(spend: Spend | RoundSpend, ends: Ends, reasons: list[str]) -> None:
    """A charge stands after the round before and before the end of its own."""
    where = f"ledger.jsonl:{spend.line}"

    before, own = ends.get(spend.round - 1, ()), ends.get(spend.round, ())
    if not own:
        reasons.append(f"{where}: round {spend.round} was not finished")
    elif any(line < spend.line < until for line, until in own):
        reasons.append(f"{where}: charged after its round had ended")
    if before and not any(line <= spend.line < until for line, until in before):
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
        reasons.append("evidence/layout.json: the number of parameters is not the ledger's")
    if layout.round_files != header.rounds:
        reasons.append("evidence/layout.json: the number of rounds is not the ledger's")
    if layout.unit != header.unit.name:
        reasons.append("evidence/layout.json: the unit is not the ledger's")
    return True


def _note_unreadable_records(bundle: Bundle, unreadable: list[str]) -> None:
    """Note where the partition or the inputs' moments cannot be read."""
    for read in (bundle.holdings, bundle.moments):
        try:
            read()
        except UntrustedFileError as error:
            unreadable.append(str(error))


def _rounds_of_records(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every round: charged for its clients, S or as many as were drawn, then finished, in order."""
    sequence_faults(ledger, reasons)
    finished, ends = {item.round: item for item in ledger.rounds}, ends_of_rounds(ledger)
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
        charged_in_time(spend, ends, reasons)
    for item in finished.values():
        _charged_for_clients(item, charges.get(item.round, {}), header, reasons)


def _charged_for_clients(
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


def _evidence_of_records(
    bundle: Bundle, header: Header, reasons: list[str], unreadable: list[str]
) -> None:
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
            _commitment_fault(item, header, evidence, reasons, unreadable)
        if len(evidence.clients) and index in attempts and evidence.attempt != attempts[index]:
            reasons.append(f"{round_file(index)}: is not of the last attempt charged")

    evidence_faults(bundle, header, compare, reasons, unreadable)


def _judge_records(bundle: Bundle) -> Judgement:
    return judge_run(bundle, _rounds_of_records, _evidence_of_records)


INTEGRITY = Check(
    name="integrity",
    title="Is the run complete and its ledger unaltered?",
    units=AT_RECORD_LEVEL,
    place=10,
    meaning="If it fails, files were changed or are missing, and no other finding can be relied "
    "on.",
    claim="The ledger is an unbroken hash chain from header to claim, started from this spec, and "
    "each finished round has its evidence.",
    tolerance="none: digests and counts are compared exactly",
    power="any single changed byte of ledger, spec or an array of the evidence. A process that "
    "continued after a crash without a line in the ledger, if its note in the evidence is left",
    limits="A ledger rewritten as a whole, digests included, is consistent with itself; only the "
    "trainer's signature ties it to the moment of training. Weights, metrics and any evidence that "
    "cannot be cross-checked are compared with the digests in training.attestation.json, if it "
    "exists. Whether the trainer signed them is for `verify` to check, not for an audit.",
    rule=_judge_records,
    judges_no_claim=True,
)
register(INTEGRITY)


def _rounds_of_updates(ledger: Ledger, header: Header, reasons: list[str]) -> None:
    """Every round: charged once an attempt, then finished by exactly the clients charged for."""
    sequence_faults(ledger, reasons)
    finished, ends = {item.round: item for item in ledger.rounds}, ends_of_rounds(ledger)
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
        charged_in_time(spend, ends, reasons)
    charges = last_round_spends(ledger.round_spends)
    for item in finished.values():
        where = f"ledger.jsonl:{item.line}: round {item.round}"
        numbers = attempts.get(item.round, [])
        if numbers != list(range(1, len(numbers) + 1)) or not numbers:
            reasons.append(f"{where} is not charged once for each of its attempts 1, 2, …")
        elif set(charges[item.round].clients) != set(item.asked):
            reasons.append(f"{where}: the clients charged are not the clients that took part")


def _evidence_of_updates(
    bundle: Bundle, header: Header, reasons: list[str], unreadable: list[str]
) -> None:
    charges = last_round_spends(bundle.ledger.round_spends) if bundle.ledger is not None else {}

    rounds = bundle.ledger.rounds if bundle.ledger is not None else ()
    dropped = {item.round: item.dropped for item in rounds}
    finished = {item.round: item for item in rounds}

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
            reasons.append(f"{where}: has noise of uploads of which the ledger says nothing")
        if index in finished:
            _commitment_fault(finished[index], header, evidence, reasons, unreadable)

    evidence_faults(bundle, header, compare, reasons, unreadable)


def _judge_updates(bundle: Bundle) -> Judgement:
    return judge_run(bundle, _rounds_of_updates, _evidence_of_updates)


CLIENT_INTEGRITY = Check(
    name=INTEGRITY.name,
    title=INTEGRITY.title,
    units=AT_CLIENT_LEVEL,
    place=10,
    meaning="If it fails, files were changed or are missing, and no other finding can be relied "
    "on.",
    claim="The ledger is an unbroken hash chain from header to claim, started from this spec. "
    "Each round, empty ones included, is charged once per attempt before it ends and has its "
    "evidence.",
    tolerance=INTEGRITY.tolerance,
    power=INTEGRITY.power,
    limits=INTEGRITY.limits,
    rule=_judge_updates,
)
register(CLIENT_INTEGRITY)
