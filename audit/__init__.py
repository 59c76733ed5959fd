"""Independent auditor of differentially private federated learning runs.

Judges a run directory by files alone: it imports neither the engine nor any deep learning or
accounting library, so that one mistake cannot hide on both sides. `audit_run` gives the findings,
`write_findings` stores them, `record_probe` lets the engine's real step be poked at.
"""

from __future__ import annotations

from audit.auditor import audit_run, write_findings
from audit.errors import AuditError
from audit.probe.probing import Probe, StepProbe, record_probe
from audit.probe.update_probing import UpdateProbe
from audit.verdict import Finding, Findings, Severity, Verdict

__all__ = [
    "AuditError",
    "Finding",
    "Findings",
    "Probe",
    "Severity",
    "StepProbe",
    "UpdateProbe",
    "Verdict",
    "audit_run",
    "record_probe",
    "write_findings",
]
