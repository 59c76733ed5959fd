"""Runs for the auditor's tests, and which of them need more than the auditor."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.audit.corruptions import attest
from tests.audit.synthetic_run import Settings, build_run

HERE = Path(__file__).parent

# Where only the auditor is installed, the tests that compare it with something else stay out.
_COMPARED_WITH = {
    "dpfedadamw": "torch",
    "torch": "torch",
    "dp_accounting": "dp_accounting",
    "reports": "cryptography",
}
_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
collect_ignore = [
    str(path.relative_to(HERE))
    for path in sorted(HERE.rglob("test_*.py"))
    if any(
        name in _COMPARED_WITH and find_spec(_COMPARED_WITH[name]) is None
        for name in _IMPORT.findall(path.read_text(encoding="utf-8"))
    )
]


@pytest.fixture
def good_run(tmp_path: Path) -> Path:
    """A small correct run."""
    return attest(build_run(tmp_path / "run", Settings()))
