"""Where the command looks for modules: never in the folder that it is called in."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfedadamw import __main__

OURS = str(Path(__main__.__file__).parents[1])


def left(folder: Path | str, first: str, monkeypatch, by_name=True, safe=False) -> list[str]:
    """Where a command that is called in a folder looks for modules."""
    python = SimpleNamespace(flags=SimpleNamespace(safe_path=safe), path=[first, "/elsewhere"])
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(__main__, "_BY_NAME", by_name)
    monkeypatch.setattr(__main__, "sys", python)
    __main__._keep_to_what_is_installed()
    return python.path


@pytest.mark.parametrize(
    ("first", "by_name", "safe", "kept"),
    [
        pytest.param(
            "", True, False, False, id="python -m, which puts the working directory first"
        ),
        pytest.param(OURS, True, False, True, id="python -m, and a folder that holds the package"),
        pytest.param("/of/PYTHONPATH", True, True, True, id="python -P -m, which does not"),
        pytest.param("/opt/bin", False, False, True, id="the installed command, its folder first"),
    ],
)
def test_only_the_working_directory_is_taken_from_where_modules_are_looked_for(
    first: str, by_name: bool, safe: bool, kept: bool, tmp_path, monkeypatch
):
    due = [first, "/elsewhere"] if kept else ["/elsewhere"]
    assert left(tmp_path, first, monkeypatch, by_name, safe) == due
    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_where_the_package_itself_lies_the_working_directory_stays(monkeypatch):
    assert left(OURS, "", monkeypatch) == ["", "/elsewhere"]
    assert "PYTHONSAFEPATH" not in os.environ
