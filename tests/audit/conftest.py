"""Makes the builders of synthetic runs importable for the tests of this folder."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from synthetic_run import Settings, build_run  # noqa: E402

# Where only the auditor is installed, the tests that compare it with something else stay out.
_COMPARED_WITH = {"dpfedadamw": "torch", "torch": "torch", "dp_accounting": "dp_accounting"}
_IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
collect_ignore = [
    path.name
    for path in sorted(HERE.glob("test_*.py"))
    if any(
        name in _COMPARED_WITH and find_spec(_COMPARED_WITH[name]) is None
        for name in _IMPORT.findall(path.read_text(encoding="utf-8"))
    )
]


@pytest.fixture
def good_run(tmp_path: Path) -> Path:
    """A small correct run."""
    return build_run(tmp_path / "run", Settings())
