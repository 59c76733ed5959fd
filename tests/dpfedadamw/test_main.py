"""Where the command looks for modules: never in the folder that it is called in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dpfedadamw import __main__

OURS = str(Path(__main__.__file__).parents[1])


@pytest.mark.parametrize(
    ("by_name", "first", "kept"),
    [
        pytest.param(True, "", False, id="python -m, which puts the working directory first"),
        pytest.param(True, OURS, True, id="python -m, and a folder that holds the package"),
        pytest.param(False, "/opt/bin", True, id="the installed command, its own folder first"),
    ],
)
def test_only_the_working_directory_is_taken_from_where_modules_are_looked_for(
    by_name: bool, first: str, kept: bool, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(__main__, "_BY_NAME", by_name)
    monkeypatch.setattr(sys, "path", [first, "/elsewhere"])
    __main__._keep_to_what_is_installed()
    assert sys.path == ([first, "/elsewhere"] if kept else ["/elsewhere"])
    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_where_the_package_itself_lies_the_working_directory_stays(monkeypatch):
    monkeypatch.chdir(OURS)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setattr(__main__, "_BY_NAME", True)
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    __main__._keep_to_what_is_installed()
    assert sys.path == ["", "/elsewhere"]
    assert "PYTHONSAFEPATH" not in os.environ
