"""What continuous integration installs by hash is what `constraints.txt` names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "requirements").glob("*.txt"))


def pins(text: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_pins_agree_and_each_has_its_hashes(path: Path) -> None:
    text = path.read_text("utf-8")
    named = pins(text)
    constrained = pins((ROOT / "constraints.txt").read_text("utf-8"))
    assert len(named) > 10
    assert named.items() <= constrained.items()
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    hashed = [entry for entry in entries if re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)]
    assert len(hashed) == len(named)


def test_the_files_are_there_and_used() -> None:
    assert [path.stem for path in FILES] == ["auditor", "docs", "tools"]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8")
    assert "pip install --require-hashes -r requirements/tools.txt" in workflow
    assert "pip install tox" not in workflow
    environments = (ROOT / "tox.ini").read_text("utf-8")
    assert "requirements{/}auditor.txt" in environments
    assert "requirements{/}docs.txt" in environments
