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

from audit.checks.reexecution import REEXECUTION, said
from audit.verdict import Finding, Findings, Severity, Verdict
from dpfedadamw.rundir import RunDirectory
from dpfedadamw.storage.disk import UNFINISHED
from reports.errors import ReportError
from reports.reading.files import mapping, parse_json, read_bytes
from reports.signatures import signing, verification

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
        why, earlier = _changed(run), _finding(filed, run)
    except (ReportError, KeyError, TypeError, ValueError) as error:
        why, earlier = str(error), None
    own = findings.named(REEXECUTION.name)
    if why is not None or earlier is None:
        text = f"{own.measurement}; that of an earlier audit is not taken over: {why}"
        earlier = replace(own, measurement=text)
    every = (earlier if one is own else one for one in findings.findings)
    return replace(findings, findings=tuple(every))


def computed_again(finding: Mapping[str, Any]) -> bool:
    """Whether participations were computed again for a finding, as audit.json has it."""
    return finding.get("name") == REEXECUTION.name and bool(mapping(finding.get("details")))


def _filed(run: RunDirectory) -> Mapping[str, Any] | None:
    """The finding of a replay in audit.json, whoever wrote it."""
    try:
        content = mapping(parse_json(read_bytes(run.path / "audit.json"), "audit.json"))
    except ReportError:
        return None
    checks = content.get("checks")
    every = map(mapping, checks if isinstance(checks, list) else [])
    return next((one for one in every if computed_again(one)), None)


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


def _finding(filed: Mapping[str, Any], run: RunDirectory) -> Finding:
    """A finding as it was filed; what it has of private numbers lies in the evidence."""
    name = "evidence/findings.json"
    private = mapping(parse_json(read_bytes(run.path / name), name))
    details, verdict = mapping(filed["details"]), Verdict(filed["verdict"])
    return Finding(
        **{key: str(filed[key]) for key in _TEXTS},
        verdict=verdict,
        severity=Severity(filed["severity"]),
        details=details,
        private=mapping(mapping(private["private"])[REEXECUTION.name]),
        qualifications=(said(details),) if verdict is Verdict.PASS else (),
    )
