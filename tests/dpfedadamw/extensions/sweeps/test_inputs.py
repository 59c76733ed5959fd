"""What cells read is looked at once, before any of them is begun."""

from __future__ import annotations

import pytest

from dpfedadamw import experiment
from dpfedadamw.extensions.sweeps.folder import SweepError
from dpfedadamw.extensions.sweeps.inputs import check_inputs
from tests.runs import call
from tests.sweeps import BASE, swept

ABSENT = "{dataset: mnist, path: nowhere}"


def test_data_are_read_once_however_they_are_divided_and_whatever_the_seed(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(experiment, "read_inputs", lambda spec: read.append(spec.data.dataset))
    sweep = swept(
        tmp_path, "matrix: {data.clients: [4, 5], data.partition.alpha: [0.1, 1]}\nseeds: 3\n"
    )
    check_inputs(sweep.cells)
    assert (len(sweep.cells), read) == (12, ["digits"])


def test_seeds_of_the_data_are_read_alike_and_each_file_of_owners_by_itself(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(experiment, "read_inputs", lambda spec: read.append(spec.data.partition))
    seeds = "seeds: {numbers: 2, vary: [data, weights, run]}\n"
    check_inputs(swept(tmp_path, seeds).cells)
    assert len(read) == 1
    read.clear()
    kinds = "[{kind: column, file: a.txt}, {kind: column, file: b.txt}]"
    check_inputs(swept(tmp_path, f"matrix: {{data.partition: {kinds}}}\n{seeds}").cells)
    assert [one.file for one in read] == ["a.txt", "b.txt"]


def test_each_model_and_each_data_set_is_looked_at(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(experiment, "read_inputs", lambda spec: read.append(spec.model.hidden))
    check_inputs(swept(tmp_path, "matrix: {model.hidden: [[], [8]]}\nseeds: 2\n").cells)
    assert read == [(), (8,)]


def test_a_folder_that_is_not_there_is_said_once_and_nothing_is_written(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(f"{BASE}matrix: {{data: [{ABSENT}]}}\nseeds: 4\n")
    assert call("sweep", "s.yaml") == 2
    assert capsys.readouterr().err == "error: data.path: nowhere: there is no such folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_where_other_cells_could_run_it_is_said_how_many_cannot(tmp_path):
    sweep = swept(tmp_path, f"matrix: {{data: [{{dataset: digits}}, {ABSENT}]}}\nseeds: 2\n")
    with pytest.raises(SweepError) as caught:
        check_inputs(sweep.cells)
    assert str(caught.value) == (
        "data.path: nowhere: there is no such folder (2 of 4 cells read it; --only leaves them out)"
    )


def test_a_published_model_that_is_not_there_is_said_too(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.tsv").write_text("sentence\tlabel\n" + "good\t1\nbad\t0\n" * 40)
    text = (
        "matrix:\n  one:\n    label: [here]\n"
        "    data: [{dataset: table, path: texts.tsv, text: [sentence], label: label, "
        "clients: 5}]\n"
        "    model: [{name: transformers, source: models/none, length: 8}]\n"
    )
    with pytest.raises(SweepError, match=r"model\.source: there is no folder models/none; if"):
        check_inputs(swept(tmp_path, text).cells)


@pytest.mark.slow
def test_what_is_done_is_not_read_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one = BASE.replace("rounds: 4", "rounds: 1")
    (tmp_path / "s.yaml").write_text(f"{one}matrix: {{data.clients: [5]}}\n")
    assert call("sweep", "s.yaml") == 0
    monkeypatch.setattr(experiment, "read_inputs", lambda spec: pytest.fail("it is read again"))
    assert call("sweep", "s.yaml") == 0
