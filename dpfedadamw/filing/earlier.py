"""What was signed earlier stands: not lost by a later audit, not signed again if changed.

A replay takes key, data and time, and its finding is about files that can be told by their digests.
An audit without one takes it over from `audit.json` (`with_earlier_replay`), if one of the reader's
own keys signed that and every file of the run is still what was signed, evidence included.
Otherwise a FAIL could be lost by auditing once more, and a trainer could hand an auditor a finding
to sign.

A signature judges nothing: `refuse_changed` keeps one from being put under files that are not what
a key of the user's signed before. `refuse_erased` keeps the findings on a run without evidence.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from audit.checks.initial_weights import INITIAL_WEIGHTS
from audit.checks.reexecution import REEXECUTION, said
from audit.verdict import Finding, Findings, Severity, Verdict
from dpfedadamw.errors import FilingError
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.disk import UNFINISHED
from reports.errors import EnvelopeError, ReportError, local
from reports.files import clean, mapping, parse_json, read_bytes
from reports.signatures import (
    copies,
    dsse,
    keyring,
    keys,
    signing,
    statements,
    verification,
)
from reports.signatures.dsse import Statement
from reports.signatures.inventory import EVIDENCE
from reports.signatures.keyring import SigningKey
from reports.signatures.verification import contents, results
from reports.signatures.verification.results import Found

# The weights that training begins with are made again by every replay.
_BY_A_REPLAY = (REEXECUTION.name, INITIAL_WEIGHTS.name)
_TEXTS = ("name", "title", "claim", "measurement", "tolerance", "power", "limits")


def with_earlier_replay(run: RunDirectory, findings: Findings) -> Findings:
    """Findings of an audit that computed nothing again, with what an earlier one found so.

    Args:
        run: The run, of which nothing was written since it was judged.
        findings: What was found now.

    Returns:
        Findings with the earlier finding; where it cannot be taken over, with the reason; as they
        are where there is none.
    """
    filed = _filed(run)
    if filed is None:
        return findings
    try:
        why = _changed(run)
        earlier = {
            one.name: _finding(filed[one.name], run, one)
            for one in findings.findings
            if one.name in filed and one.name in _BY_A_REPLAY
        }
    except (ReportError, KeyError, TypeError, ValueError) as error:
        why, earlier = str(error), {}
    if why is not None:
        own = findings.named(REEXECUTION.name)
        text = f"{own.measurement}; that of an earlier audit is not taken over: {why}"
        earlier = {own.name: replace(own, measurement=text)}
    every = (earlier.get(one.name, one) for one in findings.findings)
    return replace(findings, findings=tuple(every))


def was_recomputed(finding: Mapping[str, Any]) -> bool:
    """Whether participations were computed again for a finding, as audit.json has it."""
    return finding.get("name") == REEXECUTION.name and bool(mapping(finding.get("details")))


def _filed(run: RunDirectory) -> Mapping[str, Mapping[str, Any]] | None:
    """The findings in audit.json by check, by any author; None where they contain no replay."""
    try:
        content = mapping(parse_json(read_bytes(run.path / "audit.json"), "audit.json"))
    except ReportError:
        return None
    checks = content.get("checks")
    every = list(map(mapping, checks if isinstance(checks, list) else []))
    if not any(map(was_recomputed, every)):
        return None
    return {str(one.get("name")): one for one in every}


def _changed(run: RunDirectory) -> str | None:
    """Why what was signed with the finding is not what lies there; None where it is."""
    result = verification.verify(run.path)
    for problem in result.problems:
        if problem.file != UNFINISHED:
            return str(problem)
    envelope = signing.RUN_ENVELOPE
    if any(one.own for one in result.signers if one.envelope == envelope):
        return None
    return f"{envelope}: is not signed by a key of yours, and another's finding stands for itself"


def _finding(filed: Mapping[str, Any], run: RunDirectory, own: Finding) -> Finding:
    """A finding as it was filed; what it has of private numbers lies in the evidence.

    A verdict's qualification is not filed with it: for the starting weights it follows from the
    ledger, as in the audit's own finding.
    """
    name = "evidence/findings.json"
    private = mapping(parse_json(read_bytes(run.path / name), name))
    details, verdict = mapping(filed["details"]), Verdict(filed["verdict"])
    beside = own.qualifications
    if own.name == REEXECUTION.name:
        beside = (said(details),) if verdict is Verdict.PASS else ()
    return Finding(
        **{key: str(filed[key]) for key in _TEXTS},
        verdict=verdict,
        severity=Severity(filed["severity"]),
        details=details,
        private=mapping(mapping(private["private"])[own.name]),
        qualifications=beside,
    )


def refuse_changed(
    run: RunDirectory,
    key: SigningKey,
    rewritten: Collection[str] = (),
    *,
    by_anybody: bool = False,
) -> None:
    """Refuse to sign what was changed since it was signed, as a signature judges nothing.

    Args:
        run: Its directory, held for writing.
        key: The key that signs now, in the role whose signature is to be superseded.
        rewritten: Further files that are rewritten in any case.
        by_anybody: Whether the last signature may be by the run's own key, held by anyone; else it
            must be by this key or another one of the user's. By none that is compromised.

    Raises:
        FilingError: If something was changed, or the last signature is by no such key.
    """
    trainer = key.role == "trainer"
    name = signing.TRAINING_ENVELOPE if trainer else signing.RUN_ENVELOPE
    files = {*rewritten, *contents.BY_TRAINER, *(() if trainer else contents.BY_AUDITOR)}
    folder = keys.default_directory()
    try:
        signers = [key.public, *keyring.own_keys(key.role, folder)]
        if by_anybody:
            signers.append(keys.load_public(run.path / f"{key.role}.pub"))
        # Who has a compromised key can have signed anything with it.
        revoked = statements.own_revocations(folder)
        compromised = {one.key for one in revoked.values() if one.reason == "key-compromise"}
        sound = [one for one in signers if keys.fingerprint(one) not in compromised]
        statement = contents.refuse_changed(run.path, name, sound, files)
        _refuse_earlier(run, name, statement, sound, folder / results.MEMORY_FILE)
    except ReportError as error:
        told = local(error, run.path)
        remedy = f"audit the run again: dpfedadamw audit {run.path} --write"
        if trainer or copies.erased_at(run.path) is not None:
            remedy = "restore what was signed"
        if re.match(f"({copies.ERASURE}|{EVIDENCE})[:/]", told) and copies.is_cut_off(run.path):
            remedy = f"finish the erasure that was cut off: dpfedadamw erase {run.path}"
        raise FilingError(f"{told}; nothing was signed; {remedy}") from error


def _refuse_earlier(
    run: RunDirectory,
    name: str,
    statement: Statement,
    signers: Sequence[ec.EllipticCurvePublicKey],
    memory: Path,
) -> None:
    """Refuse an earlier state that was put back, where a later one was verified before.

    `verify` remembers runs by the name in their ledgers, which is signed; a folder may be renamed.

    Args:
        run: Its directory.
        name: The envelope.
        statement: What it says.
        signers: Keys of which one signed it. What was seen under any of them counts: they are the
            user's own, or the run's.
        memory: What was seen.
    """
    digest = hashlib.sha256(read_bytes(run.path / name)).hexdigest()
    seen = results.Seen(dsse.sequence_number(statement, name), digest)
    present = {name: results.Present(seen, frozenset(map(keys.fingerprint, signers)))}
    found = Found()
    # Remembered by `verify` under the run's own name, which the folder of a copy need not have.
    named = clean(statement.predicate.get("run"), 200)
    results.refuse_earlier(results.read_memory(memory), named, present, memory, found)
    for problem in found.problems:
        raise EnvelopeError(str(problem))


def refuse_erased(run: RunDirectory) -> None:
    """Refuse to audit a run again whose evidence was erased: its findings would be lost.

    Raises:
        FilingError: If a record says that it was.
    """
    when = copies.erased_at(run.path)
    if when is None:
        return
    reason = f"{run.path}: its evidence was erased on {when}, so it can no longer be audited; "
    if is_written_to(run) or not copies.is_erased(run.path):
        raise FilingError(
            f"{reason}finish the interrupted command by repeating it: dpfedadamw erase, report or "
            f"sign {run.path}"
        )
    raise FilingError(f"{reason}the signed findings are in audit.json")


def is_written_to(run: RunDirectory) -> bool:
    """Whether somebody writes to a run, or was cut off while they did."""
    return os.path.lexists(run.path / UNFINISHED)
