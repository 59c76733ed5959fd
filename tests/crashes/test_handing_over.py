"""What copies a finished run or takes its evidence away, and is cut off itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.crashes import cases
from tests.crashes.apart import apart
from tests.crashes.branching import Fate, Process, run
from tests.crashes.cases import whole
from tests.crashes.matrix import KILL, every, survive
from tests.crashes.test_finished_runs import PUBLIC_REPORT

FATES = every(KILL, Fate("ENOSPC"), Fate("EIO"), Fate("EROFS", lasting=True), Fate("SIGTERM"))
COPY = "copy"


def finished(case: Path) -> cases.Whole:
    """Let a run end in a case, with its public report; returns what it is compared with."""
    reference = whole("release-record")
    assert run(cases.first(reference.spec, case)).code == 0
    folder = cases.only_run(case)
    assert run(Process(("report", str(folder), "--audience", "public"), case)).code == 0
    return reference.with_files(dict.fromkeys(PUBLIC_REPORT, 0o644))


def erasing(case: Path) -> Process:
    return Process(("erase", str(cases.only_run(case)), "--yes"), case)


def erased(reference: cases.Whole) -> cases.Whole:
    """What a run is compared with whose evidence is gone."""
    left = {
        name: mode for name, mode in reference.files.items() if name.split("/")[0] != "evidence"
    }
    return cases.Whole(reference.spec, {**left, "erasure.json": 0o644}, None, 0.0)


@pytest.mark.crashes
@apart
def test_an_erasure_that_is_cut_off_is_finished_by_doing_it_again(tmp_path):
    case = tmp_path / "case"
    reference = erased(finished(case))

    def finish(case: Path) -> list[str]:
        ended = run(erasing(case))
        return [f"{ended}"] if ended.code != 0 else cases.faults(case, reference)

    survive(erasing(case), tmp_path / "results", FATES, reference, finish)
    assert cases.faults(case, reference) == []


@pytest.mark.crashes
@pytest.mark.parametrize("command", [("report",), ("report", "--audience", "public"), ("sign",)])
@apart
def test_without_evidence_what_is_cut_off_is_finished_by_doing_it_again(tmp_path, command):
    case = tmp_path / "case"
    reference = erased(finished(case))
    assert run(erasing(case)).code == 0
    name, *options = command

    def again(case: Path) -> Process:
        return Process((name, str(cases.only_run(case)), *options), case)

    def finish(case: Path) -> list[str]:
        ended = run(again(case))
        return [f"{ended}"] if ended.code != 0 else cases.faults(case, reference)

    survive(again(case), tmp_path / "results", FATES, reference, finish)


@pytest.mark.crashes
@pytest.mark.parametrize("audience", ["public", "archive", "auditor"])
@apart
def test_a_copy_is_there_whole_or_not_at_all(tmp_path, audience):
    case = tmp_path / "case"
    reference = finished(case)

    def copying(case: Path) -> Process:
        target = case / "runs" / COPY
        run_dir = next(one for one in cases.appeared(case) if one.name != COPY)
        return Process(("bundle", str(run_dir), "--audience", audience, "-o", str(target)), case)

    def finish(case: Path) -> list[str]:
        target = case / "runs" / COPY
        # Where the copy is there, what was cut off is the hold on the run.
        again = copying(case)
        if target.exists():
            again = Process(("run", "--resume", again.arguments[1]), case)
        ended = run(again)
        if ended.code != 0:
            return [f"{ended}"]
        held = run(Process(("verify", str(target)), case))
        wrong = [] if held.code == 0 else [f"the copy: {held}"]
        private = any((target / name).exists() for name in ("evidence", "ledger.jsonl"))
        if audience == "public" and private:
            wrong.append("a public copy holds what is private")
        shutil.rmtree(target)
        return wrong + cases.faults(case, reference)

    survive(copying(case), tmp_path / "results", FATES, reference, finish)
