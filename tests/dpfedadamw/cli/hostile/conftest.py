"""Good files for all tests of hostile ones, made once."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.dpfedadamw.cli.hostile import material
from tests.dpfedadamw.cli.hostile.calls import apart


@pytest.fixture(scope="session")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good files; nobody may change it."""
    folder = tmp_path_factory.mktemp("good")
    apart(functools.partial(material.make, folder))
    return folder
