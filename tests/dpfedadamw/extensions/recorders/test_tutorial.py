"""docs/opacus.md, done as it stands there: from the loop to a signed PDF."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from dpfedadamw import cli

_PAGE = (Path(__file__).parents[4] / "docs" / "opacus.md").read_text("utf-8")


def _after(mark: str, pattern: str) -> str:
    found = re.search(rf"<!-- {mark} -->\s+{pattern}", _PAGE, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Secure RNG turned off")
def test_the_tutorial_ends_in_a_signed_report_that_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    # A false alarm in one of a thousand loops is for docs/opacus.md, not for a test.
    torch.manual_seed(7_140_283)
    exec(compile(_after("loop", r"```python\n(.*?)```"), "docs/opacus.md", "exec"), {})
    assert "epsilon" in capsys.readouterr().out
    commands = [line.strip() for line in _after("commands", r"((?:    [^\n]*\n)+)").splitlines()]
    assert len(commands) == 3
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "dpfedadamw"
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert not ended.value.code, capsys.readouterr()
    run = tmp_path / "my-loop"
    assert "ALL HOLD" in capsys.readouterr().out
    assert json.loads((run / "audit.json").read_text())["verdict"] == "PASS"
    page = (run / "report.html").read_text()
    assert "24 recorded steps" in page
    assert "clients a round" not in page
    pdf = (run / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/ByteRange" in pdf
