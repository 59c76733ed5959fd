"""What Python is given besides a spec, and what a notebook shows of rows: no run is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from dpfedadamw.algorithms.registry import ALGORITHMS
from dpfedadamw.api import specs
from dpfedadamw.api.options import Given, changes_by_objects
from dpfedadamw.api.planning import Cost, calibrate, epsilon, frontier
from dpfedadamw.api.tables import Table, html_of
from dpfedadamw.errors import DpfedadamwError, SpecError
from dpfedadamw.spec.yamltext import parse, write

NET = nn.Linear(2, 2)


def loss(outputs, targets):
    return outputs


def test_an_option_that_there_is_not_is_named_with_those_that_there_are() -> None:
    with pytest.raises(TypeError, match="no option 'modle'; there are model, loss, data, person"):
        Given.of({"modle": NET})
    given = Given.of({"device": "cpu", "engine": "loop"})
    assert (given.device, given.engine, given.callbacks, given.model) == ("cpu", "loop", (), None)


def test_what_a_run_is_computed_and_signed_with_is_passed_on_as_the_command_line_does() -> None:
    settings = Given(
        device="cpu", engine="vmap", escrow="key", trackers=["mlflow"],
        trainer_key="a.pem", auditor_key="b.pem", timestamp="https://tsa.test",
    ).settings  # fmt: skip
    assert settings.escrow == Path("key")
    assert (settings.device, settings.engine, settings.trackers) == ("cpu", "vmap", ["mlflow"])
    assert (settings.trainer_key, settings.auditor_key) == ("a.pem", "b.pem")
    assert settings.timestamp == "https://tsa.test"
    least = Given().settings
    assert (least.device, least.engine, least.escrow, least.timestamp) == (
        "auto",
        "auto",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("spec", "given", "changes"),
    [
        ({}, {}, []),
        ({}, {"model": NET}, ["model={name: module}"]),
        ({"model": {"name": "module", "classes": 2}}, {"model": NET}, []),
        ("quickstart", {"model": NET, "loss": loss}, ["model={name: module}"]),
        ("quickstart", {"data": [1]}, ["data.dataset=given"]),
        (
            {},
            {"model": NET, "data": [1], "person": [1]},
            ["model={name: module}", "data.dataset=given", "data.person=person"],
        ),
    ],
)
def test_what_is_passed_takes_the_place_of_what_a_spec_names(spec, given, changes) -> None:
    passed = {"model": None, "loss": None, "data": None, **given}
    assert changes_by_objects(spec, **passed) == changes


@pytest.mark.parametrize(
    ("spec", "given", "message"),
    [
        ({}, {"person": [1]}, "^person: belongs to records passed from Python"),
        ({}, {"loss": loss}, "^loss: belongs to a module, model=net"),
        ({"model": {"name": "mlp"}}, {"model": NET}, "^model: the spec has a model"),
        ({"model": "mlp"}, {"model": NET}, "^model: the spec has a model"),
    ],
)
def test_what_belongs_to_something_that_is_not_passed_is_refused(spec, given, message) -> None:
    with pytest.raises(DpfedadamwError, match=message):
        changes_by_objects(spec, **{"model": None, "loss": None, "data": None, **given})


INCOMPLETE = """
data: {dataset: digits, clients: 10, partition: {kind: iid}}
model: {name: module, replace_batch_norm: group_norm}
algorithm: {name: mine, learning_rate: 0.125, schedule: constant}
privacy: {unit: record, clipping_norm: 1.0, delta: 1.0e-5,
  sampling: {kind: poisson, expected_batch_size: 40}}
"""
TARGET = ["privacy.target_epsilon=4"]


@pytest.mark.parametrize("form", ["file", "mapping"])
def test_what_a_spec_says_of_what_is_passed_counts_before_the_spec_is_complete(form, tmp_path):
    """A file that was complete with its changes alone lost its sections, and no word was said."""
    path = tmp_path / "spec.yaml"
    path.write_text(INCOMPLETE)
    spec = path if form == "file" else parse(INCOMPLETE, "").value
    given = Given(model=NET, algorithm=replace(ALGORITHMS["dp-fedavg"], name="mine"))
    with given.handed_over():
        found = given.read(spec, TARGET)
        assert (found.algorithm.learning_rate, found.algorithm.schedule) == (0.125, "constant")
        assert found.model.replace_batch_norm == "group_norm"
        again = given.read(found, ["algorithm.learning_rate=0.5"])
        assert (again.algorithm.learning_rate, again.algorithm.schedule) == (0.5, "constant")
        path.write_text(INCOMPLETE.replace("mine", "dp-fedadamw").replace("module", "mlp"))
        other = given.read(path, TARGET)
        assert (other.algorithm.name, other.model.name) == ("mine", "module")
        assert other.algorithm.learning_rate != 0.125
    whole = parse(INCOMPLETE.replace("mine", "dp-fedavg"), "").value
    path.write_text(write(whole))
    assert changes_by_objects(path, NET, None, None, None, TARGET) == []


def test_measures_are_named_in_the_spec_that_is_run() -> None:
    given = Given(metrics={"top2": lambda outputs, targets: 0.0})
    assert given.read("quickstart", []).to_mapping()["evaluation"]["metrics"] == ["top2"]
    assert not Given().read("quickstart", []).evaluation.metrics


def test_a_spec_is_a_file_a_name_a_dictionary_or_one_that_was_read() -> None:
    read = specs.read("quickstart", ["federation.rounds=3"])
    assert read.federation.rounds == 3
    assert specs.read(read) == read == specs.read(read.to_mapping())
    assert specs.read(read, ["federation.rounds=4"]).federation.rounds == 4
    with pytest.raises(SpecError, match="nowhere"):
        specs.read("nowhere.yaml")


def test_a_cost_is_the_claim_of_the_view_that_the_spec_headlines() -> None:
    cost = epsilon("quickstart")
    assert cost.epsilon == pytest.approx(cost.claim["server_worst_case"]["epsilon"]["pld"])
    assert cost.delta == cost.claim["delta"] > 0.0
    assert epsilon("quickstart", ["federation.rounds=1"]).epsilon < cost.epsilon
    shown = Cost(1.23412, 1e-5, 2.5, {})._repr_html_()
    # ε is rounded up, so that no more is promised than was spent.
    assert "<tr><th>ε</th><td>1.235</td></tr>" in shown
    assert "<tr><th>δ</th><td>1e-05</td></tr><tr><th>σ</th><td>2.5</td></tr>" in shown


def test_what_keeps_to_a_target_is_a_spec_that_costs_no_more() -> None:
    found = calibrate("quickstart", 3.0, solve="noise", changes=["federation.rounds=2"])
    assert found.key == "privacy.noise_multiplier"
    assert 2.9 < found.epsilon <= 3.0
    assert found.spec["privacy"]["noise_multiplier"] == found.value
    assert found.spec["federation"]["rounds"] == 2
    assert epsilon(found.spec).epsilon == pytest.approx(found.epsilon)
    with pytest.raises(DpfedadamwError, match=r"^view 'everyone': must be one of server"):
        frontier("quickstart", 3.0, view="everyone")


ROWS = [{"name": "a<b", "epsilon": 1 / 3}, {"name": "c", "delta": None, "rounds": 20}]


def test_a_table_has_every_column_once_and_is_cut_like_a_list() -> None:
    table = Table(ROWS)
    assert table.columns == ["name", "epsilon", "delta", "rounds"]
    assert table.column("rounds") == [None, 20]
    assert (len(table), list(table), table[-1]) == (2, ROWS, ROWS[1])
    assert isinstance(table[1:], Table)
    assert table[1:].columns == ["name", "delta", "rounds"]
    assert repr(table) == "<Table of 2 rows: name, epsilon, delta, rounds>"
    with pytest.raises(KeyError, match="loss: no such column; there are name, epsilon"):
        table.column("loss")


def test_a_notebook_shows_rows_as_a_table_and_no_value_as_markup() -> None:
    assert Table(ROWS[:1])._repr_html_() == (
        "<table><tr><th>name</th><th>epsilon</th></tr>"
        "<tr><td>a&lt;b</td><td>0.333333</td></tr></table>"
    )
    assert html_of(("<x>",), [(None,)]) == (
        "<table><tr><th>&lt;x&gt;</th></tr><tr><td></td></tr></table>"
    )
    # Without heads the first value of a row is its head.
    assert html_of((), [("<σ>", 2)]) == "<table><tr><th>&lt;σ&gt;</th><td>2</td></tr></table>"
