"""A sweep's results as tidy data."""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import run_rows
from reports.errors import ReportError, SourceError
from tests.reports.changed_runs import rewrite_header
from tests.reports.extensions.comparison.test_comparison import run_of

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
        row(cell, seed, None, test_loss=loss, algorithm=name, **dict.fromkeys(run_rows.MACHINE))
        for cell, seed, loss, name in drawn
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
        (
            lambda text: text.replace("0.5", "nan"),
            "test_accuracy: found nan; give a share from 0 to 1",
        ),
        (
            lambda text: text.replace("0.5", "50.0"),
            "test_accuracy: found 50.0; give a share from 0 to 1",
        ),
    ],
)
def test_what_is_no_table_of_results_is_refused_in_one_line(change, message, tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(change(run_rows.as_csv(results(adam=[0.5]))))
    with pytest.raises(SourceError, match=message) as caught:
        run_rows.read_csv(path)
    assert "\n" not in str(caught.value)


PUBLISHED = Path(__file__).parents[2] / "docs" / "results"


def test_columns_are_called_as_in_the_tables_that_were_published():
    """Who reads those reads new ones by the same names."""
    tables = [line.split(",") for line in (first_line(p) for p in PUBLISHED.rglob("*.csv"))]
    found = {name for names in tables if names[0] == "cell" for name in names}
    # Of kinds of sweeps of which none was published.
    found |= {
        "train_accuracy", "train_loss", "test_rmse", "test_mae", "test_r2", "test_micro_f1",
        "validation_loss", "expected_test_accuracy_sd", "expected_test_loss",
        "expected_test_loss_sd", "expected_train_accuracy", "expected_train_accuracy_sd",
        "expected_train_loss", "expected_train_loss_sd",
    }  # fmt: skip
    everything: run_rows.Row = dict.fromkeys(run_rows.SOMETIMES, 1) | dict.fromkeys(
        run_rows.SEARCH, 1
    )
    named = run_rows.columns_of([everything])
    assert len(set(named)) == len(named)
    assert set(named) <= found
    (whole,) = (names for names in tables if {"expected_source", "run_seed"} <= set(names))
    axes = {"setting", "method"}
    assert [name for name in named if name in whole] == [one for one in whole if one not in axes]


def first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().rstrip("\n")


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


def test_a_run_that_diverged_has_neither_accuracy_nor_score(make_run):
    run = make_run(rounds=2, spec_extra={"tune": {"selection": "public"}})
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"validation_accuracy": 0.9, "test_auc": 0.5}
    (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    assert run_rows.row_of(run)["validation_accuracy"] == 0.9
    *entries, claim = (run / "ledger.jsonl").read_text().splitlines()
    claim = json.dumps(json.loads(claim) | {"diverged": {"rounds": 2}})
    (run / "ledger.jsonl").write_text("\n".join([*entries, claim]) + "\n")
    row = run_rows.row_of(run)
    names = ("test_accuracy", "test_loss", "validation_accuracy", "test_auc")
    assert [row.get(name) for name in names] == [None] * 4


def test_a_recorded_loop_has_a_row_without_a_line_of_metrics(make_run):
    run = make_run(rounds=2)
    rewrite_header(run, producer={"name": "opacus"})
    (run / "metrics.jsonl").write_text("")
    row = run_rows.row_of(run)
    assert (row["test_accuracy"], row["test_loss"], row["seconds"]) == (None, None, 0.0)


SPEC = {
    "version": 1,
    "name": "one",
    "data": {"dataset": "digits", "clients": 5, "path": "/here", "seed": 0},
    "task": {"kind": "classification"},
    "model": {"name": "mlp", "hidden": [8], "seed": 3},
    "algorithm": {"name": "dp-fedavg", "begun": datetime.date(2026, 1, 2)},
    "federation": {"rounds": 2},
    "randomness": {"mode": "reproducible", "seed": 7},
    "evaluation": {"every": 1},
    "tune": {"selection": "public", "score": "accuracy"},
}


def experiment(*, without: str = "", **changes: object) -> str:
    """The experiment of a run of `SPEC`, of which sections lack or change keys."""
    spec = {key: value for key, value in SPEC.items() if key != without}
    for key, value in changes.items():
        known = spec.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        spec[key] = {**known, **value} if both else value
    run = run_of()
    return replace(run, source=replace(run.source, spec=spec)).experiment


def backwards(value: object) -> object:
    """The same with the keys of all mappings the other way round."""
    if not isinstance(value, dict):
        return value
    return {key: backwards(value[key]) for key in reversed(value)}


@pytest.mark.parametrize(
    "changes",
    [
        backwards(SPEC),
        {"name": "other"},
        {"description": "words"},
        {"report": {"audience": "public"}},
        {"budget": {"file": "/there"}},
        {"data": {"path": "/there"}},
        {"model": {"seed": 4}},
        {"randomness": {"seed": 8}},
        {"evaluation": {"public_test": True, "metrics": ["auc"]}},
        {"without": "task"},
        {"task": {"loss": "cross_entropy", "focal_gamma": 2.0, "class_weights": []}},
        {"tune": {"search_seeds": []}},
    ],
)
def test_names_places_seeds_order_and_what_only_tells_make_no_other_experiment(changes):
    assert experiment(**changes) == experiment()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"data": {"dataset": "iris"}},
        {"data": {"clients": 6}},
        {"data": {"seed": 1}},
        {"task": {"loss": "focal"}},
        {"task": {"focal_gamma": 1.0, "loss": "focal"}},
        {"task": {"class_weights": [1.0, 2.0]}},
        {"task": {"kind": "regression"}},
        {"model": {"name": "cnn"}},
        {"model": {"hidden": [9]}},
        {"algorithm": {"name": "dp-scaffold"}},
        {"algorithm": {"begun": datetime.date(2026, 1, 3)}},
        {"federation": {"rounds": 3}},
        {"privacy": {"unit": "record"}},
        {"randomness": {"mode": "release"}},
        {"evaluation": {"every": 2}},
        {"tune": {"score": "loss"}},
        {"tune": {"selection": "private"}},
        {"tune": {"search_seeds": [1]}},
    ],
)
def test_every_other_setting_makes_another_experiment(changes):
    assert experiment(**changes) != experiment()


def test_a_spec_from_before_there_were_searches_is_of_the_experiment_without_one():
    assert experiment(tune={"selection": "none"}) == experiment(without="tune")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"finished": False, "verdict": "FAIL"}, "did not finish"),
        ({"signature": run_rows.BROKEN, "verdict": "FAIL"}, "signature does not hold: spec.yaml"),
        ({"verdict": "FAIL", "signature": run_rows.UNSIGNED}, "audit: FAIL"),
        ({"verdict": "NOT VERIFIED", "accuracy": None}, "audit: NOT VERIFIED"),
        ({"verdict": "NO CLAIM"}, None),
        ({"unit": "none"}, None),
        ({"signature": run_rows.UNSIGNED, "accuracy": None}, "not signed"),
        ({"accuracy": None}, "no accuracy was measured"),
        ({"accuracy": 0.0}, None),
    ],
)
def test_a_run_that_may_not_rank_says_why_the_gravest_reason_first(changes, words):
    found = run_of(**changes).objection
    assert found is None if words is None else found is not None and words in found


def test_runs_are_repetitions_by_their_seed_and_pair_by_the_seeds_of_run_and_weights():
    seeded = [run_of(seed=seed, weights=weights) for seed, weights in ((1, 5), (1, 5), (2, 5))]
    assert seeded[0].repetition == seeded[1].repetition != seeded[2].repetition
    assert seeded[0].seeds == seeded[1].seeds != seeded[2].seeds
    assert run_of(seed=1, weights=6).seeds != seeded[0].seeds
    # A run in release mode has no seed of its own, whatever its header says; its model is its own.
    released = [run_of(weights=5, header={"seed": 1}) for _ in range(2)]
    assert released[0].repetition != released[1].repetition
    assert released[0].seeds == released[1].seeds not in (None, seeded[0].seeds)
    assert run_of().seeds is None
    assert run_of(seed=0).seeds is not None


@pytest.mark.parametrize(
    "text", ["=cmd|'/c calc'!A1", "+1+1", "@SUM(A1)", "-x", "\t=1", "  =1", "\uff1d1", "'=1", "''-"]
)
def test_no_cell_of_the_results_is_a_formula_and_each_reads_back_as_it_was(text, tmp_path):
    path = tmp_path / "results.csv"
    content = run_rows.as_csv([row("a", 0, None, test_loss=-0.5, method=text)])
    path.write_text(content, encoding="utf-8", newline="")
    assert not re.search(r'[,\n]"?\s*[=+@\uff1d]', content)
    (again,) = run_rows.read_csv(path)
    assert again["method"] == text
    # A number that is negative is one still.
    assert again["test_loss"] == -0.5
    assert ",-0.5," in content


def test_a_row_says_of_a_run_what_its_public_files_say(make_run):
    extra = {"tune": {"selection": "public", "score": "auc", "search_seeds": [3, 5]}}
    run = make_run(rounds=2, clients=4, randomness="reproducible", spec_extra=extra)
    lines = [json.loads(one) for one in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {
        "test_accuracy": 0.75, "test_loss": 0.5, "validation_accuracy": 0.7, "test_auc": 0.9,
        "train_loss": 0.25, "test_rmse": None, "bytes_up": 5000,
    }  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    claim = json.loads((run / "ledger.jsonl").read_text().splitlines()[-1])
    digest = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    found = run_rows.row_of(run)
    assert list(found)[: len(run_rows.COLUMNS)] == list(run_rows.COLUMNS)
    # Three lines of a quarter of a second each: whole seconds, rounded up.
    assert found == {
        "run": "quickstart-20261121T092127Z-1a2b3c4d", "created": "2026-11-21T09:21:27Z",
        # The audit judged the metrics as they were.
        "audit": "NOT AUDITED", "signatures": "unsigned",
        "algorithm": "dp-fedadamw", "model": "mlp", "dataset": "digits", "unit": "record",
        "adjacency": "add-remove", "noise_added_by": None, "randomness": "reproducible",
        "clipping_norm": 1.0, "noise_multiplier": 2.5, "delta": 1e-5,
        "epsilon_server_worst_case": claim["server_worst_case"]["epsilon"]["pld"],
        "epsilon_third_party": claim["third_party"]["epsilon"]["pld"],
        "rounds": 2, "clients": 4, "clients_per_round": 2, "local_steps": 5,
        "test_accuracy": 0.75, "test_loss": 0.5, "bytes_up": 9656 * 2 + 5000,
        "bytes_down": 9672 * 2 * 2, "seconds": 1.0, "model_sha256": digest,
        "tune": "public", "tune_score": "auc", "validation_accuracy": 0.7, "tune_seeds": "3, 5",
        "run_seed": 0, "test_auc": 0.9, "train_loss": 0.25, "test_rmse": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("third", "worst", "words"),
    [
        (20.0, 20.0, "PASS"),
        (20.5, 1.0, "NO MEANINGFUL PROTECTION · PASS"),
        (8.0, 20.5, "NO MEANINGFUL PROTECTION AGAINST THE SERVER · PASS"),
        (None, None, "PASS"),
        ("30", "30", "PASS"),
    ],
)
def test_a_row_whose_epsilon_protects_nobody_is_judged_so(third, worst, words):
    judged = {"audit": "PASS", "epsilon_third_party": third, "epsilon_server_worst_case": worst}
    assert run_rows.judged(judged) == words


BASE = "Majority rate: always giving the most frequent answer has an accuracy of"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ([], []),
        ([("a", 0.5, [None])], []),
        ([("a", 0.9, [0.5, None])], [f"{BASE} 50.0 %."]),
        ([("a", 0.5, [0.5])], [f"{BASE} 50.0 %. No better than that by accuracy: a."]),
        (
            [("a", 0.55, [0.5, 0.6]), ("b", 0.55, []), ("c", None, [0.5]), ("a", 0.1, [0.5])],
            [f"{BASE} 50.0 % to 60.0 %. No better than that by accuracy: a, b."],
        ),
        ([("a", 0.55, [0.5]), ("b", 0.65, [0.6])], [f"{BASE} 50.0 % to 60.0 %."]),
    ],
)
def test_what_is_no_better_than_the_most_frequent_answer_is_named_once(named, said):
    assert run_rows.against_majority(named) == said


def test_columns_are_the_sweeps_own_then_those_of_all_and_then_what_some_rows_say():
    rows = [row("a", 0, 0.5, method="x"), row("b", 1, 0.5, width=3, test_auc=None, candidates=4)]
    names = run_rows.columns_of(iter(rows))
    assert names[:4] == ["cell", "method", "width", "seed"]
    middle = [*run_rows.COLUMNS, *run_rows.SEARCH, *run_rows.MACHINE]
    assert names[4:] == middle
    assert run_rows.columns_of([row("a", 0, 0.5, test_auc=0.0)])[-1] == "test_auc"
    assert run_rows.columns_of([]) == ["cell", "seed", *run_rows.COLUMNS, *run_rows.MACHINE]


def test_a_table_is_written_with_whole_numbers_floats_and_texts_as_they_are(tmp_path):
    path = tmp_path / "results.csv"
    written = row("a", 3, 0.1 + 0.2, rounds=20, algorithm="dp, x", run_seed=2**53 + 1)
    path.write_text(run_rows.as_csv([written]), encoding="utf-8")
    assert "0.30000000000000004" in path.read_text()
    (read,) = run_rows.read_csv(path)
    assert (read["seed"], read["rounds"], read["run_seed"]) == (3, 20, 2**53 + 1)
    assert (read["test_accuracy"], read["algorithm"], read["created"]) == (0.1 + 0.2, "dp, x", None)
    # Empty lines are none.
    path.write_text(path.read_text() + "\n")
    assert run_rows.read_csv(path) == [read]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no table of a sweep's results (not enough values"),
        (b"cell,seed\xff", "cannot be read (it is not UTF-8)"),
        (b"a,b\n1,2\n", "is no table of a sweep's results; it lacks the column cell"),
        (b"cell,b\n1,2\n", "is no table of a sweep's results; it lacks the column seed"),
    ],
)
def test_a_file_that_is_no_table_is_named_with_what_it_lacks(content, said, tmp_path):
    path = tmp_path / "results.csv"
    path.write_bytes(content)
    with pytest.raises(SourceError) as refusal:
        run_rows.read_csv(path)
    assert str(refusal.value).startswith(f"{path}: {said}")
    whole = run_rows.as_csv([row("a", 0, 0.5), row("b", 1, 0.5)]).replace("b,1,", "b,1.5,")
    path.write_text(whole)
    with pytest.raises(SourceError, match=r"results\.csv, line 3: seed: found 1\.5; give a number"):
        run_rows.read_csv(path)


def test_a_folder_that_is_no_run_or_measured_nothing_is_refused_by_its_path(make_run, tmp_path):
    with pytest.raises(SourceError) as refusal:
        run_rows.read(tmp_path, "internal")
    assert str(refusal.value) == (
        f"{tmp_path}: neither spec.yaml nor ledger.jsonl is in it; give a run's folder"
    )
    run = make_run(rounds=1)
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(SourceError) as refusal:
        run_rows.read(run, "internal")
    assert str(refusal.value) == f"{run}: metrics.jsonl: is empty"
    (run / "metrics.jsonl").unlink()
    with pytest.raises(SourceError) as refusal:
        run_rows.read(run, "internal")
    assert str(refusal.value) == f"{run}: metrics.jsonl: missing"
    (run / "spec.yaml").unlink()
    with pytest.raises(SourceError) as refusal:
        run_rows.read(run, "internal")
    assert str(refusal.value) == f"{run}: spec.yaml: missing"
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ReportError) as both:
        run_rows.read_all([nowhere, run, nowhere], "internal")
    first, second = str(both.value).split("\n")
    assert first.startswith(f"{nowhere}: ")
    assert second == f"{run}: spec.yaml: missing"


def test_a_run_given_twice_is_read_once_and_runs_come_in_the_order_of_their_names(make_run):
    runs = [make_run(name, rounds=1, identifier=name * 8) for name in ("b", "a")]
    copy = runs[0].with_name("copy")
    shutil.copytree(runs[0], copy)
    found, notes = run_rows.read_all([*runs, copy, runs[0]], "internal")
    assert [one.path for one in found] == runs[::-1]
    assert notes == [f"{found[1].run} was given more than once and counts once."]
