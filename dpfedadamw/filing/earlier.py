"""What an auditor found by computing a run again stands for later audits of the same files.

A replay takes key, data and time, and its finding is about files that can be told by their digests.
An audit without one takes it over from `audit.json`, if one of the reader's own keys signed that
and every file of the run is still what was signed, evidence included. Otherwise a FAIL could be
lost by auditing once more, and a trainer could hand an auditor a finding to sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from audit.checks.initial_weights import INITIAL_WEIGHTS
from audit.checks.reexecution import REEXECUTION, said
from audit.verdict import Finding, Findings, Severity, Verdict
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.disk import UNFINISHED
from reports.errors import ReportError
from reports.files import mapping, parse_json, read_bytes
from reports.signatures import signing, verification

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


def computed_again(finding: Mapping[str, Any]) -> bool:
    """Whether participations were computed again for a finding, as audit.json has it."""
    return finding.get("name") == REEXECUTION.name and bool(mapping(finding.get("details")))


def _filed(run: RunDirectory) -> Mapping[str, Mapping[str, Any]] | None:
    """The findings in audit.json by check, whoever wrote them; None where no replay is in them."""
    try:
        content = mapping(parse_json(read_bytes(run.path / "audit.json"), "audit.json"))
    except ReportError:
        return None
    checks = content.get("checks")
    every = list(map(mapping, checks if isinstance(checks, list) else []))
    if not any(map(computed_again, every)):
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

    What stands beside a verdict is not filed with it: for the weights that training begins with it
    follows from the ledger, as in the audit's own finding.
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
