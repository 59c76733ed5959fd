"""The page of results: `python -m tests.specs.results_page docs/results.md` writes its tables anew.

Each command that stands alone between the page's marks is run, on the committed data, and what it
prints follows it. Nothing is trained.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- printed by this command -->", "<!-- end -->"
_TABLE = re.compile(rf"{BEGIN}\n\n    (dpfedadamw [^\n]+)\n\n.*?{END}", re.DOTALL)


def printed_by(command: str) -> str:
    """What a command prints to standard output.

    Raises:
        AssertionError: It does not end with 0.
    """
    from dpfedadamw.cli import main

    _, *arguments = shlex.split(command)
    raw = io.BytesIO()
    output = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    here, to = contextlib.chdir(ROOT), contextlib.redirect_stdout(output)
    with here, to, pytest.raises(SystemExit) as end:
        main(arguments)
    assert not end.value.code, f"{command}: ended with {end.value.code}"
    return raw.getvalue().decode()


def commands(page: str) -> list[str]:
    """The commands whose output the page shows."""
    return _TABLE.findall(page)


def written(page: str) -> str:
    """The page with the output of its commands."""

    def anew(found: re.Match[str]) -> str:
        return f"{BEGIN}\n\n    {found[1]}\n\n{printed_by(found[1])}\n{END}"

    return _TABLE.sub(anew, page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
