"""The matrix: each operation of a command, what befalls it there, and what must come of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.crashes import cases
from tests.crashes.branching import Branch, Fate, Process, branches
from tests.crashes.cases import Whole
from tests.crashes.watching import ERRORS, Operation

KILL = Fate("SIGKILL")
SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
# Names of files that are not whole yet, made of the file's own: .NAME-XXXXXXXX, .NAME.X….tmp.
_TEMPORARY = re.compile(r"\.(.+)(?:-[0-9a-f]{8}|\.[0-9a-f]{12}\.tmp)")
# Where it is stated, only these operations, to repeat what failed.
_CHOSEN = "CRASHES_AT"


def every(*fates: Fate, part: int = 0, parts: int = 1) -> Callable[[Operation], Sequence[Fate]]:
    """All of the fates before each operation, or before each of a part of them."""
    chosen = {int(number) for number in os.environ.get(_CHOSEN, "").split(",") if number}

    def which(operation: Operation) -> Sequence[Fate]:
        if chosen:
            return fates if operation.number in chosen else ()
        return fates if operation.number % parts == part else ()

    return which


def survive(
    process: Process,
    results: Path,
    fates: Callable[[Operation], Sequence[Fate]],
    reference: Whole,
    finish: Callable[[Path], list[str]] | None = None,
) -> int:
    """Run a command, end copies of it, and finish what they left; fails with all that went wrong.

    Args:
        process: The command.
        results: A new folder.
        fates: What befalls which operation.
        reference: What a finished run is compared with.
        finish: Finishes one case and says what does not hold then; `cases.finish` by default.

    Returns:
        How many copies ended early.
    """
    finish = finish or (lambda case: cases.finish(case, reference))
    ended, _, found = branches(process, results, fates)
    wrong = [] if ended.code == 0 else [f"the command itself: {ended}"]
    seen: list[dict[str, tuple[int, bytes]]] = []
    for branch in found:
        faults = how_it_ended(branch, process)
        # A process that was killed is always finished; of the others one for each state of the
        # disk, which is all that the one that finishes them can see.
        left = cases.state(branch.case)
        if branch.fate == KILL or left not in seen:
            seen.append(left)
            faults += finish(branch.case)
        shutil.rmtree(branch.case)
        wrong += [f"{branch.operation}, {branch.fate}: {fault}" for fault in faults]
    hint = f"repeat one with {_CHOSEN}=NUMBER in the environment"
    assert not wrong, "\n\n".join((f"{len(wrong)} of {len(found)}; {hint}", *wrong))
    return len(found)


def how_it_ended(branch: Branch, process: Process) -> list[str]:
    """What is wrong with how a copy ended: its exit code, and what it told."""
    code, lines = branch.ended.code, branch.ended.told.splitlines()
    if branch.fate == KILL:
        return [] if code == -9 else [f"was to be killed: {branch.ended}"]
    if code == 0 and branch.fate.name in ERRORS and _may_fail(branch.operation):
        return []
    if code != SIGNALS.get(branch.fate.name, 2) or len(lines) != 1:
        return [f"its exit code and one line are due: {branch.ended}"]
    wrong = []
    if branch.fate.name in ERRORS and not any(
        name in lines[0] for name in _names(branch.operation, process.case)
    ):
        wrong.append(f"the file is not named: {lines[0]}")
    if process.arguments[0] == "run":
        for run in cases.appeared(branch.case):
            hint = f"dpfedadamw run --resume {process.case / 'runs' / run.name}"
            if hint not in lines[0]:
                wrong.append(f"{hint} is not told: {lines[0]}")
    return wrong


def _may_fail(operation: Operation) -> bool:
    """Whether a run goes on without an operation: the link to the newest run is a convenience."""
    return any("latest" in Path(path).name for path in _paths(operation))


def _names(operation: Operation, case: Path) -> list[str]:
    """What a message may call the file of an operation."""
    names = []
    for path in _paths(operation):
        found = _TEMPORARY.fullmatch(path.name)
        names.append(found[1] if found else path.name)
        # Nobody knows the parts of a lock, of a folder that has not appeared, or of a key.
        if path.name == "lock":
            names.append(path.parent.parent.name)
        if any(part.endswith(".starting") for part in path.parts):
            names.append(f"--out {case / 'runs'}")
        if path.is_relative_to(case / "keys"):
            names.append(str(case / "keys"))
    return names


def _paths(operation: Operation) -> list[Path]:
    return [Path(path) for path in (operation.path, operation.target) if path is not None]
