"""``gate``: what an operator types, and one line for what is wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from dpfedadamw.extensions.gate import spending
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.extensions.gate.errors import Refused
from tests.dpfedadamw.extensions.gate.replies import ask
from tests.runs import call


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": np.zeros((3, 2), "f4")}, path)
    return path


def words(tmp_path, file, **changes):
    chosen = {
        "unit": "record", "shards": 5, "clip": 0.5, "epsilon": 2.0, "delta": 1e-5, "releases": 4,
        "model": file, "anchor": tmp_path / "anchor.json", **changes,
    }  # fmt: skip
    return [part for name, value in chosen.items() for part in (f"--{name}", str(value))]


def told(capsys, *arguments):
    assert call("gate", *map(str, arguments), "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_a_gate_that_was_begun_allows_as_many_releases_as_were_asked_for(tmp_path, model, capsys):
    made = told(capsys, "init", tmp_path / "gate", *words(tmp_path, model))
    settings = tmp_path / "gate" / "gate.yaml"
    assert len(settings.read_text("utf-8").splitlines()) <= 12
    assert told(capsys, "show", settings)["releases_left"] == 4
    gate = Gate.open(settings)
    for number in range(4):
        ask(gate, str(number), job=f"job-{number % 2}")
    with pytest.raises(Refused):
        ask(gate, "5")
    shown = told(capsys, "show", settings)
    assert (shown["releases"], shown["releases_left"]) == (4, 0)
    assert 1.99 < shown["epsilon"] <= 2.0
    assert {job: one["releases"] for job, one in shown["jobs"].items()} == {"job-0": 2, "job-1": 2}
    alone = spending.epsilon_of([made["noise_multiplier"]] * 2, 1e-5)
    assert shown["jobs"]["job-0"]["epsilon_alone"] == alone
    checked = told(capsys, "verify", settings)
    assert checked["holds"]
    assert [one["check"] for one in checked["checks"]] == [
        "chain", "signature", "sensitivity", "noise", "budget", "settings", "dp-accounting",
    ]  # fmt: skip


def test_a_ledger_beyond_its_budget_does_not_verify(gate, capsys):
    for number in range(3):
        ask(gate, str(number))
    settings = gate.settings.path
    assert call("gate", "verify", str(settings)) == 0
    settings.write_text(settings.read_text("utf-8").replace("epsilon: 1.8", "epsilon: 1.0"))
    assert call("gate", "verify", str(settings), "--json") == 1
    checks = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["checks"]
    assert [one["check"] for one in checks if not one["holds"]] == ["settings"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "none"}, "cannot be read as a .safetensors file"),
        ({"unit": "site"}, "must be 1 where the unit is the site"),
        ({"clip": 0}, "clip: found 0.0; must be from"),
        ({"epsilon": 0}, "--epsilon, --delta: must be above 0"),
        ({"epsilon": 1e-6, "releases": 100000}, "do not fit into ε"),
    ],
)
def test_a_wrong_option_is_one_line_and_begins_nothing(tmp_path, model, capsys, changes, said):
    assert call("gate", "init", str(tmp_path / "gate"), *words(tmp_path, model, **changes)) == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "gate").exists()


def test_a_gate_is_not_begun_twice(tmp_path, model, capsys):
    told(capsys, "init", tmp_path / "gate", *words(tmp_path, model))
    assert call("gate", "init", str(tmp_path / "gate"), *words(tmp_path, model)) == 2
    assert "a gate is begun once" in capsys.readouterr().err


def test_rows_are_divided_by_the_command(tmp_path, model, capsys):
    told(capsys, "init", tmp_path / "gate", *words(tmp_path, model))
    table = tmp_path / "t.csv"
    table.write_text("a,b\n" + "".join(f"{number},x\n" for number in range(100)), encoding="utf-8")
    found = told(capsys, "shards", tmp_path / "gate" / "gate.yaml", table, tmp_path / "out")
    assert sum(found["rows"]) == 100
    assert len(found["rows"]) == 5


def test_a_missing_gate_is_one_line(tmp_path, capsys):
    for name in ("show", "verify"):
        assert call("gate", name, str(tmp_path / "gate.yaml")) == 2
        assert "gate.yaml: cannot be read" in capsys.readouterr().err
