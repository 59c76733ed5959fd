"""`python -m audit RUN_DIR [--json]`: audit a run or a gate where nothing else is installed.

Prints a plain table, or with --json the content of audit.json. Writes nothing. Exit code 0 for
PASS and NO CLAIM, 1 for FAIL and NOT VERIFIED, 2 for wrong use and where the machine cannot do it
(a full standard output, no memory), 130 where it is interrupted.

`python -m audit --paper-claim FILE` judges a printed privacy claim without a run: 0 for
CONSERVATIVE and CONSISTENT, 1 for UNDERSTATED and NOT DETERMINABLE, and the others as above.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit.errors import AuditError
from audit.protection import WHY
from audit.untrusted.documents import printable

if TYPE_CHECKING:
    from audit.verdict import Findings

_WIDTH = 96
_INTERRUPTED = 130
# What more takes stands with each.
_LEVELS = {
    1: (
        "consistent: nothing in the files contradicts the claim. Level 2 needs the engine, which "
        "recomputes participations (dpfedadamw audit RUN_DIR --replay 20)"
    ),
    2: (
        "re-executed: participations drawn after training were recomputed and agree. Levels 3 and "
        "4 depend on signatures (dpfedadamw verify RUN_DIR)"
    ),
}


def render(findings: Findings) -> str:
    """The findings as a plain table for a terminal of 96 columns.

    Texts of a hostile run or gate steer no terminal, and make no line of their own.
    """
    lines = [f"run      {printable(findings.run)}", f"verdict  {findings.words}"]
    if findings.level is not None:
        lines += [f"level    {findings.level} of 4, {_LEVELS[findings.level]}"]
    if findings.unprotected is not None:
        lines.append(f"note     {WHY}")
    lines += [f"note     {printable(text)}" for text in findings.qualifications]
    lines.append("")
    for finding in findings.findings:
        lines.append(f"{finding.verdict.value:<15} {finding.name:<14} {finding.title}")
        lines += textwrap.wrap(
            printable(finding.measurement),
            _WIDTH,
            initial_indent=" " * 16,
            subsequent_indent=" " * 16,
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit one run directory, or one claim, from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m audit",
        description="Audit a differentially private run directory, or a printed privacy claim.",
    )
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("run_dir", nargs="?", type=Path, help="the run directory")
    subject.add_argument("--paper-claim", metavar="FILE", help="a claim (YAML), or a shipped one")
    parser.add_argument("--key", metavar="PUB", type=Path, help="of a gate: its public key")
    parser.add_argument("--anchor", metavar="FILE", type=Path, help="of a gate: its second head")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    try:
        if options.paper_claim is not None:
            text, good = _judged_claim(options.paper_claim, options.json)
        else:
            text, good = _judged_run(options)
        _print(text)
    except AuditError as error:
        return _stop(str(error))
    except MemoryError:
        return _stop("not enough memory")
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        return _stop(f"{place}{error.strerror or error}")
    except KeyboardInterrupt:
        return _stop("stopped", _INTERRUPTED)
    return 0 if good else 1


def _judged_run(options: argparse.Namespace) -> tuple[str, bool]:
    """What is printed of a run or a gate, and whether its verdict is a good one."""
    from audit.auditor import audit_run
    from audit.verdict import Verdict

    findings = _judged_gate(options)
    if findings is None:
        if options.key is not None or options.anchor is not None:
            raise AuditError(f"{options.run_dir}: --key and --anchor belong to a gate's folder")
        findings = audit_run(options.run_dir)
    good = findings.verdict in (Verdict.PASS, Verdict.NO_CLAIM)
    return _json(findings.to_json()) if options.json else render(findings), good


def _judged_gate(options: argparse.Namespace) -> Findings | None:
    """Findings on a gate's ledger; None of a run, or where audit/extensions/gate was removed."""
    try:
        from audit.extensions.gate import folder_of_gate, judge_files
    except ModuleNotFoundError as error:
        if error.name not in ("audit.extensions", "audit.extensions.gate"):
            raise
        return None
    folder = folder_of_gate(options.run_dir)
    return None if folder is None else judge_files(folder, options.key, options.anchor)


def _judged_claim(source: str, as_json: bool) -> tuple[str, bool]:
    """What is printed of a paper's claim, and whether it holds."""
    try:
        from audit.extensions.claims import judge_claim, load_claim
        from audit.extensions.claims.rendering import render_claim
    except ModuleNotFoundError as error:
        if error.name not in ("audit.extensions", "audit.extensions.claims"):
            raise
        raise AuditError(
            "--paper-claim: needs audit/extensions/claims, which was removed here"
        ) from None

    judged = judge_claim(load_claim(source))
    found = judged.to_json()
    return _json(found) if as_json else render_claim(found), judged.holds


def _json(found: Any) -> str:
    return json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False)


def _print(text: str) -> None:
    """Print in UTF-8, whatever the terminal has; a reader that went away is no error.

    Raises:
        OSError: standard output is full, or fails.
    """
    if sys.stdout is None:  # It was closed before this process began.
        return
    try:
        sys.stdout.buffer.write(f"{text}\n".encode())
        sys.stdout.buffer.flush()
    except OSError as error:
        # What is left is written once more at the end of the process, where nothing catches it.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if not isinstance(error, ConnectionError):
            raise OSError(error.errno, error.strerror, "standard output") from error


def _stop(reason: str, code: int = 2) -> int:
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{reason}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
