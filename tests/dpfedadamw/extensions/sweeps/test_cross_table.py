"""The table that is made of a sweep's results: what is marked, left out, refused and printed."""

from __future__ import annotations

import pytest

from dpfedadamw.extensions.sweeps import cross_table
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
