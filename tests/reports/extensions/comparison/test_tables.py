"""Each number of a comparison stands in its column, in every form of the table."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from reports.extensions.comparison import tables
from tests.reports.extensions.comparison.several import several
from tests.reports.extensions.comparison.test_comparison import compared, run_of, three

# By group: rank, what, accuracy, runs, losses, bytes, verdict.
ROWS = {
    "A": [("only", "dp-a", "70.0", "1", "2.50", "trusted", "1.0 kB", "2.0 kB", "PASS", "holds")],
    "B": [
        ("only", "dp-a", "60.0", "1", "6.00", "3.00", "5.00", "1.0 kB", "2.0 kB", "PASS", "holds"),
    ],
    "C": [
        ("1", "dp-a", "84.0 ± 4.0", "3", "6.00", "7.00", "5.00", "2.0 kB", "2.0 kB", "PASS",
         "holds"),
        ("2≈", "dp-b", "83.0 ± 4.4", "3", "4.00", "7.05", "5.00", "500 B", "1.0 kB", "PASS",
         "holds"),
        ("–", "dp-b (00000007)", "99.0", "1", "6.00", "7.00", "5.00", "1.0 kB", "2.0 kB", "FAIL",
         "holds"),
    ],
    "D": [
        ("only", "fedavg", "90.0", "1", "no differential privacy", "1.0 kB", "2.0 kB", "NO CLAIM",
         "holds"),
        ("–", "sgd (0000000a)", "not measured", "1", "no differential privacy", "1.0 kB", "2.0 kB",
         "NO CLAIM", "holds"),
    ],
}  # fmt: skip


@pytest.fixture
def found(monkeypatch):
    return several(monkeypatch)


def test_a_row_has_what_its_columns_say(found):
    assert {
        group.name: [row.cells for row in tables.rows_of(group)] for group in found.groups
    } == ROWS
    heads = {group.name: tables.columns_of(group) for group in found.groups}
    rest = ("bytes up", "bytes down", "audit", "signed")
    assert heads["A"][4:] == ("ε third party", "ε server", *rest)
    assert heads["B"] == heads["C"]
    assert heads["C"][4:] == ("ε server", "ε worst case", "ε third party", *rest)
    assert heads["D"] == ("rank", "what", "accuracy, %", "runs", "privacy", *rest)


def test_markdown_and_latex_have_the_same_cells(found):
    markdown, latex = tables.as_markdown(found), tables.as_latex(found)
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    cells = [tuple(line[2:-2].split(" | ")) for line in lines]
    heads = [tables.columns_of(group) for group in found.groups]
    due = [row for head, rows in zip(heads, ROWS.values(), strict=True) for row in (head, *rows)]
    assert cells == due
    rules = [line for line in markdown.splitlines() if line.startswith("|---")]
    assert [line.count("---") for line in rules] == [len(head) for head in heads]
    # In bold is the first, and what is not told apart from it; nothing where nothing is ranked.
    rows = [line[:-3].split(" & ") for line in latex.splitlines() if line.endswith(r" \\")]
    assert [len(row) for row in rows] == [len(row) for row in due]
    bold = [row[1] for row in rows if row[2].startswith(r"\textbf{")]
    assert bold == ["dp-a", "dp-b"]
    assert rows[5][2] == r"\textbf{84.0 $\pm$ 4.0}"
    assert re.findall(r"\\begin{tabular}{(.*)}", latex) == [
        "ll" + "r" * (len(head) - 4) + "ll" for head in heads
    ]
    for text in (*found.groups[2].remarks, *tables.closing(found)):
        assert text in markdown.replace("\\", "")


def test_the_spreadsheet_has_them_unrounded_and_every_run(found):
    rows = list(csv.DictReader(io.StringIO(tables.as_csv(found))))
    entries = [(group, entry) for group in found.groups for entry in group.entries]
    assert len(rows) == len(entries) == 7
    assert list(rows[0]) == [
        "group", "rank", "what", "accuracy_mean", "accuracy_standard_deviation", "repetitions",
        "told_apart_from_first", "privacy", "epsilon_server", "epsilon_server_worst_case",
        "epsilon_third_party", "bytes_up", "bytes_down", "audit", "signature", "no_rank_because",
        "comparable", "runs",
    ]  # fmt: skip
    for row, (group, entry) in zip(rows, entries, strict=True):
        assert row["group"] == group.name
        assert row["runs"].split() == [run.run for run in entry.runs]
        assert (row["privacy"], row["comparable"]) == (group.privacy, group.terms.heading)
    told = [
        (row["rank"], row["what"], row["repetitions"], row["told_apart_from_first"]) for row in rows
    ]
    assert told == [
        ("1", "dp-a", "1", ""), ("1", "dp-a", "1", ""), ("1", "dp-a", "3", ""),
        ("2", "dp-b", "3", "False"), ("", "dp-b (00000007)", "1", ""), ("1", "fedavg", "1", ""),
        ("", "sgd (0000000a)", "0", ""),
    ]  # fmt: skip
    b = rows[3]
    assert float(b["accuracy_mean"]) == pytest.approx(0.83)
    assert float(b["accuracy_standard_deviation"]) == pytest.approx(0.0435889894)
    losses = [b[f"epsilon_{key}"] for key in ("server", "server_worst_case", "third_party")]
    assert losses == ["4.0", "7.05", "5.0"]
    assert (b["bytes_up"], b["bytes_down"]) == ("500.0", "1000.0")
    assert (rows[4]["audit"], rows[4]["no_rank_because"]) == ("FAIL", "audit: FAIL")
    assert [row["signature"] for row in rows] == ["holds"] * 7


def test_what_is_said_of_a_group_is_what_its_runs_show(found):
    a, b, c, d = ([text.split(" ")[0] for text in group.remarks] for group in found.groups)
    # Of one loss no range is told; in release mode no seed.
    assert (a, b, d) == ([], ["Reproducible"], ["sgd"])
    assert c == ["dp-b", "dp-b", "ε", "As", "Reproducible"]


def test_the_public_forms_have_no_loss_as_it_happened(monkeypatch):
    found = several(monkeypatch, "public")
    assert "epsilon_server," not in tables.as_csv(found)
    assert "epsilon_server_worst_case" in tables.as_csv(found)
    assert "ε server" not in tables.columns_of(found.groups[2])
    assert not any("Restricted" in text for text in tables.closing(found))


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("rank", ["d", "b", "c", "a"]),
        ("name", ["b", "c", "d", "a"]),
        ("epsilon", ["c", "d", "b", "a"]),
        ("bytes", ["b", "d", "c", "a"]),
    ],
)
def test_rows_are_put_in_order_by_what_is_asked_for_and_those_without_a_rank_stay_last(key, order):
    given = {
        "a": (0.99, 6.99, 1.0, "FAIL"), "b": (0.8, 7.04, 10.0, None), "c": (0.7, 7.0, 30.0, None),
        "d": (0.9, 7.02, 20.0, None),
    }  # fmt: skip
    runs = [
        replace(run_of(accuracy, algorithm=name, worst=worst, verdict=verdict), bytes_up=up)
        for name, (accuracy, worst, up, verdict) in given.items()
    ]
    found = tables.sorted_by(compared(*runs), key)
    assert [entry.label[0] for entry in found.groups[0].entries] == order


def test_an_apart_spec_has_no_mark_and_equal_means_share_their_rank():
    found = compared(*three("a", 0.9, 0.91, 0.92), *three("b", 0.5, 0.51, 0.521), run_of(seed=9))
    rows = tables.rows_of(found.groups[0])
    assert [(row.rank, row.accuracy) for row in rows] == [
        ("1", "91.0 ± 1.0"), ("2≈", "80.0"), ("3", "51.0 ± 1.1"),
    ]  # fmt: skip
    latex = tables.as_latex(found)
    assert r"\textbf{80.0}" in latex
    assert r"\textbf{51.0" not in latex


def test_a_loss_that_runs_do_not_share_is_a_range_and_bytes_that_are_not_shown_say_so():
    runs = [
        replace(run_of(seed=seed, worst=worst), bytes_up=None)
        for seed, worst in enumerate((7.0, 7.05, 7.02))
    ]
    (group,) = compared(*runs).groups
    (row,) = tables.rows_of(group)
    assert row.losses == ("6.00", "7.00…7.05", "5.00")
    assert (row.up, row.down) == ("not shown", "2.0 kB")
    assert tables._loss(group.entries[0], "a view that no run has") == "none"
    (unfinished,) = compared(run_of(finished=False)).groups
    assert set(tables.rows_of(unfinished)[0].losses) <= {"none"}


def test_specs_that_always_giving_one_answer_matches_are_named():
    runs = [
        replace(run_of(accuracy, algorithm=name), majority_rate=rate)
        for name, accuracy, rate in (
            ("a", 0.9, 0.5), ("b", 0.55, None), ("c", 0.6, 0.6), ("d", 0.4, 0.5), ("e", None, 0.5),
        )
    ]  # fmt: skip
    (said,) = (
        text for text in compared(*runs).groups[0].remarks if text.startswith("Majority rate")
    )
    assert said == (
        "Majority rate: always giving the most frequent answer has an accuracy of 50.0 % to 60.0 %."
        " No better than that by accuracy: c, b, d."
    )
    (better,) = compared(replace(run_of(0.9), majority_rate=0.5)).groups
    assert better.remarks[0].endswith("has an accuracy of 50.0 %.")


def test_every_character_of_latex_is_written_so_that_it_is_printed():
    shown = {
        "a&b%c$d#e_f": r"a\&b\%c\$d\#e\_f", "{}": r"\{\}",
        "~^": r"\textasciitilde{}\textasciicircum{}",
        "\\": r"\textbackslash{}", "ε δ": r"$\varepsilon$ $\delta$", "±≈−": r"$\pm$$^{\approx}$$-$",
        "–…·": r"--\ldots{}$\cdot$", "|<>": r"\textbar{}\textless{}\textgreater{}",
        "10⁻¹²": "10$^{-12}$", "2³⁴⁵⁶⁷⁸⁹⁰": "2$^{34567890}$", "--audience": "-{}-audience",
    }  # fmt: skip
    assert {text: tables._tex(text) for text in shown} == shown
    # Markdown's own characters are escaped, and a line stays one.
    assert tables._escape("a*b_c[d]<e>|`\\\n") == r"a\*b\_c\[d\]\<e\>\|\`\\ "
