"""A recording's charges and files: one client, step by step, and evidence of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audit.checks import checks_of
from audit.checks.loop import ledger as loop_ledger
from audit.checks.loop.ledger import _evidence, _rounds
from audit.errors import UntrustedFileError
from audit.reading.ledger_lines import Spend
from audit.reading.units import LOOP

ONE = "a loop has one client"
STEP = "a loop has one client, and is charged step by step"
OTHER = "its steps are not those that were charged"
MIXED = "its steps are charged differently"


CHARGE = Spend(
    line=0, round=0, client=0, attempt=1, records=8, sampling="poisson", sampling_rate=0.5,
    expected_batch_size=4.0, clipping_norm=0.5, noise_multiplier=1.0, steps=1, queries_per_step=1,
)  # fmt: skip


def spend(index: int, line: int, **changes: Any) -> Spend:
    return replace(CHARGE, round=index, line=line, **changes)


def ended(index: int, line: int, count: int, **changes: Any) -> Any:
    made = {"clients": (0,), "queries": (count,), "steps": (count,)}
    return SimpleNamespace(**{"round": index, "line": line, **made, **changes})


SPENDS = (spend(0, 2), spend(0, 3), spend(1, 5))
ROUNDS = (ended(0, 4, 2), ended(1, 6, 1))
FINISHED = SimpleNamespace(rounds=ROUNDS)


def faults(
    monkeypatch: pytest.MonkeyPatch, spends: Sequence[Any] = SPENDS, rounds: Sequence[Any] = ROUNDS,
    resumes: tuple[Any, ...] = (), clients: int = 1,
) -> list[str]:  # fmt: skip
    monkeypatch.setattr(
        loop_ledger, "sequence_faults", lambda _, reasons: reasons.append("in order")
    )
    ledger: Any = SimpleNamespace(spends=spends, rounds=rounds, resumes=resumes)
    header: Any = SimpleNamespace(clients=clients)
    reasons: list[str] = []
    _rounds(ledger, header, reasons)
    assert reasons[0] == "in order"
    return reasons[1:]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, []),
        ({"spends": [spend(0, 5), *SPENDS[1:]]}, ["5: charged after its file was written"]),
        ({"spends": [*SPENDS, spend(2, 7)]}, ["7: a step was charged that no evidence covers"]),
        ({"spends": [spend(0, 2, client=1), *SPENDS[1:]]}, [f"2: {STEP}", f"4: {MIXED}"]),
        ({"spends": [*SPENDS[:2], spend(1, 5, client=1)]}, [f"5: {STEP}"]),
        ({"spends": [*SPENDS[:2], spend(1, 5, steps=2)]}, [f"5: {STEP}"]),
        ({"spends": [*SPENDS[:2], spend(1, 5, steps=0)]}, [f"5: {STEP}"]),
        ({"spends": [*SPENDS[:2], spend(1, 5, client=1, steps=2)]}, [f"5: {STEP}"]),
        ({"spends": SPENDS[1:]}, [f"4: {OTHER}"]),
        ({"spends": []}, [f"4: {OTHER}", f"6: {OTHER}"]),
        ({"clients": 2}, [f"4: {ONE}", f"6: {ONE}"]),
        ({"rounds": [ended(0, 4, 2, clients=(1,)), ROUNDS[1]]}, [f"4: {ONE}"]),
        ({"rounds": [ended(0, 4, 2, clients=(0, 1)), ROUNDS[1]]}, [f"4: {ONE}"]),
        ({"rounds": [ended(0, 4, 2, clients=()), ROUNDS[1]]}, [f"4: {ONE}"]),
        ({"rounds": [ended(0, 4, 3), ROUNDS[1]]}, [f"4: {OTHER}"]),
        ({"rounds": [ended(0, 4, 2, steps=(3,)), ROUNDS[1]]}, [f"4: {OTHER}"]),
        ({"rounds": [ended(0, 4, 2, queries=(3,)), ROUNDS[1]]}, [f"4: {OTHER}"]),
        (
            {"resumes": (SimpleNamespace(line=7), SimpleNamespace(line=9))},
            ["7: a recording cannot be continued", "9: a recording cannot be continued"],
        ),
    ],
)
def test_a_step_is_charged_before_its_file_ends(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: list[str]
) -> None:
    assert faults(monkeypatch, **changes) == [f"ledger.jsonl:{one}" for one in said]


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": 50.0},
        {"sampling_rate": 0.002},
        {"clipping_norm": 0.25},
        {"expected_batch_size": 2.0},
        {"rate_stated": True},
        {"sampling": "fixed-size"},
        {"queries_per_step": 2},
        {"records": 9},
        {"attempt": 2},
    ],
)
def test_all_steps_of_a_file_have_one_charge(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """A file is judged by its last charge; ε of a cheaper one before it would be too small."""
    for place in (0, 1):
        spends = list(SPENDS)
        spends[place] = replace(spends[place], **changes)
        assert faults(monkeypatch, spends) == [f"ledger.jsonl:4: {MIXED}"]
    # Another file may have another charge.
    assert faults(monkeypatch, [*SPENDS[:2], spend(1, 5, **changes)]) == []


def evidence(
    steps: dict[int, int | None], ledger: Any = FINISHED, **changes: Any
) -> tuple[list[str], list[str]]:  # fmt: skip
    """What is said of files of so many steps; None where one cannot be read."""

    def read(index: int, unit: Any) -> Any:
        assert unit.name == "loop"
        found = steps[index]
        if found is None:
            raise UntrustedFileError(f"file {index}", "is gone")
        return SimpleNamespace(batch_size=np.zeros((1, found), np.int64))

    layout = SimpleNamespace(parameters=9, round_files=2, unit="loop")
    made = {"ledger": ledger, "layout": lambda: layout, "evidence_of_round": read,
            "loop_end": lambda: None}  # fmt: skip
    bundle: Any = SimpleNamespace(**{**made, **changes})
    header: Any = SimpleNamespace(parameters=9, rounds=2, unit=SimpleNamespace(name="loop"))
    reasons: list[str] = []
    unreadable: list[str] = []
    _evidence(bundle, header, reasons, unreadable)
    return reasons, unreadable


def gone(name: str) -> Any:
    def read() -> Any:
        raise UntrustedFileError(name, "is gone")

    return read


FEWER = "evidence/round-0000{}.npz: its steps are not as many as the ledger's"


def test_each_file_has_as_many_steps_as_the_ledger_says() -> None:
    assert evidence({0: 2, 1: 1}) == ([], [])
    assert evidence({0: 1, 1: 1}) == ([FEWER.format(0)], [])
    assert evidence({0: 2, 1: 2}) == ([FEWER.format(1)], [])
    # One that cannot be read hides no other.
    assert evidence({0: None, 1: 2}) == ([FEWER.format(1)], ["file 0: is gone"])
    assert evidence({0: 2, 1: 1}, loop_end=gone("the end")) == ([], ["the end: is gone"])
    assert evidence({0: 1, 1: 2}, layout=gone("layout")) == ([], ["layout: is gone"])
    assert evidence({0: 1}, ledger=None, layout=gone("layout")) == ([], [])


def test_the_check_is_asked_of_loops_by_its_name() -> None:
    (check,) = (one for one in checks_of(LOOP) if one.name == "integrity")
    assert check.rule.__module__ == "audit.checks.loop.ledger"
