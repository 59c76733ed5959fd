"""docs/analyst.md, done as it stands there: a raw table becomes an audited run, without Python."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
COMMANDS = re.compile(r"<!-- commands -->\n\n((?:    \S[^\n]*\n)+)")


@pytest.mark.slow
def test_the_analysts_page_works_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/stays.py").write_bytes((DOCS / "stays.py").read_bytes())
    settings = {**os.environ, "DPFEDADAMW_KEYS": str(tmp_path / "keys"), "PYTHONPATH": ""}
    settings["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    lines = [
        line.strip()
        for block in COMMANDS.findall((DOCS / "analyst.md").read_text("utf-8"))
        for line in block.splitlines()
    ]
    assert len(lines) == 5
    for line in lines:
        program, *arguments = shlex.split(line)
        start = ["-m", "dpfedadamw"] if program == "dpfedadamw" else []
        done = subprocess.run(
            [sys.executable, *start, *arguments],
            cwd=tmp_path,
            env=settings,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    (audit,) = (tmp_path / "runs").glob("*-*/audit.json")
    assert json.loads(audit.read_text())["verdict"] == "PASS"
    assert (audit.parent / "report.pdf").is_file()

    # The lines of the exported model's card read the raw rows and prepare them as in training.
    def called(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=settings, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    called("-m", "dpfedadamw", "export", "runs/latest", "--output", "model")
    (snippet,) = re.findall(
        r"```python\n(.*?)```", (tmp_path / "model/README.md").read_text(), re.S
    )
    (tmp_path / "card.py").write_text(snippet.replace("FOLDER", "model"))
    raw = (tmp_path / "stays.csv").read_text("utf-8-sig").splitlines(keepends=True)
    (tmp_path / "rows.csv").write_text("".join(raw[:4]), "utf-8")
    assert [line["row"] for line in map(ast.literal_eval, called("card.py").splitlines())] == [
        1, 2, 3
    ]  # fmt: skip


def test_the_table_is_as_raw_as_the_page_says(tmp_path: Path) -> None:
    runpy.run_path(str(DOCS / "stays.py"))["write"](tmp_path)
    text = (tmp_path / "stays.csv").read_bytes()
    assert text.startswith("\ufeffpatient_id;hospital;age".encode())
    rows = [line.split(";") for line in text.decode().splitlines()[1:]]
    assert len(rows) == 20_000
    assert 0.07 < sum(row[-1] == "1" for row in rows) / len(rows) < 0.09
    assert 0.1 < sum(row[5] == "" for row in rows) / len(rows) < 0.14
    assert {"NA"} < {row[6] for row in rows}
