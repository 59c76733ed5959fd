"""Each number of a run reaches its place in the report, and no other.

One value of a run's files is changed. What changes in the report is compared as a whole: a place
that follows another value, or one that stays as it was, tells a reader something else than the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports import formatting
from reports.content import clients, coverage, mechanism, outcomes, units, utility, wording
from reports.content.accounting import Accounting
from reports.content.assurance import Trust
from reports.content.build import build
from reports.content.clients import Clients
from reports.content.guarantee import Guarantee
from reports.content.outcomes import Utility
from reports.source import load
from tests.reports.content import origins
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


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (0.9, "gives ε = {}, which is less than the claim"),
        (0.9999, "gives ε = {} too and agrees to"),
        (1.02, "gives ε = {}, a relative difference of"),
    ],
)
def test_a_second_librarys_number_is_on_its_own_side_of_the_claim(
    make_run: MakeRun, factor: float, said: str
) -> None:
    """A claim below the library's number is understated; one above it is not."""
    theirs: list[float] = []

    def noted(rows: Rows) -> None:
        theirs.append(factor * rows[-1]["server_worst_case"]["epsilon"]["pld"])
        found = {"version": "0.6.0", "view": "server_worst_case", "epsilon": theirs[0]}
        rows[-1]["dp_accounting"] = found

    found = changed(make_run, "ledger.jsonl", noted)
    sentence = found["accounting.second_library.statement"]
    assert said.format(formatting.epsilon(theirs[0])) in sentence
    if factor != 0.9:
        assert formatting.power(abs(1 - factor) / factor, 1) in sentence


@pytest.mark.parametrize("dearest", [True, False])
def test_conversions_beside_the_headline_are_those_of_the_client_that_spent_most(
    make_run: MakeRun, dearest: bool
) -> None:
    place: list[int] = []

    def converted(rows: Rows) -> None:
        clients = rows[-1]["server"]["clients"]
        pick = max if dearest else min
        place.append(pick(range(len(clients)), key=lambda one: clients[one]["epsilon"]["pld"]))
        clients[place[0]]["epsilon"]["rdp"] = 9.9

    found = changed(make_run, "ledger.jsonl", converted)
    beside = [where for where in found if where.startswith("accounting.conversions")]
    assert set(found) - set(beside) == {f"clients.rows[{place[0]}].epsilon.rdp"}
    assert [found[one] for one in beside] == ([9.9] if dearest else [])


def test_a_reading_against_the_realised_loss_is_for_the_internal_report(make_run: MakeRun) -> None:
    """Against a third party as printed is against the server as composed."""
    run = make_run()
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    (views,) = (one for one in audit["checks"] if one["name"] == "views")
    for form in views["details"]["closed_forms"]:
        form["towards"] = wording.FORM_TOWARDS[form["name"]]
    (run / "audit.json").write_text(json.dumps(audit), "utf-8")
    told = {
        one["name"]: one["reading"] for one in data_of(run, "public")["accounting"]["closed_forms"]
    }
    open_ones = {name for name, reading in told.items() if reading != "in the internal report"}
    assert open_ones == {wording.FORM_NAMES["third_party_noble"]}


def test_a_chance_to_take_part_is_told_where_clients_are_drawn_by_chance(make_run: MakeRun) -> None:
    assert data_of(make_run())["sampling"]["participation"] is None
    found = changed(
        make_run, "ledger.jsonl", lambda rows: rows[0].update(client_sampling="poisson")
    )
    assert found["sampling.participation"] == 0.5


def test_a_rate_that_the_spec_states_is_the_one_of_every_client(make_run: MakeRun) -> None:
    run = make_run()
    assert "= 32 / records" in data_of(run)["sampling"]["statement"]
    found = changed(make_run, "ledger.jsonl", lambda rows: rows[0].update(sampling_rate=0.05))
    assert found["sampling.rate_smallest"] == found["sampling.rate_largest"] == 0.05
    assert "with probability q = 0.05, as the spec states (" in found["sampling.statement"]
    assert "Shares q run" not in found["sampling.statement"]
    texts = [text for place, text in found.items() if place.startswith("outside_budget")]
    assert texts == [wording.SIZES_AT_A_STATED_RATE]


def test_where_a_rate_is_stated_no_size_is_said_to_make_clients_spend_more(
    make_run: MakeRun,
) -> None:
    rated = load(make_run())
    for source, same in (
        (rated, False),
        (replace(rated, header={**rated.header, "sampling_rate": 0.05}), True),
    ):
        figure = clients._describe(build(Path(), source=source))
        assert figure is not None
        assert ("same sampling rate" in figure.caption) is same


def test_the_clients_sizes_have_their_median_and_not_their_mean(make_run: MakeRun) -> None:
    def one_giant(rows: Rows) -> None:
        rows[0]["records"][int(np.argmax(rows[0]["records"]))] += 10_000

    found = changed(make_run, "ledger.jsonl", one_giant)
    assert "clients.records_largest" in found
    assert "clients.records_median" not in found


def test_of_many_clients_those_with_the_largest_losses_are_shown(make_run: MakeRun) -> None:
    report = build(make_run(clients=60))
    (table,) = (block for block in clients._blocks(report) if block["kind"] == "table")
    lead = report[Accounting].accountant or ""
    losses = sorted((row.epsilon.get(lead) or 0.0 for row in report[Clients].rows), reverse=True)
    place = next(at for at, head in enumerate(table["head"]) if head.startswith("ε (PLD"))
    assert [row[place] for row in table["rows"]] == [formatting.epsilon(one) for one in losses[:20]]


def test_an_audit_without_a_check_never_makes_a_report_that_passes(make_run: MakeRun) -> None:
    run = make_run()
    assert data_of(run)["verdict"]["value"] == "PASS"
    audit = json.loads((run / "audit.json").read_text("utf-8"))
    (run / "audit.json").write_text(json.dumps({**audit, "checks": []}), "utf-8")
    assert data_of(run)["verdict"]["value"] == "NOT VERIFIED"


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "NOT VERIFIED"])
def test_a_limit_that_the_audit_did_not_pass_is_called_claimed(
    make_run: MakeRun, verdict: str
) -> None:
    report = build(make_run(verdict=verdict))
    rows = [row for row in report[coverage.Readers].root if row.protected]
    for row in rows:
        shown = json.dumps(coverage._answer(row, report, alike=True), ensure_ascii=False)
        assert ("claimed" in shown) == (verdict != "PASS")
    assert rows


def test_a_round_without_a_test_is_not_the_last_measurement(make_run: MakeRun) -> None:
    found = changed(make_run, "metrics.jsonl", lambda rows: rows.append({"round": 21}))
    assert not any(place.startswith("utility.final") for place in found)


def test_where_no_limit_holds_nobody_is_told_of_a_protection(make_run: MakeRun) -> None:
    run = origins.made("unbounded", load(make_run()))
    readers = build(Path(), source=run)[coverage.Readers].root
    assert not any(one.protected or one.epsilon or one.unless for one in readers)
    assert len({one.why for one in readers[:3]}) == 1


def test_who_took_part_is_not_sampled_where_everybody_does() -> None:
    assert units.sampled("poisson", 1.0, 2.0).event == "gaussian"
    assert units.sampled("poisson", 0.999, 2.0).event == "poisson-sampling"


def test_a_challenge_with_the_trainers_own_key_is_called_that() -> None:
    seen = {"intents": {"for_data": 1, "of_trainer": 1}}
    own, other = (
        mechanism._announced({"public_coin": {**seen, "own": one}}) for one in (True, False)
    )
    assert "own" in (own or "")
    assert "own" not in (other or "own")


def test_only_a_federation_vouches_for_what_is_at_one_client(make_run: MakeRun) -> None:
    run = load(make_run())
    told = {
        kind: build(Path(), source=origins.made(kind, run))[Trust].word
        for kind in ("records", "a loop")
    }
    assert "client" in told["records"]
    assert "client" not in told["a loop"]


def test_that_people_count_at_each_client_is_said_where_they_are_at_several(
    make_run: MakeRun,
) -> None:
    run = load(make_run())
    several, one = (
        build(Path(), source=origins.made(kind, run))[Guarantee].statement
        for kind in ("people", "people at one client")
    )
    assert "counting once at each client" in several
    assert "counting once" not in one


def test_a_client_without_a_loss_is_not_the_one_that_spent_most(make_run: MakeRun) -> None:
    run = load(make_run())
    due = units.largest_loss(run)
    assert due is not None
    rows = [*run.claim["server"]["clients"], {"client": 99, "epsilon": {}}, {"epsilon": {"pld": 9}}]
    claim = {**run.claim, "server": {**run.claim["server"], "clients": rows}}
    assert units.largest_loss(replace(run, claim=claim)) == due
