"""`python -m audit RUN_DIR [--json]`: audit a run where nothing else is installed.

Prints a plain table, or with --json the content of audit.json. Writes nothing. Exit code 0 for
PASS and NO CLAIM, 1 for FAIL and NOT VERIFIED, 2 for wrong use.

`python -m audit --paper-claim FILE` judges a printed privacy claim without a run: 0 for
CONSERVATIVE and CONSISTENT, 1 for UNDERSTATED and NOT DETERMINABLE, 2 for wrong use.
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from audit.auditor import audit_run
from audit.claims import judge_claim, load_claim
from audit.claims.rendering import render_claim
from audit.errors import AuditError
from audit.untrusted.text import printable
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
            # Texts of a hostile run must not steer the terminal.
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
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    try:
        if options.paper_claim is not None:
            judged = judge_claim(load_claim(options.paper_claim))
            found, good = judged.to_json(), judged.holds
            text = "" if options.json else render_claim(found)
        else:
            findings = audit_run(options.run_dir)
            found, good = findings.to_json(), findings.verdict in (Verdict.PASS, Verdict.NO_CLAIM)
            text = "" if options.json else render(findings)
    except AuditError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        text = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False)
    sys.stdout.buffer.write(f"{text}\n".encode())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
