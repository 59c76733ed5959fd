"""The page of results: its tables are what its commands print from the committed data."""

from __future__ import annotations

import csv
import statistics

import pytest
import yaml

import specs
from reports import run_rows
from tests.specs import papers_read_again, results_page
from tests.specs.results_page import PAGE, ROOT

DATA = sorted((ROOT / "docs" / "results").glob("*.csv"))
OF_PAPERS = sorted((ROOT / "docs" / "results" / "papers").glob("*.csv"))
LANGUAGE = ROOT / "docs" / "results" / "language"
REPLICATION = ROOT / "docs" / "replication.md"
# What no audit passes, and no table shows: that is a result too.
REJECTED = {
    "ablations": {
        "counter: local, as printed": "FAIL",
        "floor: 1e-8, absolute": "NOT VERIFIED",
        "all as printed": "FAIL",
    },
    # Its first round starts from a mean over all coordinates, and of a model of this size the
    # evidence of so many participations holds a sample of them.
    "mnist": {"DP-FAFED": "NOT VERIFIED"},
}


def test_every_table_is_printed_by_the_command_above_it_byte_for_byte():
    page = PAGE.read_text(encoding="utf-8")
    assert results_page.commands(page)
    assert results_page.written(page) == page


def test_a_papers_own_table_is_printed_by_the_command_above_it_notes_and_all():
    page = REPLICATION.read_text(encoding="utf-8")
    (command,) = results_page.commands(page)
    assert f"    {command}\n\n{results_page.printed_by(command)}\n{results_page.END}" in page
    (path,) = OF_PAPERS
    assert f"docs/results/papers/{path.name}" in command
    rows = run_rows.read_csv(path)
    said = {(row["audit"], row["signatures"], row["seed"]) for row in rows}
    assert said == {("PASS", "holds", 0)}


def test_no_note_that_a_command_prints_is_missing():
    page = PAGE.read_text(encoding="utf-8")
    for command in results_page.commands(page):
        _, _, notes = results_page.printed_by(command).partition("\n\n")
        assert [note for note in notes.splitlines() if note not in page] == []


def test_the_papers_leads_stand_beside_what_the_committed_data_give():
    for path in (papers_read_again.PAGE, papers_read_again.RESULTS):
        assert papers_read_again.written(path) == path.read_text(encoding="utf-8")
    for methods in (methods for *_, methods in papers_read_again.PAPERS):
        assert min(min(papers_read_again.printed_leads(method)) for method in methods) > 0
    for printed in papers_read_again.CLIENT_LEVEL.values():
        assert min(papers_read_again.printed_leads_of_clients(printed)) > 0
    # DP-FedAdamW, Table 4, its first task.
    assert min(papers_read_again.printed_leads("DP-LocalAdamW")) == pytest.approx(91.17 - 91.04)


def test_no_pair_of_rows_is_judged_twice_with_different_outcomes():
    """Wherever the same runs meet, on this page or in the tables that docs/method.md has."""
    page = PAGE.read_text(encoding="utf-8")
    tables = [
        results_page.differences_of(command)
        for command in results_page.commands(page)
        if "--against" in command
    ]
    outcomes: dict[frozenset, set[str]] = {}
    several = 0
    for found in [*tables, *papers_read_again.one_step_tables().values()]:
        for (row, column), one in found.differences.items():
            both = (found.row, column), (row, column)
            runs = [tuple(sorted(found.table.entries[where].values.items())) for where in both]
            if one.verdict == "other ε":
                continue
            better = max(runs) if (one.mean > 0) == (runs[0] == max(runs)) else min(runs)
            said = "ties" if one.verdict == "ties" else str(better)
            several += frozenset(runs) in outcomes
            outcomes.setdefault(frozenset(runs), set()).add(said)
    assert several
    assert {pair: said for pair, said in outcomes.items() if len(said) > 1} == {}


def test_every_file_of_data_is_shown_by_a_command():
    shown = " ".join(results_page.commands(PAGE.read_text(encoding="utf-8")))
    for path in DATA:
        assert f"docs/results/{path.name}" in shown


@pytest.mark.parametrize("path", DATA, ids=lambda path: path.stem)
def test_all_that_is_reported_passed_its_audit_and_claims_what_the_sweep_asks_for(path):
    sweep = yaml.safe_load(specs.find(f"replication-{path.stem}").read_text(encoding="utf-8"))
    rows = [row for row in run_rows.read_csv(path) if row["selected"] == run_rows.SELECTED]
    assert rows
    rejected = REJECTED.get(path.stem, {})
    for row in rows:
        passed = "NO CLAIM" if row["unit"] == "none" else "PASS"
        assert row["audit"] == rejected.get(row.get("change") or row["method"], passed)
    assert {row["signatures"] for row in rows} == {"holds"}
    repeated: dict[tuple, set] = {}
    for row in rows:
        axes = "data.partition.alpha", "privacy.target_epsilon", "method", "change", "shape"
        key = tuple(row.get(axis) for axis in axes)
        repeated.setdefault(key, set()).add(row["seed"])
    wanted = set(range(sweep["seeds"]["numbers"]))
    assert all(seeds == wanted for seeds in repeated.values())


def language_rows(heading: str) -> dict[str, list[str]]:
    """The table below a heading of docs/language-models.md: its cells, by what is protected."""
    page = (ROOT / "docs" / "language-models.md").read_text(encoding="utf-8")
    section = page.partition(f"### {heading}\n")[2].partition("\n#")[0]
    table = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    return {first: cells for first, *cells in table[1:]}


def runs_of(path) -> dict[str, list[dict]]:
    """Three seeds of each setting, in the seeds' order."""
    runs: dict[str, list[dict]] = {}
    for row in sorted(run_rows.read_csv(path), key=lambda row: row["seed"]):
        runs.setdefault(row["setting"], []).append(row)
    assert all([row["seed"] for row in rows] == [0, 1, 2] for rows in runs.values())
    return runs


def mean_and_deviation(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def test_the_perplexities_of_the_language_models_page_are_those_of_its_runs():
    table = language_rows("Documents, authors, or nothing protected")
    runs = runs_of(LANGUAGE / "changelogs.csv")
    assert len(runs) == len(table) == 5
    for setting, rows in runs.items():
        cells = table[setting.replace("without privacy", "nothing (FedAdamW)")]
        (verdict,) = {row["audit"] for row in rows}
        perplexities = [row["test_perplexity"] for row in rows]
        assert cells[-2:] == [mean_and_deviation(perplexities), verdict]


def test_the_answers_of_the_language_models_page_are_those_that_were_counted():
    table = language_rows("Questions with a word as the answer")
    runs = runs_of(LANGUAGE / "label-words.csv")
    with (LANGUAGE / "label-words-answers.csv").open(encoding="utf-8", newline="") as counted:
        answers = list(csv.DictReader(counted))
    shares = {row["run"]: 100 * int(row["right"]) / int(row["reviews"]) for row in answers}
    assert len(shares) == len(answers) == 10
    assert table.pop("before tuning")[1] == f"{shares['before tuning']:.1f}"
    assert len(runs) == len(table) == 3
    for setting, rows in runs.items():
        nothing = setting == "without privacy"
        cells = table["nothing (FedAdamW)" if nothing else f"one review, {setting}"]
        ((verdict, noise),) = {(row["audit"], row["noise_multiplier"]) for row in rows}
        right = [shares[row["run"]] for row in rows]
        each = ", ".join(f"{share:.1f}" for share in right)
        assert cells[1:] == [each, mean_and_deviation(right), verdict]
        assert cells[0] == ("–" if nothing else f"{noise:.3f}")


@pytest.mark.parametrize(
    "path", [*DATA, *OF_PAPERS, *sorted(LANGUAGE.glob("*.csv"))], ids=lambda path: path.stem
)
def test_the_data_tell_nothing_of_the_machines_folders(path):
    text = path.read_text(encoding="utf-8")
    assert "/root" not in text
    assert "/work" not in text
