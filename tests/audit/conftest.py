"""Makes the synthetic run builder importable for the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from synthetic_run import Settings, build_run


@pytest.fixture
def good_run(tmp_path: Path) -> Path:
    """A small correct run."""
    return build_run(tmp_path / "run", Settings())
