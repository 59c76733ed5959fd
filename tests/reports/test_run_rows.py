"""A sweep's results as tidy data."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import run_rows
from reports.errors import SourceError

_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
_FLOAT = st.floats(allow_nan=False, allow_infinity=False)


def row(
    cell: str, seed: int | None, accuracy: float | None, **more: run_rows.Value
) -> run_rows.Row:
    found = dict.fromkeys(run_rows.COLUMNS)
    found |= {"audit": "PASS", "signatures": "holds", "test_accuracy": accuracy}
    found |= {"epsilon_third_party": 8.0} | more
    return {"cell": cell, "seed": seed, **found}


def results(**methods: list[float]) -> list[run_rows.Row]:
    return [
        row(f"{name}-{seed}", seed, value, method=name)
        for name, values in methods.items()
        for seed, value in enumerate(values)
    ]


@given(
    drawn=st.lists(
        st.tuples(_TEXT, st.none() | st.integers(0, 2**53), st.none() | _FLOAT, st.none() | _TEXT),
        min_size=1,
        max_size=5,
    )
)
def test_csv_reads_back_as_it_was_written(drawn, tmp_path_factory):
    rows = [
        row(cell, seed, accuracy, algorithm=name, **dict.fromkeys(run_rows.MACHINE))
        for cell, seed, accuracy, name in drawn
    ]
    path = tmp_path_factory.mktemp("tidy") / "results.csv"
    path.write_text(run_rows.as_csv(rows), encoding="utf-8", newline="")
    assert run_rows.read_csv(path) == [
        {name: one.get(name) for name in run_rows.columns_of(rows)} for one in rows
    ]


def test_parquet_holds_the_same_with_types():
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = results(adam=[0.5, 0.25])
    table = parquet.read_table(io.BytesIO(run_rows.as_parquet(rows)))
    assert table.column("test_accuracy").to_pylist() == [0.5, 0.25]
    assert str(table.schema.field("seed").type) == "int64"
    assert str(table.schema.field("method").type) == "string"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("audit,", "", 1), "it lacks the column audit"),
        (lambda text: text + "one,two\n", "line 3: has not as many fields as the first line"),
        (lambda text: text.replace("0.5", "half"), "test_accuracy: found half; give a number"),
    ],
)
def test_what_is_no_table_of_results_is_refused_in_one_line(change, message, tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(change(run_rows.as_csv(results(adam=[0.5]))))
    with pytest.raises(SourceError, match=message) as caught:
        run_rows.read_csv(path)
    assert "\n" not in str(caught.value)


def test_columns_that_only_some_results_have_are_written_where_they_say_something(tmp_path):
    plain, told = row("a", 0, 0.5), row("b", 0, 0.5, train_loss=0.25, expected_train_loss=0.2)
    assert "train_loss" not in run_rows.columns_of([plain])
    assert run_rows.columns_of([plain, told])[-2:] == ["train_loss", "expected_train_loss"]
    path = tmp_path / "results.csv"
    path.write_text(run_rows.as_csv([told]), encoding="utf-8")
    (again,) = run_rows.read_csv(path)
    assert (again["train_loss"], again["expected_train_loss"]) == (0.25, 0.2)


def test_a_run_that_was_not_tested_after_its_last_round_has_no_accuracy_and_no_score(make_run):
    """What an earlier model came to says nothing of the one that is published."""
    run = make_run(rounds=3, spec_extra={"tune": {"selection": "public"}})
    lines = [json.loads(one) for one in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"validation_accuracy": 0.75, "test_auc": 0.5}

    def of(lines):
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
        row, read = run_rows.row_of(run), run_rows.read(run, "internal")
        names = ("test_accuracy", "test_loss", "validation_accuracy", "test_auc")
        return [row.get(name) for name in names], read.accuracy

    last = lines[-1]
    scored = [last["test_accuracy"], last["test_loss"], 0.75, 0.5]
    assert of(lines) == (scored, last["test_accuracy"])
    assert of(lines[:-1]) == ([None] * 4, None)
    assert of([*lines[:-1], {"round": 3, "seconds": 1}]) == ([None] * 4, None)


@pytest.mark.parametrize(
    "text", ["=cmd|'/c calc'!A1", "+1+1", "@SUM(A1)", "-x", "\t=1", "  =1", "\uff1d1", "'=1", "''-"]
)
def test_no_cell_of_the_results_is_a_formula_and_each_reads_back_as_it_was(text, tmp_path):
    path = tmp_path / "results.csv"
    content = run_rows.as_csv([row("a", 0, -0.5, method=text)])
    path.write_text(content, encoding="utf-8", newline="")
    assert not re.search(r'[,\n]"?\s*[=+@\uff1d]', content)
    (again,) = run_rows.read_csv(path)
    assert again["method"] == text
    # A number that is negative is one still.
    assert again["test_accuracy"] == -0.5
    assert ",-0.5," in content
