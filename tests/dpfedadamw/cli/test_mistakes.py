"""What people type wrongly is told in one line each, as it is written down, and leaves nothing."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import yaml

from dpfedadamw import cli
from dpfedadamw import spec as specs
from tests.dpfedadamw.cli import mistakes


@pytest.mark.filterwarnings("ignore")
def test_forty_mistakes_get_the_messages_that_are_written_down():
    golden = mistakes.GOLDEN.read_text(encoding="utf-8")
    assert mistakes.listing() == golden, "python -m tests.dpfedadamw.cli.mistakes writes it again"
    answers = [one.splitlines() for one in golden.strip().split("\n\n")]
    assert len(answers) == len(mistakes.MISTAKES) + len(mistakes.TABLES)
    assert len(mistakes.MISTAKES) >= 40
    assert len(mistakes.TABLES) >= 80
    for _, *message, code in answers:
        assert (len(message), code) == (1, "  [2]")


def command(capsys, *arguments: str) -> tuple[object, str]:
    """A command's exit code and what it printed."""
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    return ended.value.code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((), ("digits", "mlp", "dp-fedadamw", 4.0)),
        (("--unit", "client", "--epsilon", "2"), ("digits", "mlp", "dp-fedavg", 2.0)),
        (("--unit", "none"), ("digits", "mlp", "fedadamw", None)),
        (
            ("--data", "t.tsv", "--numbers", "age", "--client", "who", "--model", "nets:Net"),
            ("table", "python", "dp-fedadamw", 4.0),
        ),
        (("--data", "t.tsv", "--unit", "client"), ("table", "mlp", "dp-fedavg", 4.0)),
        (("--data", "r.npz", "--model", "mlp"), ("arrays", "mlp", "dp-fedadamw", 4.0)),
    ],
)
def test_init_writes_a_spec_that_is_valid(flags, found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n}\t{'ab'[n % 2]}\t{n % 3}\t{n // 100}\n" for n in range(200)]
    (tmp_path / "t.tsv").write_text("age\tward\tlabel\twho\n" + "".join(rows))
    numbers = np.arange(2000.0).reshape(500, 4)
    tests = {"x_test": numbers, "y_test": np.arange(500) % 2}
    np.savez(tmp_path / "r.npz", x_train=numbers, y_train=np.arange(500) % 2, **tests)
    code, printed = command(capsys, "init", "new.yaml", *flags)
    assert code == 0
    assert "dpfedadamw run new.yaml" in printed
    spec = specs.load("new.yaml")
    target = getattr(spec.privacy, "target_epsilon", None)
    assert (spec.data.dataset, spec.model.name, spec.algorithm.name, target) == found


@pytest.fixture
def stays(tmp_path, monkeypatch):
    """The analyst's raw table and its dictionary, a tenth of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runpy.run_path(str(Path(__file__).parents[3] / "docs/stays.py"))["write"](tmp_path, 2000)


def test_init_reads_a_raw_table_and_its_spec_runs(stays, tmp_path, capsys):
    table = ("--data", "stays.csv", "--label", "outcome", "--client", "hospital")
    code, printed = command(capsys, "init", "s.yaml", *table, "--epsilon", "3")
    assert code == 0
    assert "patient_id   identifier" in printed
    assert "look at: values of patient_id occur in several rows" in " ".join(printed.split())
    assert command(capsys, "spec", "validate", "s.yaml")[0] == 0
    given = ("--dictionary", "dictionary.csv", "--bounds", "crp=0:500", "--categories", "sex=f,m,d")
    code, printed = command(capsys, "init", "d.yaml", *table, "--epsilon", "3", *given, "--json")
    assert code == 0
    told = json.loads(printed)
    columns = {one["name"]: one for one in told["spec"]["data"]["columns"]}
    assert (columns["crp"]["high"], columns["sex"]["categories"]) == (500.0, ["f", "m", "d"])
    assert told["spec"] == yaml.safe_load((tmp_path / "d.yaml").read_text())
    spec = specs.load("d.yaml")
    assert (spec.data.clients, spec.data.decimal) == (7, "comma")
    assert spec.privacy.target_epsilon == 3.0
    short = ("--set", "federation.rounds=2", "--replay", "0", "--json")
    code, printed = command(capsys, "run", "d.yaml", *short)
    assert (code, json.loads(printed)["verdict"]) == (0, "PASS")


def test_init_of_a_table_without_labels_in_some_rows_leaves_them_out_and_says_so(
    stays, tmp_path, capsys
):
    text = (tmp_path / "stays.csv").read_text("utf-8-sig")
    (tmp_path / "gaps.csv").write_text(text.replace(";0\n", ";\n", 3).replace(";0\r\n", ";\r\n", 3))
    flags = ("--data", "gaps.csv", "--label", "outcome", "--client", "hospital")
    code, printed = command(capsys, "init", "s.yaml", *flags)
    assert (code, "some rows have no outcome" in printed) == (0, True)
    assert specs.load("s.yaml").data.unlabelled == "leave_out"


def test_a_path_cannot_add_a_line_to_the_spec(stays, tmp_path, capsys):
    named = "stays.csv\nseed: 7\n.csv"
    (tmp_path / "stays.csv").rename(tmp_path / named)
    flags = ("--data", named, "--label", "outcome", "--client", "hospital")
    assert command(capsys, "init", "s.yaml", *flags)[0] == 0
    spec = specs.load("s.yaml")
    assert (spec.data.path, spec.data.seed) == (named, 0)
    assert "\nseed" not in (tmp_path / "s.yaml").read_text()


def test_init_asks_for_what_a_table_does_not_say(stays, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = {
        "the column of the class": "outcome",
        "the column that names the client": "hospital",
        "bounds of age": "0:110",
        "bounds of admitted": "2019-01-01:2024-12-31",
        "all categories of sex": "f, m",
        "target epsilon": "2",
    }

    def answer(question: str, default: str, **_: object) -> str:
        return next(
            (said for begin, said in answers.items() if question.startswith(begin)), default
        )

    monkeypatch.setattr("typer.prompt", answer)
    assert command(capsys, "init", "s.yaml", "--data", "stays.csv")[0] == 0
    spec = specs.load("s.yaml")
    columns = {one.name: one for one in spec.data.columns}
    assert (columns["age"].high, columns["crp"].scale) == (110.0, "bins")
    assert (columns["sex"].categories, columns["ward"].buckets) == (("f", "m"), 64)
    assert columns["admitted"].low == "2019-01-01"
    assert spec.privacy.target_epsilon == 2.0
    answers["target epsilon"] = "two"
    assert command(capsys, "init", "t.yaml", "--data", "stays.csv")[0] == 2


def test_init_asks_in_a_terminal_and_never_writes_what_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    answers = {"data": "digits", "model": "cnn", "what": "record", "algorithm": "dp-fedavg"}
    monkeypatch.setattr(
        "typer.prompt", lambda text, **_: answers.get(text.split()[0].strip(":"), "3")
    )
    assert command(capsys, "init")[0] == 0
    spec = specs.load("spec.yaml")
    assert (spec.model.name, spec.algorithm.name, spec.privacy.target_epsilon) == (
        "cnn",
        "dp-fedavg",
        3.0,
    )
    answers["model"] = "lstm"
    assert command(capsys, "init", "wrong.yaml")[0] == 2
    assert not (tmp_path / "wrong.yaml").exists()


def test_claim_is_a_command_and_the_old_form_says_the_same(capsys):
    new = command(capsys, "claim", "ali-dpfl-epsilon-2", "--json")
    old = command(capsys, "audit", "--paper-claim", "ali-dpfl-epsilon-2", "--json")
    assert new == old
    assert json.loads(new[1])["verdict"]
