"""`python -m audit RUN_DIR [--json]`: audit a run where nothing else is installed.

Prints a plain table, or with --json the content of audit.json. Writes nothing. Exit code 0 for
PASS and NO CLAIM, 1 for FAIL and NOT VERIFIED, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from audit.auditor import audit_run
from audit.errors import AuditError
from audit.verdict import Findings, Verdict

_WIDTH = 96


def render(findings: Findings) -> str:
    """The findings as a plain table for a terminal of 96 columns."""
    lines = [f"run      {findings.run}", f"verdict  {findings.verdict.value}"]
    lines += [f"note     {text}" for text in findings.qualifications]
    lines.append("")
    for finding in findings.findings:
        lines.append(f"{finding.verdict.value:<15} {finding.name:<14} {finding.title}")
        lines += textwrap.wrap(
            _printable(finding.measurement),
            _WIDTH,
            initial_indent=" " * 16,
            subsequent_indent=" " * 16,
        )
    return "\n".join(lines)


def _printable(text: str) -> str:
    # Texts of a hostile run must not steer the terminal.
    return "".join(character if character.isprintable() else "?" for character in text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit one run directory from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m audit", description="Audit a differentially private run directory."
    )
    parser.add_argument("run_dir", type=Path, help="the run directory")
    parser.add_argument("--json", action="store_true", help="print audit.json instead of a table")
    options = parser.parse_args(arguments)
    try:
        findings = audit_run(options.run_dir)
    except AuditError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        text = json.dumps(findings.to_json(), indent=2, sort_keys=True, ensure_ascii=False)
    else:
        text = render(findings)
    sys.stdout.buffer.write(f"{text}\n".encode())
    return 0 if findings.verdict in (Verdict.PASS, Verdict.NO_CLAIM) else 1


if __name__ == "__main__":
    sys.exit(main())
