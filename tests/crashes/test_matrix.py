"""Whatever befalls a run at any of its file operations: it is finished, and nothing is spent twice.

The first tests look at chosen moments and belong to every test run. The others are the whole
matrix; they take an hour, and `tox -e crashes` runs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crashes import cases
from tests.crashes.apart import apart
from tests.crashes.branching import Fate, branches, run
from tests.crashes.cases import KINDS, whole
from tests.crashes.matrix import KILL, SIGNALS, every, how_it_ended, survive
from tests.crashes.operations import ERRORS, Operation

ERROR_FATES = tuple(Fate(name, lasting) for name in ERRORS for lasting in (False, True))
SIGNAL_FATES = tuple(map(Fate, SIGNALS))


# The function that is called, and how the file's name begins.
MOMENTS = {
    "in a round, once its noise is drawn": ("open", ".round-00001"),
    "while the checkpoint is deleted": ("rmdir", "checkpoint"),
    "before the last signature is in its place": ("replace", ".attestation.json"),
}


def befalls(operation: Operation, call: str, start: str) -> bool:
    return operation.call == call and Path(operation.path).name.startswith(start)


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(one, marks=pytest.mark.crashes) for one in (1, 2))]
)
@apart
def test_a_run_that_is_killed_at_any_stage_is_finished_by_resume(tmp_path, part):
    reference, moments = whole("reproducible-record"), list(MOMENTS.values())[part::3]
    count = survive(
        cases.first(reference.spec, tmp_path / "case"),
        tmp_path / "results",
        lambda operation: [KILL for one in moments if befalls(operation, *one)],
        reference,
    )
    assert count == len(moments)


@apart
def test_whatever_fails_or_stops_a_run_is_one_line_with_the_command_that_goes_on(tmp_path):
    fates = itertools.cycle((*ERROR_FATES, *SIGNAL_FATES))
    process = cases.first(whole("reproducible-record").spec, tmp_path / "case")
    _, operations, found = branches(
        process,
        tmp_path / "results",
        lambda operation: [next(fates)] if operation.number % 9 == 0 else [],
    )
    wrong = [
        f"{branch.operation}, {branch.fate}: {fault}"
        for branch in found
        for fault in how_it_ended(branch, process)
    ]
    assert not wrong, "\n\n".join(wrong)
    assert len(found) == len(operations) // 9 > 30


@pytest.mark.crashes
@pytest.mark.parametrize("kind", KINDS)
@apart
def test_whatever_befalls_a_run_at_any_operation(tmp_path, kind):
    reference = whole(kind)
    survive(
        cases.first(reference.spec, tmp_path / "case"),
        tmp_path / "results",
        every(KILL, *ERROR_FATES, *SIGNAL_FATES),
        reference,
    )


# Where the run that is taken up again was killed: what is left to do differs.
CUT_OFF = {
    # Of the first client that takes part in round 1, or of the round, where clients are protected.
    "in a round": ("open", ".upload-00001"),
    "between a round and its metrics": ("open", "metrics.jsonl"),
    "before the claim": ("open", ".probe.npz"),
    "after the claim": ("unlink", "spec.yaml"),
    "in the audit": ("open", ".findings.json"),
}


@pytest.mark.crashes
@pytest.mark.parametrize("where", CUT_OFF)
@pytest.mark.parametrize("kind", KINDS)
@apart
def test_a_resume_that_is_cut_off_itself(tmp_path, kind, where):
    """Up to where it does what a first run does: the first noise, or the trainer's signature."""
    reference = whole(kind)
    call, start = CUT_OFF[where]
    cut = iter([[KILL]])
    _, _, (branch,) = branches(
        cases.first(reference.spec, tmp_path / "first"),
        tmp_path / "cut-off",
        lambda operation: next(cut, []) if befalls(operation, call, start) else [],
    )
    ends = ("close", "paid"), ("replace", ".training.attestation"), ("replace", ".audit.json")
    all_fates = every(KILL, *ERROR_FATES, *SIGNAL_FATES)
    goes_on = True

    def fates(operation: Operation) -> Sequence[Fate]:
        nonlocal goes_on
        goes_on = goes_on and not any(befalls(operation, *one) for one in ends)
        return all_fates(operation) if goes_on else []

    survive(
        cases.resumed(branch.case),
        tmp_path / "results",
        fates,
        reference,
        lambda case: cases.finish(case, reference, key=3),
    )


@pytest.mark.crashes
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", KINDS)
@apart
def test_up_to_four_kills_and_signals_at_random_times(tmp_path, kind, seed):
    reference = whole(kind)
    faults, kills = cases.harass(reference, tmp_path / "case", seed)
    assert not faults, f"after {kills}: {faults}"


@pytest.mark.crashes
@pytest.mark.parametrize("umask", [0o000, 0o077])
@apart
def test_permissions_are_those_of_any_umask(tmp_path, umask):
    reference = whole("release-record")
    case = tmp_path / "case"
    assert run(cases.first(reference.spec, case, umask=umask)).code == 0
    assert cases.faults(case, reference) == []
    held = cases.permissions(cases.only_run(case))
    assert held["."] == held["evidence"] == 0o700
    assert {mode for name, mode in held.items() if name.startswith("evidence/")} == {0o600}
