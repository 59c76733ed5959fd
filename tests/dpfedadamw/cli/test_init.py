"""The whole spec that `init` writes, by what it is given, and what it shows of a table."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dpfedadamw import experiment
from dpfedadamw.cli import init_words
from dpfedadamw.cli.init_table import Wanted, describe
from tests.runs import call

EMPTY = ["NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "?"]
BINS = {"low": -1e6, "high": 1e6, "scale": "bins"}
NOTHING = Wanted(None, None, None, (), (), None, None, None, (), (), ())


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred rows of two hospitals, of which the second has 40; the specs are not checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "check", lambda spec: None)
    rows = [
        f"{20 + n % 7}.5,{'xyz'[n % 3]},{n % 2},{'AB'[n % 5 // 4]},p{n % 50}\n" for n in range(200)
    ]
    (tmp_path / "t.csv").write_text("age,ward,label,who,case\n" + "".join(rows))
    (tmp_path / "images").mkdir()
    numbers = np.zeros((4, 2))
    np.savez(tmp_path / "r.NPZ", x_train=numbers, y_train=numbers[:, 0])
    Path("r.NPZ.npz").rename("r.NPZ")


def written(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    """The spec of a command, which is the file's."""
    assert call("init", "new.yaml", *flags, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == "new.yaml"
    assert told["spec"] == yaml.safe_load(Path("new.yaml").read_text())
    return dict(told["spec"])


def number(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "kind": "number", **(keys or BINS)}


def category(name: str, *words: str) -> dict[str, Any]:
    known = {"categories": [*words], "unseen": "other"} if words else {"buckets": 64}
    return {"name": name, "kind": "category", **known}


OF_A_TABLE = {"dataset": "table", "path": "t.csv", "label": "label"}
COLUMNS = [number("age"), category("ward"), category("who"), category("case")]
IID = {"clients": 10, "partition": {"kind": "iid"}}
BY_WHO = {"clients": 2, "partition": {"kind": "column", "column": "who"}}


@pytest.mark.parametrize(
    ("flags", "data"),
    [
        ("", {"columns": COLUMNS, "missing_values": EMPTY, **IID}),
        (
            "--clients 4 --leave-out case --leave-out ward --bounds age=0:99.5",
            {
                "columns": [number("age", low=0.0, high=99.5), category("who")],
                "missing_values": EMPTY,
                "clients": 4,
                "partition": {"kind": "iid"},
            },
        ),
        (
            "--client who --leave-out case --classes 1,0,NA",
            {
                "columns": COLUMNS[:2],
                "missing_values": [word for word in EMPTY if word != "NA"],
                "classes": ["1", "0", "NA"],
                **BY_WHO,
            },
        ),
        (
            "--client who --clients 2 --person case --unit person",
            {"columns": COLUMNS[:2], "missing_values": EMPTY, "person": "case", **BY_WHO},
        ),
        (
            "--leave-out case --leave-out who --categories ward=x,?,",
            {
                "columns": [number("age"), category("ward", "x", "?")],
                "missing_values": EMPTY[:-1],
                **IID,
            },
        ),
        ("--numbers age --client who", {"numbers": ["age"], **BY_WHO}),
        ("--text ward --text case", {"text": ["ward", "case"], **IID}),
    ],
)
def test_the_data_of_a_table_are_named_by_its_form_and_by_what_is_told_of_it(
    flags: str, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model = () if "--text" not in flags else ("--model", "roberta-base")
    assert written(capsys, "--data", "t.csv", *flags.split(), *model)["data"] == {
        **OF_A_TABLE,
        **data,
    }


@pytest.mark.parametrize(
    ("flags", "data"),
    [
        ("", {"dataset": "digits", "clients": 10}),
        ("--data r.NPZ --clients 3", {"dataset": "arrays", "path": "r.NPZ", "clients": 3}),
        ("--data images", {"dataset": "image-folder", "path": "images", "clients": 10}),
    ],
)
def test_what_is_no_table_is_divided_so_that_each_client_has_a_batch(
    flags: str, data: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(capsys, *flags.split())["data"] == {
        **data,
        "partition": {"kind": "dirichlet", "minimum_records": 32},
    }
    Path("new.yaml").unlink()
    assert written(capsys, *flags.split(), "--unit", "client")["data"] == data


def poisson(batch: int) -> dict[str, Any]:
    return {"sampling": {"kind": "poisson", "expected_batch_size": batch}}


PRIVATE = {"clipping_norm": 1.0, "target_epsilon": 4.0, "delta": 1e-5}
MLP, SMALL_MLP = {"name": "mlp"}, {"name": "mlp", "hidden": []}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "",
            {
                "model": MLP,
                "algorithm": {"name": "dp-fedadamw"},
                "federation": {"rounds": 20, "clients_per_round": 10},
                "privacy": {"unit": "record", **PRIVATE, **poisson(32)},
            },
        ),
        (
            "--unit client --clients 9 --rounds 7 --epsilon 2.5 --delta 0.001",
            {
                "model": MLP,
                "algorithm": {"name": "dp-fedavg"},
                "federation": {"rounds": 7, "clients_per_round": 4},
                "privacy": {
                    "unit": "client", "clipping_norm": 1.0, "target_epsilon": 2.5, "delta": 0.001,
                },
            },
        ),
        (
            "--unit none --model nets:Net",
            {
                "model": {"name": "python", "target": "nets:Net"},
                "algorithm": {"name": "fedadamw"},
                "federation": {"rounds": 20, "clients_per_round": 10},
                "privacy": {"unit": "none"},
            },
        ),
        (
            # A quarter of the records of the smallest client, which has 40.
            "--data t.csv --client who",
            {
                "model": SMALL_MLP,
                "algorithm": {"name": "dp-fedadamw", "learning_rate": 0.1},
                "federation": {"rounds": 20, "clients_per_round": 2},
                "privacy": {"unit": "record", **PRIVATE, **poisson(10)},
            },
        ),
        (
            # 128 at most, of the whole table.
            "--data big.csv --clients 1 --model cnn --algorithm dp-fedsam",
            {
                "model": {"name": "cnn"},
                "algorithm": {"name": "dp-fedsam"},
                "federation": {"rounds": 20, "clients_per_round": 1},
                "privacy": {"unit": "record", **PRIVATE, **poisson(128)},
            },
        ),
        (
            # People are fewer than their records: a 32nd of 992, four records of each.
            "--data big.csv --clients 2 --person a --unit person --clients-per-person 2",
            {
                "model": SMALL_MLP,
                "algorithm": {"name": "dp-fedadamw", "learning_rate": 0.1},
                "federation": {"rounds": 20, "clients_per_round": 2, "clients_per_person": 2},
                "privacy": {
                    "unit": "person", **PRIVATE, "records_per_person": 4, **poisson(31),
                },
            },
        ),
        (
            # One at least: the smallest of a hundred clients has two records.
            "--data t.csv --clients 100",
            {
                "model": SMALL_MLP,
                "algorithm": {"name": "dp-fedadamw", "learning_rate": 0.1},
                "federation": {"rounds": 20, "clients_per_round": 100},
                "privacy": {"unit": "record", **PRIVATE, **poisson(1)},
            },
        ),
    ],
)  # fmt: skip
def test_what_nobody_says_of_training_suits_the_unit_and_the_data(
    flags: str, expected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("big.csv").write_text(
        "a,b,label\n" + "".join(f"{n % 300},{n % 7}.5,{n % 2}\n" for n in range(1984))
    )
    found = written(capsys, *flags.split())
    assert {name: found[name] for name in expected} == expected
    assert (found["version"], found["name"]) == (1, "new")


def test_a_name_that_is_no_word_is_not_the_spec_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", "my spec.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out)["spec"]["name"] == "experiment"


def test_the_command_that_runs_the_spec_allows_its_code_and_a_spec_without_privacy_has_no_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for number, (flags, cost, run) in enumerate(
        (
            ("", True, ""),
            ("--model nets.deep:Net", True, " --allow-code nets.deep"),
            ("--unit none", False, ""),
        )
    ):
        assert call("init", f"s{number}.yaml", *flags.split()) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"wrote s{number}.yaml"
        assert lines[-1].endswith(f"dpfedadamw run s{number}.yaml{run}")
        assert any(line.endswith(f"dpfedadamw epsilon s{number}.yaml") for line in lines) == cost


def test_data_that_are_not_there_leave_no_spec(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiment, "check", lambda spec: "nowhere.npz is not here")
    assert call("init", "new.yaml", "--data", "nowhere.npz") == 2
    assert "--data nowhere.npz" in capsys.readouterr().err
    assert not Path("new.yaml").exists()


def test_a_mistake_is_named_by_its_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--rounds", "0", "--clients", "0")
    assert call("init", "new.yaml", "--data", "r.NPZ", *flags) == 2
    lines = capsys.readouterr().err.splitlines()
    assert {line.partition(":")[0] for line in lines} == {"--rounds", "--clients"}
    assert len(set(lines)) == len(lines)


def test_a_folder_that_cannot_be_written_is_told_and_an_existing_file_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call("init", "nowhere/new.yaml") == 2
    assert "nowhere/new.yaml: cannot be written" in capsys.readouterr().err
    Path("new.yaml").write_text("mine")
    assert call("init", "new.yaml") == 2
    assert Path("new.yaml").read_text() == "mine"
    assert stat.S_ISREG(Path("new.yaml").stat().st_mode)


def test_a_table_is_shown_column_by_column_with_what_becomes_of_each() -> None:
    wanted = Wanted(
        None, "who", "case", (), (), None, None, None, ("age=0:1e5",), ("ward=x,y",), ()
    )
    found = describe("t.csv", wanted, None, None)
    assert found.smallest == 40
    assert "5 columns, 200 records of 2 clients, the smallest with 40" in found.summary
    assert found.columns == (
        ("age", "number", "0 to 100,000 (given)"),
        ("ward", "category", "x, y, other (given)"),
        ("label", "boolean", "what the model predicts"),
        ("who", "category", "whose a record is"),
        ("case", "category", "whom a record is about"),
    )


def test_columns_that_are_not_read_or_read_unchanged_are_shown_as_such() -> None:
    wanted = Wanted("label", None, None, (), ("age",), None, None, None, (), (), ())
    found = describe("t.csv", wanted, 8, None)
    assert found.smallest == 25
    assert [row[2] for row in found.columns] == [
        "read as it stands", "not read", "what the model predicts", "not read", "not read",
    ]  # fmt: skip


def test_a_column_with_empty_cells_or_left_out_is_shown_so() -> None:
    rows = [f"{n if n % 5 else ''},same,{n % 2}\n" for n in range(60)]
    Path("gaps.csv").write_text("age,one,label\n" + "".join(rows))
    found = describe("gaps.csv", NOTHING, None, None)
    assert [row[:2] for row in found.columns] == [
        ("age", "number, some empty"), ("one", "constant"), ("label", "boolean"),
    ]  # fmt: skip
    assert found.columns[1][2].startswith("left out: ")
    assert found.section["columns"] == [{**number("age"), "indicator": True}]


def test_an_empty_cell_is_found_wherever_in_the_table_it_is() -> None:
    rows = [f"{n % 90}.5,{n % 2}\n" for n in range(50_000)]
    Path("late.csv").write_text("age,label\n" + "".join(rows) + ",0\n,1\n")
    found = describe("late.csv", NOTHING, None, None)
    assert found.section["columns"] == [{**number("age"), "indicator": True}]
    with pytest.raises(BaseException, match="--numbers age: has empty cells"):
        describe("late.csv", replace(NOTHING, numbers=("age",)), None, None)


def test_clients_are_those_that_have_a_record_with_a_label() -> None:
    rows = [f"{n}.5,{n % 2 if n % 3 else ''},{'AB'[n % 2]}\n" for n in range(60)]
    rows += ["1.5,,C\n"] * 9
    Path("u.csv").write_text("age,label,who\n" + "".join(rows))
    found = describe("u.csv", replace(NOTHING, client="who"), None, None)
    assert (found.section["clients"], found.smallest) == (2, 20)
    assert "40 records of 2 clients, the smallest with 20" in found.summary
    assert found.section["unlabelled"] == "leave_out"


@pytest.mark.parametrize("reading", ["--numbers age", "--text ward"])
@pytest.mark.parametrize(
    "option",
    ["--dictionary d.csv", "--public-sample t.csv", "--bounds age=0:110", "--categories ward=x",
     "--leave-out case"],
)  # fmt: skip
def test_what_is_told_of_preparing_columns_is_refused_where_none_is_prepared(
    option: str, reading: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("init", "new.yaml", "--data", "t.csv", *reading.split(), *option.split()) == 2
    name = reading.split()[0]
    assert capsys.readouterr().err == (
        f"{option.split()[0]}: is for columns that are prepared, and {name} names all that are "
        "read; leave one of the two out\n"
    )
    assert not Path("new.yaml").exists()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"low": 0.0, "high": 1234567.5}, "0 to 1,234,567.5"),
        ({"low": -1e6, "high": 1e6, "scale": "bins"}, "-1,000,000 to 1,000,000, in bins"),
        ({"low": "1900-01-01", "high": "2099-12-31"}, "1900-01-01 to 2099-12-31"),
        ({"buckets": 64}, "64 hash buckets"),
        ({"categories": ["f", "m"]}, "f, m"),
        ({"categories": ["f", "m"], "unseen": "other"}, "f, m, other"),
        # Sixty characters are too many for a cell.
        ({"categories": ["a" * 28, "b" * 29]}, f"{'a' * 28}, {'b' * 29}"),
        ({"categories": ["a" * 28, "b" * 30], "unseen": "other"}, "2 categories, other"),
        ({}, ""),
    ],
)
def test_the_constants_of_a_column_are_told_in_words(keys: dict[str, Any], words: str) -> None:
    assert init_words.constants(keys) == words


def asked(table: str, answers: dict[str, str], wanted: Wanted = NOTHING) -> Any:
    """What comes of a table and of answers, by the word that a question names."""
    questions: list[str] = []

    def ask(question: str, usual: str) -> str:
        questions.append(question)
        return next((said for word, said in answers.items() if word in question), usual)

    return describe(table, wanted, None, ask), questions


def test_in_a_terminal_label_client_bounds_and_categories_are_asked_for() -> None:
    Path("u.csv").write_text(Path("t.csv").read_text().replace("label", "outcome", 1))
    answers = {"to predict": "outcome", "client": "who", " age": "0:90", " ward": "x, y,"}
    found, questions = asked("u.csv", answers)
    assert len(questions) == 5
    assert found.section["label"] == "outcome"
    assert found.section["partition"] == {"kind": "column", "column": "who"}
    assert found.section["columns"] == [
        number("age", low=0.0, high=90.0), category("ward", "x", "y"), category("case"),
    ]  # fmt: skip


def test_nothing_is_asked_for_that_is_told_or_that_has_no_constants() -> None:
    Path("b.csv").write_text("smoker,label\n" + "yes,0\nno,1\n" * 30)
    found, questions = asked("b.csv", {})
    assert (found.section["clients"], len(questions)) == (10, 1)
    wanted = Wanted("label", "who", None, (), (), None, None, None, (), (), ("age", "ward", "case"))
    with pytest.raises(BaseException, match="no column is left"):
        asked("t.csv", {}, wanted)
    wanted = Wanted(
        "label", "who", None, (), (), None, None, None, ("age=1:2",), (), ("ward", "case")
    )
    found, questions = asked("t.csv", {}, wanted)
    assert (found.section["columns"], questions) == ([number("age", low=1.0, high=2.0)], [])
