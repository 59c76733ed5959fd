"""Runs all checks on one run directory, fails closed, and writes the findings.

Top of the flow: `open_bundle` → every check of the run's unit → `Findings`. An exception inside a
check, foreseen or not, becomes the verdict NOT VERIFIED of that check with one line of reason; no
input can turn it into PASS.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from audit.checks import Check, Judgement, checks_for
from audit.errors import AuditError, ProbeError, UnverifiedError
from audit.probe.probing import Probe, run_probe
from audit.protection import unprotected_by
from audit.reading.bundle import Bundle, open_bundle
from audit.reading.evidence import ProbeResults, read_probe
from audit.reading.files import write_atomically
from audit.reexecution import Replay
from audit.untrusted.fields import FieldError
from audit.verdict import Finding, Findings, Verdict


def audit_run(
    run_dir: Path,
    probe: Probe | None = None,
    progress: Callable[[str], None] | None = None,
    replay: Replay | None = None,
) -> Findings:
    """Judge one run directory.

    Args:
        run_dir: the directory; nothing in it is trusted, nothing in it is changed.
        probe: the engine's private step, at client level its sum of updates; None to judge the
            recorded probe of the evidence.
        progress: called with the title of each check before it starts.
        replay: draws participations and computes them again; None to say that it rests on the
            trainer's word.

    Returns:
        The findings, the same for the same run on the same machine.

    Raises:
        RunDirectoryError: `run_dir` is not a directory.
    """
    bundle = open_bundle(run_dir)
    bundle.replay = replay
    if probe is not None:
        bundle.live_probe = partial(_probed, probe)
    header = bundle.ledger.header if bundle.ledger is not None else None
    findings = []
    for check in checks_for(header):
        if progress is not None:
            progress(check.title)
        findings.append(_run(check, bundle))
    return Findings(
        run=header.run if header is not None else "unknown",
        unit=header.unit.name if header is not None else None,
        claims_privacy=header is None or header.unit.claims_privacy,
        findings=tuple(findings),
        inputs=dict(sorted(bundle.inputs.items())),
        versions={"numpy": np.__version__, "scipy": scipy.__version__},
        unprotected=unprotected_by(bundle.ledger.claim if bundle.ledger is not None else None),
    )


def write_findings(run_dir: Path, findings: Findings) -> None:
    """Write audit.json and, where evidence/ exists, evidence/findings.json (mode 0600).

    Both are replaced atomically. A missing evidence/ is not created: an auditor of a published
    run has none.

    Raises:
        RunDirectoryError: a file cannot be written.
    """
    write_atomically(run_dir / "audit.json", _json(findings.to_json()), 0o644)
    folder = run_dir / "evidence"
    if folder.is_dir() and not folder.is_symlink():
        write_atomically(folder / "findings.json", _json(findings.private_json()), 0o600)


def _json(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def _run(check: Check, bundle: Bundle) -> Finding:
    try:
        with np.errstate(all="ignore"):
            return check.finding(check.judge(bundle))
    except AuditError as error:
        reason = str(error)
    except Exception as error:
        # Fails closed on purpose: whatever goes wrong while judging must never look like PASS.
        reason = f"the check could not be carried out ({type(error).__name__})"
    return check.finding(Judgement(Verdict.NOT_VERIFIED, reason))


def _probed(probe: Probe) -> ProbeResults:
    try:
        return read_probe(run_probe(probe))
    except (ProbeError, FieldError) as error:
        raise UnverifiedError(str(error)) from error
    except Exception as error:
        what = f"the active probe could not be carried out ({type(error).__name__})"
        raise UnverifiedError(what) from error
