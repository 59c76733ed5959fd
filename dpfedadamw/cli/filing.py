"""What follows a run: the independent audit, the report, and the signatures.

The command line is the only part of the engine that knows the auditor and the reports; this is its
half without a terminal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

import reports
from audit import auditor, probing
from audit.probing import Probe
from audit.verdict import Findings
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.rundir import RunDirectory
from reports import keys, signing

PASSPHRASE_VARIABLE = "DPFEDADAMW_PASSPHRASE"


class FilingError(DpfedadamwError):
    """A run cannot be audited, reported or signed as asked."""


@dataclass(frozen=True)
class Signers:
    """The two private keys.

    Attributes:
        trainer: Signs what was run.
        auditor: Signs what was found.
        created: Files of keys that were made just now.
    """

    trainer: EllipticCurvePrivateKey
    auditor: EllipticCurvePrivateKey
    created: tuple[Path, ...]


def passphrase() -> str | None:
    """The keys' passphrase from the environment, if one is set."""
    return os.environ.get(PASSPHRASE_VARIABLE) or None


def load_signers(trainer: Path | None, auditor_key: Path | None) -> Signers:
    """Load the two keys; those not named come from the key folder and are made on first use.

    Raises:
        reports.errors.ReportError: If a key cannot be read.
    """
    loaded, created = [], []
    for role, named in zip(keys.ROLES, (trainer, auditor_key), strict=True):
        path = named if named is not None else keys.default_directory() / f"{role}.key"
        if named is None and not path.exists():
            created.append(keys.create(role, path.parent, passphrase()).private)
        loaded.append(keys.load_private(path, passphrase()))
    return Signers(loaded[0], loaded[1], tuple(created))


def attest_training(run: RunDirectory, probe: Probe | None, signers: Signers) -> None:
    """Record the active probe and sign what was run."""
    if probe is not None:
        probing.record_probe(run.path, probe)
    signing.attest_training(run.path, signers.trainer)


def audit(run: RunDirectory, progress: Callable[[str], None] | None = None) -> Findings:
    """Judge a run's evidence; writes nothing."""
    return auditor.audit_run(run.path, progress=progress)


def file_report(
    run: RunDirectory, findings: Findings | None, signers: Signers, audience: str = "internal"
) -> reports.ReportFiles:
    """Write findings (where given) and the report, and sign all of it as the auditor."""
    if findings is not None:
        auditor.write_findings(run.path, findings)
    files = reports.build_report(run.path, audience)
    signing.attest_run(run.path, signers.auditor)
    return files


def same_as_filed(run: RunDirectory, findings: Findings) -> bool:
    """Whether the audit.json beside the run says exactly what these findings say."""
    try:
        filed = json.loads((run.path / "audit.json").read_bytes())
    except (OSError, ValueError):
        return False
    return bool(filed == findings.to_json())
