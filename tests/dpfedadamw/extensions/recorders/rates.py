"""How often correct loops raise a false alarm, and broken ones are found, at the tests' sizes.

    python -m tests.dpfedadamw.extensions.recorders.rates [REPEATS]

Run by hand; docs/opacus.md and docs/evidence.md have the figures.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

from audit.auditor import audit_run
from audit.verdict import Severity, Verdict
from tests.audit.corruptions import attest
from tests.dpfedadamw.extensions.recorders import filters, loops


def main(repeats: int) -> None:
    """Print a line for each loop."""
    warnings.filterwarnings("ignore")
    meant_for = dict.fromkeys((*loops.CORRECT, *filters.CORRECT), "")
    meant_for |= loops.BROKEN | filters.BROKEN
    for loop, meant in meant_for.items():
        raised: Counter[str] = Counter()
        found = 0
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                findings = audit_run(attest(loop(Path(folder) / "run")))
            alarms = {
                one.name
                for one in findings.findings
                if one.verdict is Verdict.FAIL
                or (one.verdict is Verdict.NOT_VERIFIED and one.severity is Severity.CRITICAL)
            }
            raised.update(alarms)
            found += not alarms if not meant else findings.named(meant).verdict is Verdict.FAIL
        what = f"found by {meant}" if meant else "passed"
        print(f"{loop.__name__}: {what} {found} of {repeats}; {dict(raised)}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
