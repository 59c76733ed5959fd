"""A finished run that is audited, reported or signed again, and what cuts that off."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.crashes import cases
from tests.crashes.apart import apart
from tests.crashes.branching import Fate, Process, run
from tests.crashes.cases import whole
from tests.crashes.matrix import KILL, every, survive

PUBLIC_REPORT = (
    *(f"report-public.{kind}" for kind in ("json", "pdf", "html")),
    "attestation-public.json",
    "VERIFY-public.md",
)
COMMANDS = {
    "audit": ("audit", "--write"),
    "report": ("report", "--audience", "public"),
    "sign": ("sign",),
}


def judged_without_evidence(folder: Path) -> None:
    """Let findings be filed that the next audit does not repeat, so that its files are others."""
    evidence, elsewhere = folder / "evidence", folder.parent.parent / "evidence"
    os.rename(evidence, elsewhere)
    ended = run(Process(("audit", str(folder), "--write"), folder.parent.parent))
    assert ended.code == 1, ended
    os.rename(elsewhere, evidence)


@pytest.mark.crashes
@pytest.mark.parametrize("command", COMMANDS)
@apart
def test_what_is_cut_off_later_is_finished_by_resume_too(tmp_path, command):
    reference = whole("release-record")
    case = tmp_path / "case"
    assert run(cases.first(reference.spec, case)).code == 0
    folder = cases.only_run(case)
    if command == "audit":
        judged_without_evidence(folder)
    name, *options = COMMANDS[command]

    def finish(case: Path) -> list[str]:
        # A report that was cut off before its first file leaves none, and nothing to finish.
        begun = any(cases.only_run(case).glob("report-public.*"))
        expected = reference.with_files(dict.fromkeys(PUBLIC_REPORT, 0o644)) if begun else reference
        return cases.finish(case, expected)

    survive(
        Process((name, str(folder), *options), case),
        tmp_path / "results",
        every(KILL, Fate("ENOSPC"), Fate("EIO"), Fate("EROFS", lasting=True), Fate("SIGTERM")),
        reference,
        finish,
    )
    shutil.rmtree(case)
