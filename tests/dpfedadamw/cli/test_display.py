"""What a terminal shows of claims and results, and first of an ε that protects nobody."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from dpfedadamw.canaries.engine import CanaryOrder
from dpfedadamw.cli import canaries, display
from dpfedadamw.run.block_table import BlockGroup, BlockTable
from dpfedadamw.run.model_check import LayerRow, ModelCheck
from tests.dpfedadamw.cli.shown import cells

WARNING = "NO MEANINGFUL PROTECTION"


def claim(epsilon: float, **more: Any) -> dict[str, Any]:
    view = {"accountant": "pld", "epsilon": {"pld": epsilon}}
    views = dict.fromkeys(("server", "server_worst_case", "third_party"), view)
    return {
        "view_headline": "server", "adjacency": "add-remove", "delta": 1e-5, **views, **more
    }  # fmt: skip


@pytest.mark.parametrize(("epsilon", "warned"), [(20.0, False), (20.1, True), (2.58e9, True)])
def test_the_first_row_of_a_claim_warns(epsilon: float, warned: bool) -> None:
    first = display.privacy_rows(claim(epsilon))[0][0]
    assert first == (WARNING if warned else "ε against the server")


@pytest.mark.parametrize(("epsilon", "warned"), [(20.0, False), (20.1, True), (None, False)])
def test_the_person_with_most_records_is_warned_of(epsilon: float | None, warned: bool) -> None:
    person = {"records": 3, "epsilon": epsilon}
    rows = {name: str(value) for name, value in display.privacy_rows(claim(7.0, person=person))}
    assert rows["a person with 3"].startswith(WARNING) == warned
    assert WARNING not in rows


def test_a_verdict_stands_behind_the_warning_and_is_not_green() -> None:
    shown = display.verdict_at_level("PASS", 2, "anyone")
    assert shown.plain == f"{WARNING} · PASS · level 2 of 4, re-executed"
    styles = " ".join(str(span.style) for span in shown.spans)
    assert "red" in styles
    assert "green" not in styles
    assert display.verdict_at_level("PASS", 2).plain.startswith("PASS · ")
    assert "green" not in str(display.verdict_text(f"{WARNING} · PASS").style)


@pytest.mark.parametrize("verdict", sorted(display.VERDICT_STYLES))
def test_only_a_verdict_that_is_good_is_green_and_only_a_bad_one_red(verdict: str) -> None:
    style = str(display.verdict_text(verdict).style)
    assert ("green" in style) == (verdict in ("PASS", "CONSERVATIVE"))
    assert ("red" in style) == (verdict == "FAIL")


@pytest.mark.parametrize(
    ("epsilons", "first"),
    [((20.0, 3.0), "the claim"), ((21.0, 3.0), f"{WARNING} AGAINST"), ((21.0, 21.0), WARNING)],
)
def test_canaries_say_first_that_a_claim_which_they_do_not_contradict_protects_nobody(
    epsilons: tuple[float, float], first: str
) -> None:
    bounds = {"epsilon_any_mechanism": 1.0, "epsilon_these_steps": 1.0}
    ceilings = {"ceiling_any_mechanism": 2.0, "ceiling_these_steps": 2.0}
    views = [
        {"view": view, "claimed_epsilon": epsilon, "could_contradict": True, **bounds, **ceilings}
        for view, epsilon in zip(("releases", "final-model"), epsilons, strict=True)
    ]
    details = {"unit": "record", "delta": 1e-5, "confidence": 0.95, "views": views}
    check = {"verdict": "PASS", "measurement": "", "details": details}
    console = Console(width=160)
    with console.capture() as shown:
        console.print(canaries.summary("run", Path("runs"), CanaryOrder(20, "gradient"), check))
    assert shown.get().splitlines()[2].strip("│ ").startswith(first)


SUMMARY = {"run": "a-run", "engine": "book-keeping", "level": 2}


@pytest.mark.parametrize(
    ("measured", "rows"),
    [
        ({"test_accuracy": 0.8125}, [["test accuracy", "81.2%"]]),
        ({"test_accuracy": None}, [["test accuracy", "not evaluated"]]),
        (
            {"test_accuracy": None, "test_rmse": 1.23456, "test_mae": 2, "test_r2": 0.5},
            [["test rmse", "1.235"], ["test mae", "2"], ["test r2", "0.5"]],
        ),
        (
            {
                "test_accuracy": 0.9,
                "test_majority_rate": 0.6,
                "test_auc": 0.75,
                "test_log_loss": 0.1,
                "test_own": {"f2": 0.25},
            },
            [
                ["test accuracy", "90.0%"],
                ["majority rate", "60.0%"],
                ["also", "AUC 0.75, log loss 0.1, f2 0.25"],
            ],
        ),
    ],
    ids=["accuracy", "not evaluated", "a regression", "a classification"],
)
def test_the_end_of_a_run_says_what_was_measured_claimed_and_found(
    measured: dict[str, Any], rows: list[list[str]]
) -> None:
    outcome = {**SUMMARY, **measured, "privacy": claim(7.0)}
    shown = cells(display.run_summary(outcome, "PASS", ["by one hand"], Path("runs/a-run")))
    assert shown[: len(rows) + 2] == [["a-run"], *rows, ["ε against the server", "7.00"]]
    assert shown[-6:] == [
        ["clipping", "book-keeping"],
        ["audit", "PASS · level 2 of 4, re-executed"],
        ["by one hand"],
        ["run", "runs/a-run"],
        ["report", "report.pdf, report.html, in that folder"],
        ["check it", "dpfedadamw verify runs/a-run"],
    ]


def test_a_model_no_better_than_one_answer_is_said_to_be_so() -> None:
    measured = {"test_accuracy": 0.6, "test_majority_rate": 0.6, "test_auc": 0.5}
    outcome = {**SUMMARY, **measured, "privacy": claim(7.0)}
    rows = cells(display.run_summary(outcome, "PASS", [], Path("runs/a-run")))
    assert "no better than always giving the most frequent answer" in rows[3][0]


def test_a_run_that_diverged_shows_no_accuracy_and_one_without_an_engine_no_clipping() -> None:
    privacy = claim(7.0, diverged={"rounds": 3})
    outcome = {"run": "a-run", "engine": "", "level": None, "test_accuracy": 0.5}
    rows = cells(display.run_summary(outcome | {"privacy": privacy}, "FAIL", [], Path("runs")))
    assert rows[1] == ["model", "diverged after round 3: there is none"]
    assert ["audit", "FAIL"] in rows
    assert not {"test accuracy", "clipping"} & {row[0] for row in rows}


def test_the_newest_run_is_checked_by_the_name_that_is_short(tmp_path: Path) -> None:
    older, newer = tmp_path / "older", tmp_path / "newer"
    for folder in (older, newer):
        folder.mkdir()
    (tmp_path / "latest").symlink_to("newer")
    outcome = {**SUMMARY, "test_accuracy": 0.5, "privacy": claim(7.0)}
    for folder, named in ((older, older), (newer, tmp_path / "latest")):
        *_, (last,) = (
            row[1:]
            for row in cells(display.run_summary(outcome, "PASS", [], folder))
            if row[0] == "check it"
        )
        assert last == f"dpfedadamw verify {named}"


def test_a_profile_has_each_part_its_share_and_the_sum() -> None:
    spent = {"seconds": 4.004, "parts": {"noise": 3.003, "audit": 1.001}}
    assert cells(display.profile(spent)) == [
        ["part", "seconds", "share"],
        ["noise", "3.00", "75.0%"],
        ["audit", "1.00", "25.0%"],
        ["together", "4.00"],
    ]


def view(epsilon: float | None, accountant: str = "pld") -> dict[str, Any]:
    return {"accountant": accountant, "epsilon": None if epsilon is None else {accountant: epsilon}}


def rows_of(claimed: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in display.privacy_rows(claimed)]


OF_CLIENTS = {"view_headline": "third-party", "unit": "client", "delta": 1e-3}
OF_RECORDS = {
    "view_headline": "server",
    "unit": "record",
    "adjacency": "add-remove",
    "delta": 1e-5,
    "server": view(3.0),
    "server_worst_case": view(4.0),
    "third_party": view(2.0),
}
OF_PEOPLE = OF_RECORDS | {"unit": "person", "clients_per_person": 1}
SELECTED = {"third_party": view(2.0), "tuning": {"one_trial": view(1.0)}}
SERVER, THIRD, BEST = "ε against the server", "ε against a third party", "ε of the selection"
WORST, ALONE = "  if in every round", "  of one trial alone"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"view_headline": "none"}, [("privacy", "no differential privacy")]),
        (
            OF_RECORDS | {"adjacency": "replace-one"},
            [
                (SERVER, "3.00"),
                (WORST, "4.00"),
                (THIRD, "2.00"),
                ("δ", "1e-05"),
                ("protects", "one record", "replaced"),
            ],
        ),
        (
            OF_PEOPLE | {"stopped": {"rounds": 7, "max_epsilon": 4.5}},
            [
                (SERVER, "3.00"),
                (WORST, "4.00"),
                (THIRD, "2.00"),
                ("δ", "1e-05"),
                ("protects", "one person", "at one client", "added or removed", "by PLD"),
                ("ended early", "after 7 rounds", "max_epsilon 4.5"),
            ],
        ),
        (
            OF_PEOPLE
            | {"clients_per_person": 3, "adjacency": "replace-one"}
            | {"stopped": {"rounds": 8, "target_epsilon": 4.5}},
            [
                (SERVER, "3.00"),
                (WORST, "4.00"),
                (THIRD, "2.00"),
                ("δ", "1e-05"),
                ("protects", "one person", "at up to 3 clients", "replaced"),
                ("ended early", "after 8 rounds", "target_epsilon 4.5", "charged again"),
            ],
        ),
        (
            OF_RECORDS | SELECTED,
            [
                (BEST, "2.00"),
                (ALONE, "1.00"),
                (SERVER, "4.00 for each trial"),
                ("δ", "1e-05"),
                ("protects", "one record", "added or removed"),
            ],
        ),
        (
            OF_CLIENTS | {"server": view(None), "third_party": view(2.0, "rdp")},
            [
                (THIRD, "2.00"),
                (SERVER, "no guarantee"),
                ("δ", "0.001"),
                ("protects", "one client with all its records", "by RDP"),
            ],
        ),
        (
            OF_CLIENTS | {"server": view(5.0), "third_party": view(2.0)},
            [
                (THIRD, "2.00"),
                (SERVER, "5.00  "),
                ("δ", "0.001"),
                ("protects", "one client with all its records", "by PLD"),
            ],
        ),
        (
            OF_CLIENTS | {"server": view(5.0)} | SELECTED,
            [
                (BEST, "2.00"),
                (ALONE, "1.00"),
                (SERVER, "5.00 for each trial"),
                ("δ", "0.001"),
                ("protects", "one client with all its records", "by PLD"),
            ],
        ),
    ],
    ids=[
        "no privacy",
        "records that are replaced",
        "people at one client",
        "people at several clients",
        "a selection that protects records",
        "clients, by a server that adds noise",
        "clients that add noise themselves",
        "a selection that protects clients",
    ],
)
def test_a_claim_says_against_whom_it_holds_for_whom_and_by_whose_sum(
    given: dict[str, Any], expected: list[tuple[str, ...]]
) -> None:
    rows = rows_of(given)
    assert [name for name, _ in rows] == [name for name, *_ in expected]
    for (name, value), (_, *parts) in zip(rows, expected, strict=True):
        assert all(part in value for part in parts), name


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ({"epsilon": 7.0, "view": "server_worst_case"}, "ε = 7.00 if in every round"),
        ({"epsilon": 6.0, "view": "third_party"}, "ε = 6.00, below the claim"),
        ({"epsilon": 8.0, "view": "third_party"}, "DISAGREES: ε = 8.00, above the claim"),
        (
            {"epsilon": 6.5, "view": "third_party", "bound": "lower"},
            "no accountant can say less than ε = 6.50; the claim is 7.00",
        ),
        ({"epsilon": None, "reason": "no event"}, "no number"),
        ({"epsilon": None, "reason": "too fine"}, "no number"),
        ({"epsilon": None, "reason": "too large"}, "no number"),
    ],
)
def test_what_dp_accounting_says_stands_with_the_claim(found: dict[str, Any], shown: str) -> None:
    said = dict(rows_of(claim(7.0, dp_accounting=found)))["dp-accounting"]
    assert said.startswith("agrees to") == (found["epsilon"] == 7.0)
    assert shown in said


def test_what_a_person_with_several_records_has_is_said_where_there_is_one() -> None:
    named = "a person with 1,200"
    for epsilon, text in ((9.0, "ε = 9.00 if in every round"), (None, "not computed")):
        person = {"records": 1200, "epsilon": epsilon}
        rows = dict(rows_of(claim(7.0, person=person)))
        assert rows[named] == f"{text}; no person has more records"
    assert rows_of(claim(7.0, person={"records": 1, "epsilon": 7.0})) == rows_of(claim(7.0))


def planned(by_record: bool, least: float, clients: int) -> Any:
    """What the price of a spec is told from, of a plan."""
    unit = SimpleNamespace(noises_gradients=by_record, cost=lambda plan: [("rounds", "30")])
    bound = SimpleNamespace(least_noise_multiplier=least)
    return SimpleNamespace(
        noise_multiplier=2.0, spending_bound=bound, unit=unit, records=range(clients)
    )


def spending(client: int, epsilon: float) -> dict[str, Any]:
    return {
        "client": client,
        "records": 100 + client,
        "sampling_rate": 0.25,
        "epsilon": {"pld": epsilon, "rdp": epsilon + 1},
    }


def test_the_price_of_a_spec_has_its_claim_its_noise_and_what_every_client_spends() -> None:
    claimed = OF_RECORDS | {"server": view(3.0) | {"clients": [spending(4, 3.0)]}}
    curve = {"mu": 0.5431, "exact": False, "trade_off": [(0.01, 0.9504), (0.1, 0.75)]}
    people = {1: 3.0, 2: 5.0}
    summary, table = display.cost("a-spec", planned(True, 2.0, 1), claimed, people, curve)
    rows = {name: " ".join(values) for name, *values in cells(summary)}
    assert list(rows)[:2] == ["spec", "ε against the server"]
    assert rows["spec"] == "a-spec"
    assert (rows["ε of a person with 1 record"], rows["ε of a person with 2 records"]) == (
        "3.00",
        "5.00",
    )
    # Misses of 0.9504 and 0.75 are detections of 4.96 % and 25 %, and every bound is rounded up.
    assert rows["f-DP"].startswith("at most 0.544-GDP.")
    assert re.findall(r"at most ([\d.]+) %", rows["f-DP"]) == ["5.0", "25.0"]
    assert (rows["noise multiplier σ"], rows["rounds"]) == ("2", "30")
    assert table is not None
    head, one = cells(table)
    assert head[:3] == ["client", "records", "q"]
    assert [text for text in head[3:] if text] == ["ε (PLD)", "ε (RDP)"]
    assert one == ["4", "104", "0.2500", "3.00", "4.00"]


def test_the_price_says_how_far_the_noise_may_sink_and_lists_no_clients_that_are_hidden() -> None:
    claimed = OF_CLIENTS | {"server": view(None), "third_party": view(2.0)}
    curve = {"mu": 0.5, "exact": True, "trade_off": [(0.01, 0.96), (0.1, 0.75)]}
    summary, table = display.cost("a-spec", planned(False, 1.5, 1), claimed, curve=curve)
    rows = {name: " ".join(values) for name, *values in cells(summary)}
    assert rows["noise multiplier σ"].startswith("2 in the first round, 1.5 in the last")
    assert rows["f-DP"].startswith("0.500-GDP.")
    assert table is None


@pytest.mark.parametrize("clients", [20, 21])
def test_of_many_clients_those_that_spend_most_are_shown_first(clients: int) -> None:
    found = [spending(number, 1.0 + number) for number in range(clients)]
    claimed = OF_RECORDS | {"server": view(3.0) | {"clients": found}}
    _, table = display.cost("a-spec", planned(True, 2.0, clients), claimed)
    assert table is not None
    shown = [row[0] for row in cells(table) if row[0].isdigit()]
    every = [str(number) for number in range(clients)]
    assert shown == (every if clients == 20 else every[:0:-1])


def test_a_table_of_blocks_has_every_number_of_a_layer_and_their_sums() -> None:
    groups = (
        BlockGroup("net.one[row 0 … 3]", 4, ("net.one.weight", "net.one.bias"), 1200),
        BlockGroup("net.two[row 0 … 1]", 2, ("net.two.weight", "net.one.bias"), 34),
    )
    table = BlockTable("hessian", groups, blocks=6, trained=1234, frozen=5678)
    title, *rows = cells(display.block_table(table))
    assert title == ["blocks: hessian, of net"]
    assert rows == [
        ["block", "blocks", "tensors", "coordinates"],
        ["one[row 0 … 3]", "4", "2", "1,200"],
        ["two[row 0 … 1]", "2", "2", "34"],
        # A tensor that lies in both groups is one.
        ["trained; 5,678 more are frozen", "6", "3", "1,234"],
    ]
    other = BlockTable("layer", (replace(groups[0], name="lone"),), 4, 1200, 0)
    assert [row[0] for row in cells(display.block_table(other))] == [
        "blocks: layer",
        "block",
        "lone",
        "trained",
    ]


def checked(*layers: LayerRow, timed: bool = True) -> ModelCheck:
    times = (4.0, 2.5) if timed else (None, None)
    return ModelCheck("vit", 1234, 56, "loop", "the loop", 8, *times, layers, refused=None)


def test_a_model_s_layers_are_shown_with_their_treatment_and_what_a_sum_costs() -> None:
    first = LayerRow("one", "Linear", 1200, "Opacus", "changed")
    second = LayerRow("two", "BatchNorm2d", 0, "refused", "replace it")
    shown = cells(display.model_check(checked(first, second)))
    assert shown == [
        ["model: vit"],
        ["parameters", "1,234 are trained; 56 more are frozen"],
        ["engine", "the loop"],
        ["a clipped sum", "4.0 ms for 8 made-up records, 1.6 times a plain gradient (2.5 ms)"],
        ["layer", "parameters", "by record", "note"],
        ["one", "1,200", "Opacus", "changed"],
        ["Linear"],
        ["two", "refused", "replace it"],
        ["BatchNorm2d"],
    ]
    assert "a clipped sum" not in str(cells(display.model_check(checked(first, timed=False))))


@pytest.mark.parametrize("count", [24, 25])
def test_layers_that_are_alike_share_a_row_where_there_are_many(count: int) -> None:
    alike = [
        LayerRow(f"l{n}", f"Conv2d({n})", 10, "Opacus", f"cut ({n} groups)") for n in range(count)
    ]
    other = LayerRow("last", "Linear", 7, "Opacus", "")
    rows = cells(display.model_check(checked(*alike[1:], other)))[5:]
    if count == 24:
        assert [row[:2] for row in rows[::2]] == [
            *([f"l{n}", "10"] for n in range(1, count)),
            ["last", "7"],
        ]
    else:
        assert [row[:2] for row in rows[::2]] == [["l1 and 23 more", "240"], ["last", "7"]]
        assert [row[0] for row in rows[1::2]] == ["Conv2d", "Linear"]


@pytest.mark.parametrize("found", [None, "anyone"])
def test_findings_are_shown_by_check_then_the_verdict_and_what_limits_it(found: str | None) -> None:
    findings = {
        "checks": [
            {"name": "noise", "verdict": "PASS", "measurement": "as it should be"},
            {"name": "views", "verdict": "NOT VERIFIED", "measurement": "not seen"},
        ],
        "verdict": "PASS",
        "qualifications": ["by one hand"],
        "unprotected_against": found,
    }
    head, first, second, overall, *notes = cells(display.findings_table(findings, 2))
    assert head == ["check", "verdict", "what was found"]
    assert first == ["noise", "PASS", "as it should be"]
    assert second == ["views", "NOT VERIFIED", "not seen"]
    warning = f"{WARNING} · " if found else ""
    assert overall == [f"overall: {warning}PASS · level 2 of 4, re-executed"]
    # Why an ε protects nobody is told where one is too large.
    assert len(notes) == (2 if found else 1)
    assert notes[-1] == ["by one hand"]
