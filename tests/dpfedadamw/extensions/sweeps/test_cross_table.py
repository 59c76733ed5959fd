"""The table that is made of a sweep's results: what is marked, left out, refused and printed."""

from __future__ import annotations

import pytest

from dpfedadamw.extensions.sweeps import cross_table
from reports import run_rows
from reports.errors import ReportError
from tests.reports.test_run_rows import results, row


def test_cells_hold_mean_and_sample_deviation_and_columns_their_epsilon():
    rows = [
        row(f"{name}{epsilon}{seed}", seed, value, method=name, epsilon=str(epsilon),
            epsilon_third_party=epsilon)
        for name, base in (("sgd", 0.7), ("adam", 0.8))
        for epsilon in (1.0, 8.0)
        for seed, value in enumerate((base, base + 0.02))
    ]  # fmt: skip
    text = cross_table.as_markdown(cross_table.tabulate(rows, "method", "epsilon"))
    assert text.splitlines()[:4] == [
        "| method | 1.0 (ε 1) | 8.0 (ε 8) |",
        "|---|---|---|",
        "| sgd | 71.0 ± 1.4 | 71.0 ± 1.4 |",
        "| adam | **81.0 ± 1.4** | **81.0 ± 1.4** |",
    ]


def test_cells_whose_epsilon_protects_nobody_are_named():
    def table(*epsilons):
        rows = [
            row(f"{at}", 0, 0.7, method="sgd", epsilon=str(at), epsilon_third_party=at)
            for at in epsilons
        ]
        return cross_table.as_markdown(cross_table.tabulate(rows, "method", "epsilon"))

    said = "No meaningful protection: 21.0: sgd (ε 21); 300.0: sgd (ε 300). An ε above 20"
    assert said in table(20.0, 21.0, 300.0)
    assert "protection" not in table(8.0, 20.0)


def test_what_the_most_frequent_answer_reaches_is_told_with_the_cells_that_are_no_better():
    rows = [
        row(
            f"{method}{data}{seed}",
            seed,
            accuracy,
            method=method,
            data=data,
            test_loss=1.0,
            **known,
        )
        for data, known in (
            ("digits", {"test_majority_rate": 0.105}),
            ("wards", {"test_majority_rate": 0.6}),
            ("of an earlier version", {}),
        )
        for seed in (0, 1)
        for method, accuracy in (("adam", 0.7), ("sgd", 0.6))
    ]

    def notes(of=rows, **options):
        return cross_table.tabulate(of, "method", "data", **options).notes()

    said = (
        "Majority rate: always giving the most frequent answer has an accuracy of 10.5 % to 60.0 %."
    )
    assert f"{said} No better than that by accuracy: sgd in column wards." in notes()
    assert said.replace("10.5 % to ", "") in notes(
        [one for one in rows if one["method"] == "adam" and one["data"] == "wards"]
    )
    for silent in (notes(rows[-4:]), notes(measure="test_loss")):
        assert not any("Majority" in note for note in silent)


def test_the_best_mean_of_several_repeated_rows_is_bold_and_not_judged():
    made = cross_table.tabulate(results(adam=[0.5, 0.7], sgd=[0.5, 0.6]), "method", None)
    text = cross_table.as_markdown(made)
    assert "| adam | **60.0 ± 14.1** |" in text
    assert "| sgd | 55.0 ± 7.1 |" in text
    assert "Bold: the best mean of its column. --against ROW tests differences." in text
    for rows in (results(adam=[0.5, 0.7]), results(adam=[0.6], sgd=[0.5])):
        assert "**" not in cross_table.as_markdown(cross_table.tabulate(rows, "method", None))


def test_runs_that_no_audit_passed_are_left_out_and_counted():
    rows = [
        *results(adam=[0.5, 0.6]),
        row("x", 2, 0.99, method="adam", audit="FAIL"),
        row("y", 3, 0.99, method="adam", signatures="broken"),
    ]
    table = cross_table.tabulate(rows, "method", None)
    assert table.entries["adam", ""].mean == pytest.approx(0.55)
    assert table.notes()[-2:] == ["Left out: 1 (audit: FAIL).", "Left out: 1 (signatures: broken)."]


def test_trials_whose_best_is_run_anew_are_left_out_and_their_seeds_named():
    search = {"tune": "unaccounted", "tune_score": "test_accuracy", "candidates": 3}
    anew = {"selected": "best", "tune_seeds": "100, 101"}
    rows = [
        row("x", 100, 0.99, method="adam", **search, selected="trial"),
        *(row(f"a{seed}", seed, 0.5, method="adam", **search, **anew) for seed in (0, 1)),
    ]
    table = cross_table.tabulate(rows, "method", None)
    assert table.entries["adam", ""].values == {0: 0.5, 1: 0.5}
    notes = table.notes()
    assert "The search used separate seeds (100, 101); none of its trials is shown." in notes
    assert notes[-1] == "Left out: 1 (trials of a search, whose best is run again)."


def test_data_that_vary_in_more_than_the_table_are_refused():
    rows = [row("a", 0, 0.5, method="adam"), row("b", 0, 0.6, method="adam")]
    with pytest.raises(ReportError, match="several runs of seed 0; the results vary in more"):
        cross_table.tabulate(rows, "method", None)


def test_latex_escapes_what_labels_hold():
    rows = [row(name, 0, 0.5, method=name) for name in ("50 % & more", "a_b")]
    text = cross_table.as_latex(cross_table.tabulate(rows, "method", None))
    assert r"50 \% \& more & 50.0 \\" in text
    assert r"a\_b & 50.0 \\" in text


def test_what_a_paper_prints_stands_in_brackets_beside_what_was_measured():
    printed = {
        "expected_test_accuracy": 0.7169,
        "expected_test_accuracy_sd": 0.0037,
        "expected_source": "A Paper, Table 2",
        "readings": "data.clients, algorithm.learning_rate",
    }
    rows = [row("a", 0, 0.5, method="SGD", **printed), row("b", 0, 0.25, method="Adam")]
    text = cross_table.as_markdown(cross_table.tabulate(rows, "method", None))
    assert "| SGD | 50.0 [71.69 ± 0.37] |" in text
    assert "| Adam | 25.0 |" in text
    assert "In brackets, what is printed: A Paper, Table 2." in text
    assert (
        "Values that the paper does not state are ours: data.clients, algorithm.learning_rate."
    ) in text


def test_of_a_loss_less_is_better():
    rows = [
        row(f"{name}-{seed}", seed, None, method=name, train_loss=value + 0.01 * seed)
        for name, value in (("low", 0.1), ("high", 2.0))
        for seed in range(3)
    ]
    table = cross_table.tabulate(rows, "method", None, "train_loss")
    assert "| low | **0.110 ± 0.010** |" in cross_table.as_markdown(table)


def mixed() -> list[run_rows.Row]:
    """Two methods under two budgets: one method twice, one column without ε, printed numbers."""
    paper = {"expected_source": "A Paper", "readings": "data.clients"}
    ours = {**paper, "expected_test_accuracy": 0.7169, "expected_test_accuracy_sd": 0.0037}
    other = {
        "expected_source": "Another", "expected_test_accuracy": 0.7,
        "readings": "model", "epsilon_third_party": 1.5,
    }  # fmt: skip
    both = {"epsilon_server_worst_case": 1.25, "epsilon_third_party": 0.9}
    return [
        row("a0", 0, 0.70, method="A", budget="1", **both, **ours),
        row("a1", 1, 0.72, method="A", budget="1", **both, **ours),
        row("b0", 0, 0.65, method="B|x", budget="1", **other),
        row("b1", 1, None, method="B|x", budget="1", **other),
        row("c0", 0, 0.80, method="B|x", budget="8", epsilon_third_party=None),
        row("c1", 1, 0.82, method="B|x", budget="8", epsilon_third_party=None),
    ]


def test_a_whole_table_reads_as_markdown_with_what_is_not_there_and_what_is_printed():
    table = cross_table.tabulate(mixed(), "method", "budget")
    lines = cross_table.as_markdown(table).splitlines()
    assert lines[:5] == [
        "| method | 1 (ε 1.25 to 1.5) | 8 |",
        "|---|---|---|",
        "| A | **71.0 ± 1.4** [71.69 ± 0.37] | – |",
        r"| B\|x | 65.0 [70.00] | 81.0 ± 1.4 |",
        "",
    ]
    mean, bold, epsilon, printed, ours, left = lines[5:]
    assert "over 1 to 2 seeds" in mean
    assert bold.startswith("Bold: ")
    assert epsilon.startswith("ε is ")
    assert printed.endswith(": A Paper; Another.")
    assert ours.endswith(": data.clients; model.")
    assert left == "Left out: 1 (no test_accuracy)."


def test_a_whole_table_reads_as_latex_with_its_notes_as_comments():
    rows = [
        row(f"{name}{seed}", seed, None, test_loss=value, expected_test_loss=printed, m_=name,
            epsilon_third_party=2.0)
        for name, values, printed in (("A&B", (0.5, 0.75), 0.25), ("C", (1.0, 1.5), None))
        for seed, value in enumerate(values)
    ]  # fmt: skip
    table = cross_table.tabulate(rows, "m_", None, "test_loss")
    *notes, first, second, third, fourth, ours, theirs, bottom, last = cross_table.as_latex(
        table
    ).splitlines()
    assert len(notes) == 4
    assert all(note.startswith("% ") for note in notes)
    assert [first, second, third, fourth, ours, theirs, bottom, last] == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"m\_ & test\_loss \\",
        r"\midrule",
        r"A\&B & \textbf{0.625 $\pm$ 0.177} [0.250] \\",
        r"C & 1.250 $\pm$ 0.354 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert cross_table.escaped("\\&%$#_{}~^a") == (
        r"\textbackslash{}\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}a"
    )
    assert cross_table.in_symbols("σ ± ε") == r"$\sigma$ $\pm$ $\varepsilon$"


def test_a_table_without_epsilon_names_none_and_single_runs_have_no_spread():
    rows = [row(name, 0, 0.5, method=name, epsilon_third_party=None) for name in "ab"]
    (only,) = cross_table.tabulate(rows, "method", None).notes()
    assert only.startswith("One run each")
    twice = results(adam=[0.5, 0.6])
    mean, *_ = cross_table.tabulate(twice, "method", None).notes()
    assert "over 2 seeds" in mean


def test_each_cell_that_protects_nobody_stands_once_with_its_largest_epsilon_by_column():
    rows = [
        row(f"{name}{column}{seed}", seed, 0.5, method=name, at=column, epsilon_third_party=epsilon)
        for name, column, epsilons in (
            ("a", "x", (30.0, 40.0)), ("b", "x", (25.0, 25.0)), ("a", "y", (8.0, 8.0)),
        )
        for seed, epsilon in enumerate(epsilons)
    ]  # fmt: skip
    (note,) = (
        note for note in cross_table.tabulate(rows, "method", "at").notes() if "protection" in note
    )
    assert ": x: a (ε 40), b (ε 25). " in note
    (note,) = (
        note
        for note in cross_table.tabulate(rows[:4], "method", None).notes()
        if "protection" in note
    )
    assert ": a (ε 40), b (ε 25). " in note


SEARCHED = {"selected": "best", "tune_score": "test_accuracy", "candidates": 3, "unit": "record"}
BEST_OF, SEPARATE, PICKED, CHOSEN = "Each is the best", "The search used", "Picked by", "Hyper-"


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({}, []),
        ({"tune": "private"}, []),
        ({"tune": "public"}, [BEST_OF]),
        ({"tune": "unaccounted"}, [BEST_OF, PICKED, CHOSEN]),
        ({"tune": "unaccounted", "unit": "none"}, [BEST_OF, PICKED]),
        ({"tune": "unaccounted", "tune_score": "validation_accuracy"}, [BEST_OF, CHOSEN]),
        ({"tune": "public", "tune_seeds": "7, 8"}, [BEST_OF, SEPARATE]),
        ({"tune": "private", "tune_seeds": "7, 8"}, [SEPARATE]),
    ],
)
def test_what_is_to_be_said_of_a_choice_follows_from_how_it_was_made(search, said):
    rows = [row("a", 0, 0.5, method="a", **{**SEARCHED, **search})]
    remarks = cross_table.tabulate(rows, "method", None).remarks
    assert [next(one for one in said if text.startswith(one)) for text in remarks] == said
    assert len(remarks) == len(said)
    if BEST_OF in said:
        assert "best of 3 candidates by " in remarks[0]
        (unknown, *_) = cross_table.tabulate(
            [{**rows[0], "candidates": None}], "method", None
        ).remarks
        assert "best of several candidates" in unknown


def test_a_best_at_the_edge_of_its_grid_is_named_with_its_column_once_for_all_seeds():
    edge = {"tune": "public", "selected": "best", "on_the_grids_edge": "rate"}
    rows = [
        row(f"{name}{at}{seed}", seed, 0.5, method=name, at=at, **edge)
        for name, at in (("a", "x"), ("b", "x"), ("a", "y"))
        for seed in (0, 1)
    ]
    rows.append(row("c", 0, 0.5, method="c", at="x", tune="public", selected="best"))
    warned = [
        remark.partition("there may")[0]
        for remark in cross_table.tabulate(rows, "method", "at").remarks
        if remark.startswith("Warning")
    ]
    assert warned == [
        "Warning: the best of a; b in column x is at the edge of its grid (rate); ",
        "Warning: the best of a in column y is at the edge of its grid (rate); ",
    ]
    (alone,) = (
        remark
        for remark in cross_table.tabulate(rows[:2], "method", None).remarks
        if remark.startswith("Warning")
    )
    assert "the best of a is at" in alone


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"audit": "NO CLAIM"}, None),
        ({"audit": "NOT VERIFIED", "signatures": "broken"}, "audit: NOT VERIFIED"),
        ({"audit": None}, "audit: None"),
        ({"signatures": "unsigned", "selected": "trial"}, "signatures: unsigned"),
        ({"selected": "trial"}, "trials of a search, whose best is run again"),
        ({"tune": "public"}, "candidates that were not the best, or of an unfinished search"),
        ({"tune": "private"}, None),
        ({"tune": "public", "selected": "best"}, None),
        ({"test_accuracy": None}, "no test_accuracy"),
        ({"test_accuracy": 1}, None),
    ],
)
def test_a_run_that_does_not_count_is_left_out_for_the_gravest_reason(changes, why):
    counts = row("a", 0, 0.5, method="a")
    one = row("b", 1, 0.25, method="a") | changes
    table = cross_table.tabulate([counts, one], "method", None)
    assert table.left_out == ({} if why is None else {why: 1})
    assert len(table.entries["a", ""].values) == (2 if why is None else 1)


def test_where_nothing_is_left_to_show_the_reasons_are_told():
    rows = [row(cell, 0, 0.5, method="a", audit="FAIL") for cell in "ab"]
    rows.append(row("c", 0, None, method="a"))
    with pytest.raises(ReportError, match=r"show: 2 \(audit: FAIL\), 1 \(no test_accuracy\)$"):
        cross_table.tabulate(rows, "method", None)
    with pytest.raises(ReportError, match="there is nothing to show: the results have no rows"):
        cross_table.tabulate([], "method", None)


@pytest.mark.parametrize("names", [("x", "method", "test_loss"), ("method", "x", "test_loss")])
def test_rows_columns_and_measure_must_be_columns_of_the_results(names):
    with pytest.raises(ReportError, match=r"^x: the results have no such column; they have cell,"):
        cross_table.tabulate(results(adam=[0.5]), *names)


def test_one_run_twice_counts_once_and_two_of_one_seed_in_one_place_are_refused():
    rows = results(adam=[0.5, 0.6])
    table = cross_table.tabulate([*rows, rows[0]], "method", None)
    assert table.entries["adam", ""].values == {0: 0.5, 1: 0.6}
    other = row("again", 1, 0.7, method="adam", at="x")
    with pytest.raises(ReportError, match=r"^adam and x: several runs of seed 1;"):
        cross_table.tabulate([{**rows[1], "at": "x"}, other], "method", "at")
