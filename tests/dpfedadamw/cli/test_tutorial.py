"""docs/tutorial.md, done as it stands there: its files written, its commands run in order."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "tutorial.md").read_text("utf-8")
STEP = re.compile(
    r"<!-- file: (?P<file>\S+) -->\s+```python\n(?P<text>.*?)```"
    r"|<!-- commands -->\n\n(?P<commands>(?:    \S[^\n]*\n)+)",
    re.S,
)


@pytest.mark.slow
def test_the_tutorial_works_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    # Away from the sources a program sees the package that is installed, as a user's does.
    settings = {**os.environ, "DPFEDADAMW_KEYS": str(tmp_path / "keys"), "PYTHONPATH": ""}
    run = []
    for step in STEP.finditer(PAGE):
        if step["file"]:
            (tmp_path / step["file"]).write_text(step["text"], "utf-8")
            continue
        for command in step["commands"].splitlines():
            program, *arguments = shlex.split(command)
            start = ["-m", "dpfedadamw"] if program == "dpfedadamw" else []
            done = subprocess.run(
                [sys.executable, *start, *arguments],
                cwd=tmp_path,
                env=settings,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            run.append(command)
    assert len(run) == 12
    audits = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*-*/audit.json")]
    assert [audit["verdict"] for audit in audits] == ["PASS"] * 3
    assert (tmp_path / "public" / "report-public.pdf").is_file()
    assert not (tmp_path / "public" / "evidence").exists()
