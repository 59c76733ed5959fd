"""Independent auditor of differentially private federated learning runs.

Judges a run directory by files alone: it imports neither the engine nor any deep learning or
accounting library, so that one mistake cannot hide on both sides. `audit_run` gives the findings,
`write_findings` stores them, `record_probe` lets the engine's real step be poked at.

These names are loaded when they are asked for, so that the reports, which read hostile files
through `audit.untrusted` as well, load no auditor with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from audit.auditor import audit_run, write_findings
    from audit.errors import AuditError
    from audit.probe.probing import Probe, StepProbe, record_probe
    from audit.probe.updates import UpdateProbe
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

_MODULES = {
    "audit.auditor": ("audit_run", "write_findings"),
    "audit.errors": ("AuditError",),
    "audit.probe.probing": ("Probe", "StepProbe", "record_probe"),
    "audit.probe.updates": ("UpdateProbe",),
    "audit.verdict": ("Finding", "Findings", "Severity", "Verdict"),
}


def __getattr__(name: str) -> Any:
    """Load one of the names above from where it is defined."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'audit' has no attribute {name!r}")
