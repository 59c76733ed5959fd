"""Each number of a run reaches its place in the report, and no other.

One value of a run's files is changed. What changes in the report is compared as a whole: a place
that follows another value, or one that stays as it was, tells a reader something else than the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reports.content import outcomes, utility
from reports.content.accounting import Accounting
from reports.content.build import build
from reports.content.outcomes import Utility
from tests.reports.data import data_of

MakeRun = Any  # the builder that conftest gives
Rows = list[dict[str, Any]]

# Digests of the files, and texts that say the same numbers again.
_LEFT_OUT = ("identity.hashes", "figures")


def places(value: Any, where: str = "") -> dict[str, Any]:
    """Every value of the report's data by its place."""
    if isinstance(value, dict):
        inner = {f"{where}.{key}".lstrip("."): each for key, each in value.items()}
    elif isinstance(value, list | tuple):
        inner = {f"{where}[{number}]": each for number, each in enumerate(value)}
    else:
        return {where: value}
    return {place: each for name, one in inner.items() for place, each in places(one, name).items()}


def changed(
    make_run: MakeRun, name: str, change: Callable[[Rows], object], audience: str = "internal"
) -> dict[str, Any]:
    """What the report says otherwise where the lines of a file are changed, by place."""
    run: Path = make_run(f"run-{len(name)}")
    before = places(data_of(run, audience))
    rows = [json.loads(line) for line in (run / name).read_text("utf-8").splitlines()]
    change(rows)
    (run / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    audit["inputs"].pop(name)
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    after = places(data_of(run, audience))
    return {
        place: after.get(place)
        for place in before.keys() | after.keys()
        if before.get(place) != after.get(place) and not place.startswith(_LEFT_OUT)
    }


@pytest.mark.parametrize(
    ("at", "also"),
    [(0, ["utility.untrained_accuracy"]), (10, []), (20, ["utility.final_accuracy"])],
)
def test_a_rounds_accuracy_is_that_rounds_and_the_last_is_the_models(
    make_run: MakeRun, at: int, also: list[str]
) -> None:
    """Larger than all others: a page that shows the best round would show it."""
    found = changed(make_run, "metrics.jsonl", lambda rows: rows[at].update(test_accuracy=0.99))
    assert found == dict.fromkeys([f"utility.rounds[{at}].test_accuracy", *also], 0.99)


def test_without_a_measurement_before_training_none_is_told_as_that(make_run: MakeRun) -> None:
    found = changed(make_run, "metrics.jsonl", lambda rows: rows.pop(0))
    assert found["utility.untrained_accuracy"] is None
    assert "utility.final_accuracy" not in found


def test_traffic_and_rounds_are_those_of_training(make_run: MakeRun) -> None:
    costs = data_of(make_run())["communication"]
    assert (costs["rounds"], costs["bytes_up"]) == (20, 20 * 5 * 9656)
    found = changed(make_run, "metrics.jsonl", lambda rows: rows[7].update(bytes_up=1))
    assert found == {"communication.bytes_up": 19 * 5 * 9656 + 1}


def test_a_run_that_ended_early_tells_the_gradients_of_the_rounds_that_it_ran(
    make_run: MakeRun,
) -> None:
    def stopped(rows: Rows) -> None:
        rows[-1]["stopped"] = {"rounds": 7, "max_epsilon": 4.0}

    found = changed(make_run, "ledger.jsonl", stopped)
    assert found["communication.expected_gradients"] == 7 * 5 * 5 * 32


def test_a_model_that_always_gives_one_answer_is_said_to_be_no_better_than_that() -> None:
    assert outcomes.against_majority(0.8, 0.8, None).startswith("By accuracy, the model is no bet")
    assert outcomes.against_majority(0.8001, 0.8, None) == ""


def test_the_most_frequent_error_is_told_with_the_class_first_and_then_the_answer(
    make_run: MakeRun,
) -> None:
    run = make_run()
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    last = {**json.loads(lines[-1]), "test_confusion": [[50, 2], [7, 41]]}
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n", "utf-8")
    text = utility._describe_confusion(build(run))
    assert text is not None
    assert "most frequent error is class 1 answered as 0, 7 times" in text.alternative_text


def test_an_accuracy_is_drawn_at_the_loss_of_its_own_round(make_run: MakeRun) -> None:
    report = build(make_run())
    spent = {row.round: row.third_party for row in report[Accounting].over_rounds}
    reached = {row.round: row.test_accuracy for row in report[Utility].rounds}
    data = utility._against_loss_data(report)
    place = data.head.index("epsilon_third_party")
    assert len(data.rows) > 2
    for row in data.rows:
        assert (row[place], row[-1]) == (spent[row[0]], reached[row[0]])
