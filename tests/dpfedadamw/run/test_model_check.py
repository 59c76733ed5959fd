"""What `model check` says of a model: layers, engine, cost, and what is refused with its mend."""

from __future__ import annotations

import io
import itertools
import json
import math

import pytest
import torch
from rich.console import Console
from torch import nn

from dpfedadamw import api
from dpfedadamw.cli import display
from dpfedadamw.models.own.fitting import handed_over
from dpfedadamw.run import model_check
from dpfedadamw.run.model_check import ModelCheck, check_model
from tests.runs import small_spec

HANDED_OVER = ("model={name: module}",)


def checked(module: nn.Module, *changes: str, **more):
    with handed_over(module):
        return check_model(small_spec(overrides=(*HANDED_OVER, *changes)), **more)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(144, 10),
    )


def rows(found) -> dict[str, tuple[str, str]]:
    return {one.name: (one.how, one.note) for one in found.layers}


def test_a_layer_over_the_batch_is_refused_in_its_row_with_the_mend():
    found = checked(network())
    assert rows(found)["1"][0] == "refused"
    assert "model.replace_batch_norm: group_norm" in found.refused
    assert rows(found)["4"] == ("book-keeping", "")
    mended = checked(network(), "model.replace_batch_norm=group_norm")
    assert mended.refused is None
    assert rows(mended)["1"][0] == "book-keeping"
    assert rows(mended)["1"][1].startswith("becomes GroupNorm(2 groups)")
    assert rows(mended)["2"] == (
        "",
        "off: its masks would depend on the other records of the batch",
    )
    assert mended.trained == sum(one.parameters for one in mended.layers) == 40 + 8 + 1450
    assert mended.ratio > 0
    assert mended.records == 24


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(8, 4, batch_first=True)
        self.head = nn.Linear(4, 10)

    def forward(self, images):
        return self.head(self.layer(images[:, 0])[0][:, -1])


def test_every_engine_is_said_layer_by_layer():
    found = checked(Recurrent())
    assert (found.engine, rows(found)["layer"][0]) == ("opacus", "Opacus' cells")
    assert "no book-keeping: " in found.explanation
    assert {how for how, _ in rows(checked(Recurrent(), engine="loop")).values()} == {"loop"}


@pytest.mark.parametrize(("algorithm", "engine"), [("blur", "whole update"), ("fedavg", "none")])
def test_where_no_record_is_clipped_nothing_is_timed(algorithm, engine):
    found = check_model(small_spec(algorithm))
    assert (found.engine, found.ratio, found.records) == (engine, None, 0)


def test_many_layers_share_rows_and_eighty_columns_hold_the_table():
    deep = nn.Sequential(nn.Flatten(), *(nn.Linear(64, 64) for _ in range(30)), nn.Linear(64, 10))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(display.model_check(checked(deep)))
    text = console.export_text()
    assert "1 and 30 more" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "times a plain" in text


def test_the_command_and_the_function_agree(tmp_path, monkeypatch, capsys):
    from dpfedadamw import cli

    (tmp_path / "checked_nets.py").write_text(
        "from torch import nn\n\ndef net(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    spec = small_spec().to_mapping() | {"model": {"name": "python", "target": "checked_nets:net"}}
    (tmp_path / "s.json").write_text(json.dumps(spec))
    with pytest.raises(SystemExit) as ended:
        cli.main(["model", "check", "s.json", "--allow-code", "checked_nets", "--json"])
    told = json.loads(capsys.readouterr().out)
    found = api.check_model(spec, allow_code=["checked_nets"])
    assert ended.value.code == 2
    assert (told["refused"], told["layers"]) == (found.refused, [dict(row) for row in found.layers])
    assert "<th>refused</th>" in found._repr_html_()
    mended = ["--set", "model.replace_batch_norm=group_norm", "--allow-code", "checked_nets"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["model", "check", "s.json", *mended])
    assert ended.value.code == 0
    assert "becomes GroupNorm" in capsys.readouterr().out.replace("\n", "")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("changes", "records"),
    [
        ((), 24),
        (("privacy.sampling.expected_batch_size=1",), 2),
        (("privacy.sampling.expected_batch_size=10.2",), 11),
        (("privacy.sampling.expected_batch_size=64",), 64),
        (("privacy.sampling.expected_batch_size=65",), 64),
        (("compute.physical_batch_size=8",), 8),
    ],
)
def test_a_batch_as_a_run_takes_it_is_timed_of_64_records_at_most(changes, records):
    sizes = []

    class Noting(nn.Flatten):
        def forward(self, images):
            sizes.append(len(images))
            return super().forward(images)

    found = checked(nn.Sequential(Noting(), nn.Linear(64, 10)), *changes, engine="book-keeping")
    assert found.records == records
    assert records in sizes


def test_the_middle_of_three_turns_is_told_in_milliseconds(monkeypatch):
    # A clipped sum took 1, 5 and 3 seconds, a plain gradient 10, 60 and 20, turn by turn.
    moments = itertools.chain.from_iterable(
        (1000.0 * turn, 1000.0 * turn + seconds)
        for turn, seconds in enumerate([1.0, 10.0, 5.0, 60.0, 3.0, 20.0])
    )
    monkeypatch.setattr(model_check.time, "process_time", lambda: next(moments))
    found = checked(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert (found.milliseconds, found.plain_milliseconds) == (3_000.0, 20_000.0)
    assert found.ratio == 0.15
    assert next(moments, None) is None


@pytest.mark.parametrize(("own", "plain"), [(None, None), (None, 2.0), (2.0, None), (2.0, 0.0)])
def test_without_two_times_there_is_no_ratio(own, plain):
    nothing = ModelCheck("mlp", 1, 0, "none", "", 0, own, plain, (), None)
    assert nothing.ratio is None


class Tangled(nn.Module):
    """A number of its own, a layer that is used, one of a like name that is not, one frozen."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(64, 10)
        self.header = nn.Linear(3, 3)
        self.frozen = nn.Linear(64, 64)
        self.frozen.requires_grad_(False)

    def forward(self, images):
        return self.head(self.frozen(images.flatten(1))) * self.scale


def test_each_layer_with_trained_numbers_has_a_row_with_how_many_there_are():
    found = checked(Tangled())
    assert (found.trained, found.frozen) == (1 + 650 + 12, 64 * 65)
    assert [(one.name, one.kind, one.parameters) for one in found.layers] == [
        ("(the model)", "Tangled", 1),
        ("head", "Linear", 650),
        ("header", "Linear", 12),
    ]


def test_a_layer_that_answers_nothing_has_no_gradient():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(64, 10)
            self.header = nn.Linear(3, 3)

        def forward(self, images):
            return self.head(images.flatten(1))

    said = rows(checked(Unused()))
    assert said == {"head": ("book-keeping", ""), "header": ("no gradient", "")}


def test_a_layer_is_told_from_one_whose_name_begins_alike():
    methods = {"block1": "copies", "block10.inner": "vmap"}
    names = ("block1.deep", "block10", "block10.inner", "block100")
    assert [model_check._how(name, "book-keeping", methods) for name in names] == [
        "a copy a record",
        "one copy of its parameters per record (vmap)",
        "one copy of its parameters per record (vmap)",
        "no gradient",
    ]


def test_what_a_coarse_clock_does_not_see_is_called_until_it_does(monkeypatch):
    # A clock in steps of 15.625 ms, and calls of 2 ms: it says 31.25 ms at the sixteenth.
    passed = [0.0]
    monkeypatch.setattr(
        model_check.time, "process_time", lambda: math.floor(passed[0] * 64 + 1e-9) / 64
    )

    def call():
        passed[0] += 0.002

    assert model_check._timed(call) == pytest.approx(1000 * 2 / 64 / 16)
    assert passed[0] == pytest.approx(0.032)
