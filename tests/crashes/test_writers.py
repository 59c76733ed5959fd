"""Several processes at one run, or in one folder of runs."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from dpfedadamw.storage.lock import is_held
from tests.crashes import cases
from tests.crashes.apart import apart
from tests.crashes.branching import Process, begin, branches, end, run
from tests.crashes.cases import whole
from tests.crashes.matrix import KILL

TOLD = re.compile(
    r"error: .+: another process is writing to this run \(process (\d+) on .+, since .+ UTC\); "
    r"wait until it has ended; .+\n"
)


def cut_off(folder: Path):
    """A run that was killed in its second round."""
    reference = whole("reproducible-record")
    cut = iter([[KILL]])
    _, _, (branch,) = branches(
        cases.first(reference.spec, folder / "first"),
        folder / "cut-off",
        lambda operation: next(cut, []) if ".upload-00001-" in operation.path else [],
    )
    return reference, branch.case


def aside(process: Process, number: int) -> Process:
    """The same command, which prints to a place of its own."""
    return Process(process.arguments, process.case, process.key, prints=f".{number}")


@pytest.mark.crashes
@apart
def test_of_ten_resumes_at_once_one_runs_and_nine_are_told(tmp_path):
    reference, case = cut_off(tmp_path)
    process = cases.resumed(case)
    started = [(begin(one), one) for one in (aside(process, number) for number in range(10))]
    ended = [(number, end(number, one)) for number, one in started]
    (first,) = [number for number, how in ended if how.code == 0]
    for number, how in ended:
        if number != first:
            assert how.code == 2, how
            told = TOLD.fullmatch(how.told)
            assert told, how.told
            assert int(told[1]) == first
    assert cases.faults(case, reference) == []


@pytest.mark.crashes
@apart
def test_two_first_runs_in_one_folder_do_not_disturb_each_other(tmp_path):
    reference = whole("reproducible-record")
    process = cases.first(reference.spec, tmp_path / "case")
    both = [aside(process, 1), aside(process, 2)]
    started = [(begin(one), one) for one in both]
    for number, one in started:
        how = end(number, one)
        assert how.code == 0, how
    found = cases.appeared(tmp_path / "case")
    assert len(found) == 2
    for folder in found:
        assert run(Process(("verify", str(folder)), tmp_path / "case")).code == 0
        assert cases.permissions(folder) == reference.files


@pytest.mark.crashes
@apart
def test_a_resume_while_the_run_is_audited_anew_is_told_to_wait(tmp_path):
    reference = whole("reproducible-record")
    case = tmp_path / "case"
    assert run(cases.first(reference.spec, case)).code == 0
    folder = cases.only_run(case)
    audit = Process(("audit", str(folder), "--write"), case, prints=".audit")
    number = begin(audit)
    while not is_held(folder):
        time.sleep(0.01)
    how = run(cases.resumed(case))
    assert how.code == 2
    assert TOLD.fullmatch(how.told)[1] == str(number)
    assert end(number, audit).code == 0
    assert run(cases.resumed(case)).code == 0
    assert cases.faults(case, reference) == []
