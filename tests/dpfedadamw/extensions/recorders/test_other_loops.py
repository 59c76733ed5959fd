"""docs/loops.md, done as it stands there: loops of other libraries, judged by both verifiers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reports.verifier import FOLDER
from tests.runs import call

_PAGE = (Path(__file__).parents[4] / "docs" / "loops.md").read_text("utf-8")
NODE = shutil.which("node")


def _after(mark: str, pattern: str) -> str:
    found = re.search(rf"<!-- {mark} -->\s+{pattern}", _PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_each_program_has_at_most_sixty_lines() -> None:
    programs = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)
    assert len(programs) == 3
    assert max(one.count("\n") for one in programs) <= 60


@pytest.mark.loops
@pytest.mark.skipif(NODE is None, reason="the second verifier needs Node")
@pytest.mark.parametrize("library", ["jax_privacy", "opake.dpsgd.noise", "pfl"])
def test_a_loop_of_another_library_passes_both_verifiers(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    program = _after(library.partition(".")[0], r"```python\n(.*?)```")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
    for line in _after("commands", r"((?:    [^\n]*\n)+)").splitlines():
        assert call(*shlex.split(line)[1:]) == 0, line
    assert json.loads(Path("my-loop", "audit.json").read_text())["verdict"] == "PASS"
    keys = Path(os.environ["DPFEDADAMW_KEYS"])
    pinned = [
        part for role in ("trainer", "auditor") for part in (f"--{role}-key", keys / f"{role}.pub")
    ]
    assert NODE is not None
    done = subprocess.run(
        [NODE, FOLDER / "verify.mjs", "my-loop", *pinned, "--json"],
        capture_output=True,
        check=False,
    )
    told = json.loads(done.stdout)
    assert (done.returncode, told["outcome"], told["claim"]) == (0, "ALL HOLD", "AGREES"), told
