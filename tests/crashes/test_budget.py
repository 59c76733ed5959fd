"""A run on a budget that is cut off anywhere: it is charged once for what it spent, and it fits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dpfedadamw.budget import charges, reservations
from dpfedadamw.budget.reservations import Condition, read_ledger
from dpfedadamw.experiment import prepare
from dpfedadamw.spec.reading import load
from tests.crashes import cases
from tests.crashes.apart import apart
from tests.crashes.branching import Fate, run
from tests.crashes.matrix import KILL, every, survive

BUDGET = "budget.db"
DELTA = 1e-5
# A run has two rounds. One that is cut off repeats one; two runs have four, for which there is no
# room, so whatever a start that was cut off holds must be given back to the next.
ROUNDS_THAT_FIT = 3


@pytest.fixture
def epsilon(kind: str, tmp_path: Path) -> float:
    """A budget's ε, for three rounds and not for four; worked out beside the process that forks."""
    plan = prepare(load(cases.write_spec(kind, tmp_path)), torch.device("cpu")).plan
    fits, exceeds = (
        charges.epsilon_of([charges.reserved(replace(plan, rounds=rounds))], DELTA)
        for rounds in (ROUNDS_THAT_FIT, ROUNDS_THAT_FIT + 1)
    )
    assert 1.01 * fits < exceeds
    return 1.001 * fits


def wrongly_charged(case: Path) -> list[str]:
    """What is wrong with a budget on which one run was finished."""
    (standing,) = reservations.standings(case / BUDGET)
    entries = read_ledger(cases.only_run(case) / "ledger.jsonl")
    held = {one.identifier: (one, condition) for one, condition in standing.reservations}
    own, condition = held.pop(entries[0]["budget"]["reservation"])
    wrong = []
    if condition is not Condition.settled or own.cost != charges.charged(entries):
        wrong.append(f"its run is {condition}, charged {own.cost}")
    if entries[-1]["budget"]["charged"] != standing.spent:
        wrong.append(f"its claim says {entries[-1]['budget']}, the budget {standing.spent}")
    wrong += [
        f"a start that came to nothing is {condition}, charged {one.cost}"
        for one, condition in held.values()
        if condition is not Condition.settled or one.cost
    ]
    if standing.epsilon > standing.account.epsilon:
        wrong.append(f"{standing.epsilon} of {standing.account.epsilon} is spent")
    return wrong


@pytest.mark.crashes
@pytest.mark.parametrize("kind", ["release-record", "release-client"])
@apart
def test_a_run_that_is_cut_off_anywhere_costs_its_budget_what_it_spent(tmp_path, kind, epsilon):
    spec = cases.write_spec(kind, tmp_path)
    with spec.open("a", encoding="utf-8") as file:
        file.write(f"budget: {{file: {BUDGET}, epsilon: {epsilon}, delta: {DELTA}}}\n")
    whole = tmp_path / "whole"
    assert run(cases.first(spec, whole)).code == 0
    assert wrongly_charged(whole) == []
    reference = cases.Whole(spec, cases.permissions(cases.only_run(whole)), None, 0.0)
    shutil.rmtree(whole)

    def finish(case: Path) -> list[str]:
        # The budget knows a run by its place, at which the one that was not cut off lies now.
        shutil.rmtree(first.case, ignore_errors=True)
        return cases.finish(case, reference) or wrongly_charged(case)

    first = cases.first(spec, tmp_path / "case")
    fates = every(KILL, Fate("ENOSPC"), Fate("EIO", lasting=True), Fate("SIGTERM"))
    survive(first, tmp_path / "results", fates, reference, finish)
