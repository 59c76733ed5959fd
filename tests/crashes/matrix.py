"""The matrix: each operation of a command, what befalls it there, and what must come of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from dpfedadamw.storage.disk import UNFINISHED
from tests.crashes import cases
from tests.crashes.branching import Branch, Fate, Process, branches
from tests.crashes.cases import Whole
from tests.crashes.operations import ERRORS, Operation

KILL = Fate("SIGKILL")
SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
# Names of files that are not whole yet, made of the file's own: .NAME-XXXXXXXX, .NAME.X….tmp.
_TEMPORARY = re.compile(r"\.(.+)(?:-[0-9a-f]{8}|\.[0-9a-f]{12}\.tmp)")
# Where it is stated, only these operations, to repeat what failed.
_CHOSEN = "CRASHES_AT"


def every(*fates: Fate) -> Callable[[Operation], Sequence[Fate]]:
    """All of the fates before each operation."""
    chosen = {int(number) for number in os.environ.get(_CHOSEN, "").split(",") if number}

    def which(operation: Operation) -> Sequence[Fate]:
        return fates if not chosen or operation.number in chosen else ()

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
    whole, _, found = branches(process, results, fates)
    wrong = [] if whole.code == 0 else [f"the command itself: {whole}"]
    by_case: dict[Path, list[Branch]] = {}
    for branch in found:
        by_case.setdefault(branch.case, []).append(branch)
        wrong += [f"{_of(branch)}: {fault}" for fault in how_it_ended(branch, process)]
    for case, alike in by_case.items():
        left = f"{_of(alike[-1])}, and {len(alike) - 1} that left the same"
        wrong += [f"{left}: {fault}" for fault in finish(case)]
        shutil.rmtree(case)
    told = f"{len(found)} processes ended early and left {len(by_case)} states of the disk"
    print(f"{told}, {len(wrong)} faults")
    hint = f"repeat one with {_CHOSEN}=NUMBER in the environment"
    assert not wrong, "\n\n".join((f"{told}; {hint}", *wrong))
    return len(found)


def _of(branch: Branch) -> str:
    return f"{branch.operation}, {branch.fate}"


def how_it_ended(branch: Branch, process: Process) -> list[str]:
    """What is wrong with how a copy ended: its exit code, and what it told."""
    code, lines = branch.ended.code, cases.told_of_an_end(branch.ended)
    if branch.fate == KILL:
        return [] if code == -9 else [f"was to be killed: {branch.ended}"]
    if code == 0 and branch.fate.name in ERRORS and _may_fail(branch.operation, process):
        return []
    if code != SIGNALS.get(branch.fate.name, 2) or len(lines) != 1:
        return [f"its exit code and one line are due: {branch.ended}"]
    wrong = []
    named = any(name in lines[0] for name in _names(branch.operation, process.case))
    # What a run goes on without is not told; what fails for good after it is.
    if branch.fate.name in ERRORS and not named and not _may_fail(branch.operation, process):
        wrong.append(f"the file is not named: {lines[0]}")
    if not branch.fate.lasting and not _of_lock(branch.operation):
        hidden = [path for path in (branch.case / "runs").rglob("*") if path.name.startswith(".")]
        wrong += [f"is left: {path.relative_to(branch.case)}" for path in hidden]
    if process.arguments[0] == "run":
        for run in cases.appeared(branch.case):
            hint = f"dpfedadamw run --resume {process.case / 'runs' / run.name}"
            if hint not in lines[0]:
                wrong.append(f"{hint} is not told: {lines[0]}")
    return wrong


def _may_fail(operation: Operation, process: Process) -> bool:
    """Whether a run goes on without an operation.

    The link to the newest run is a convenience; a key's file gets its name in another way where
    there are no hard links, and is used where its temporary name cannot be removed; the place of a
    lock and the keys' folder may be there already, and what is given free need not be closed. A
    copy is made where the states that were verified cannot be remembered.
    """
    done_already = ("mkdir", UNFINISHED), ("mkdir", "keys"), ("close", "lock")
    if (operation.call, Path(operation.path).name) in done_already:
        return True
    of_key = operation.call in ("link", "unlink") and Path(operation.path).suffix == ".tmp"
    folder = process.case / "keys"
    remembers = process.arguments[0] == "bundle" and Path(operation.path).is_relative_to(folder)
    return of_key or remembers or any("latest" in path.name for path in _paths(operation))


def _of_lock(operation: Operation) -> bool:
    """Whether it takes or gives up a lock, whose place may be there before, and stay after."""
    return Path(operation.path).name in (UNFINISHED, "lock")


def _names(operation: Operation, case: Path) -> list[str]:
    """What a message may call the file of an operation."""
    names = []
    for path in _paths(operation):
        found = _TEMPORARY.fullmatch(path.name)
        names.append(found[1] if found else path.name)
        # Nobody knows the parts of a lock, of a folder that has not appeared, or of a key.
        if _of_lock(operation):
            names.append(path.parent.parent.name if path.name == "lock" else path.parent.name)
        # A copy is called by its own name while it is made under another.
        names += [
            part.removeprefix(".").removesuffix(".partial")
            for part in path.parts
            if part.endswith(".partial")
        ]
        if any(part.endswith(".starting") for part in path.parts):
            names.append(f"--out {case / 'runs'}")
        if path.is_relative_to(case / "keys"):
            names.append(str(case / "keys"))
    return names


def _paths(operation: Operation) -> list[Path]:
    return [Path(path) for path in (operation.path, operation.target) if path is not None]
