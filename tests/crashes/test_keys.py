"""Keys that are made, replaced or revoked, and whatever cuts that off: what is left still signs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes import cases
from tests.crashes.apart import apart
from tests.crashes.branching import Fate, Process, run
from tests.crashes.cases import whole
from tests.crashes.matrix import KILL, every, survive

COMMANDS = {
    "rotate": ("keys", "rotate", "--role", "auditor"),
    "revoke": ("keys", "revoke", "--role", "auditor", "--reason", "superseded", "--yes"),
}


@pytest.mark.crashes
@pytest.mark.parametrize("command", COMMANDS)
@apart
def test_a_key_folder_is_of_use_whatever_cut_off_a_change_of_it(tmp_path, command):
    reference = whole("release-record")
    if command == "rotate":
        # What leads from the key before to the one that signs now.
        reference = reference.with_files({"auditor.rotations.json": 0o644})
    case = tmp_path / "case"
    assert run(cases.first(reference.spec, case)).code == 0

    def finish(case: Path) -> list[str]:
        folder = str(cases.only_run(case))
        again = run(Process(COMMANDS[command], case))
        done = command == "revoke" and "is revoked already" in again.told
        wrong = [] if again.code == 0 or done else [f"again: {again}"]
        steps = [("keys", "show"), ("sign", folder), ("verify", folder)]
        if command == "revoke":
            steps.insert(0, ("keys", "new", "--role", "auditor"))
        for step in steps:
            ended = run(Process(step, case))
            if ended.code != 0:
                wrong.append(f"{' '.join(step)}: {ended}")
        return wrong or cases.faults(case, reference)

    survive(
        Process(COMMANDS[command], case),
        tmp_path / "results",
        every(KILL, Fate("ENOSPC"), Fate("EIO"), Fate("EROFS", lasting=True), Fate("SIGTERM")),
        reference,
        finish,
    )
