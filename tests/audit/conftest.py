"""Runs for the auditor's tests, and which of them need more than the auditor."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.audit.alone import HERE, needs_what_is_missing
from tests.audit.corruptions import attest
from tests.audit.synthetic_run import Settings, build_run
from tests.quick import leave_out

# Where only the auditor is installed, the tests that compare it with something else stay out.
collect_ignore = [
    str(path.relative_to(HERE))
    for path in sorted(HERE.rglob("test_*.py"))
    if needs_what_is_missing(path)
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is not quick, where the folder is run without the conftest of all tests."""
    if config.getoption("--every-case", None) is None:
        leave_out(items)


@pytest.fixture(scope="session")
def _built_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small correct run that no test changes."""
    return attest(build_run(tmp_path_factory.mktemp("good") / "run", Settings()))


@pytest.fixture
def good_run(_built_run: Path, tmp_path: Path) -> Path:
    """A small correct run, of which each test has a copy of its own."""
    return Path(shutil.copytree(_built_run, tmp_path / "run"))
