"""Runs for the auditor's tests, and which of them need more than the auditor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.alone import HERE, needs_what_is_missing
from tests.audit.corruptions import attest
from tests.audit.synthetic_run import Settings, build_run

# Where only the auditor is installed, the tests that compare it with something else stay out.
collect_ignore = [
    str(path.relative_to(HERE))
    for path in sorted(HERE.rglob("test_*.py"))
    if needs_what_is_missing(path)
]


@pytest.fixture
def good_run(tmp_path: Path) -> Path:
    """A small correct run."""
    return attest(build_run(tmp_path / "run", Settings()))
