"""``figures``, as somebody types it."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import stat
from pathlib import Path

import pytest
import torch

from dpfedadamw.experiment import prepare
from dpfedadamw.extensions.figures.commands import NAMES
from dpfedadamw.extensions.figures.registry import FIGURES
from dpfedadamw.run import setup as engine_setup
from dpfedadamw.run import training as engine_run
from dpfedadamw.run.start_options import StartOptions
from dpfedadamw.rundir import RunDirectory
from tests.runs import call, probed, small_spec, train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> RunDirectory:
    """A run of two rounds."""
    spec = small_spec(rounds=2, clients_per_round=2)
    return train(spec, tmp_path_factory.mktemp("run"))[0].run


def test_the_help_names_every_figure():
    assert NAMES.split(", ") == list(FIGURES)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*")) if path.is_file()
    }  # fmt: skip


def test_private_figures_are_named_marked_and_kept_apart_and_the_run_stays_as_it_is(
    run, tmp_path, capsys
):
    before, folder = content(run.path), tmp_path / "new" / "figures"
    names = ("drift", "bias-shift", "loss-landscape", "iterations")
    wanted = [word for name in names for word in ("--figure", name)]
    code = call("figures", str(run.path), "--out", str(folder), *wanted, "--json", "--records", "9")
    told = capsys.readouterr()
    assert code == 0
    found = json.loads(told.out)
    assert [(one["figure"], one["private"]) for one in found["figures"]] == [
        ("drift", True), ("bias-shift", True), ("loss-landscape", False),
    ]  # fmt: skip
    (left,) = found["left_out"]
    assert (left["figure"], left["run"]) == ("iterations", run.identifier)
    line = f"iterations: {run.identifier}: {left['reason']}\n"
    assert told.err == line
    assert (mode(folder), mode(folder.parent)) == (0o700, 0o700)
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "private-drift.svg": 0o600,
        "private-drift.csv": 0o600,
        "private-bias-shift.svg": 0o600,
        "private-bias-shift.csv": 0o600,
        "loss-landscape.svg": 0o644,
        "loss-landscape.csv": 0o644,
    }
    with (folder / "private-drift.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2"]
    assert {row["made_from"] for row in rows} == {"private evidence"}
    with (folder / "loss-landscape.csv").open(newline="") as file:
        assert {row["made_from"] for row in csv.DictReader(file)} == {
            "released model and test records"
        }
    assert content(run.path) == before


def test_where_nothing_can_be_drawn_it_ends_with_2_and_writes_nothing(run, tmp_path, capsys):
    folder = tmp_path / "figures"
    arguments = ("figures", str(run.path), "--out", str(folder), "--figure", "iterations")
    assert call(*arguments) == 2
    assert "only ali-dpfl chooses τ" in capsys.readouterr().err
    assert call(*arguments, "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["figures"], len(found["left_out"])) == ([], 1)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--figure", "second-moment"), "--figure second-moment: unknown; use one of second-mom"),
        (("--out", "{run}/figures"), "whose audit accepts no files but its own"),
        (("--device", "tpu"), "--device tpu: unknown"),
        (("{run}",), "is given twice"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_in_one_line(run, tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    given = [word.replace("{run}", str(run.path)) for word in arguments]
    assert call("figures", str(run.path), *given) == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_release_is_drawn_again_with_its_key_alone(tmp_path, capsys):
    experiment = prepare(small_spec(rounds=1, clients_per_round=2, mode="release"), CPU)
    escrow = tmp_path / "key"
    training = engine_setup.start(
        experiment, tmp_path / "runs", options=StartOptions(escrow=escrow)
    )
    with training.lock:
        engine_run.train(training, before_claim=probed)
    arguments = (
        "figures", str(training.run.path), "--out", str(tmp_path / "figures"), "--figure", "drift",
    )  # fmt: skip
    assert call(*arguments) == 2
    assert "--escrow FILE" in capsys.readouterr().err
    assert call(*arguments, "--escrow", str(escrow)) == 0
    assert (tmp_path / "figures" / "private-drift.svg").is_file()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["ledger.jsonl", "model.json"])
def test_no_file_of_a_run_is_followed_where_it_is_a_link(name, run, tmp_path, capsys):
    """A stranger's run would show what another one, or the system, keeps to itself."""
    copy = tmp_path / run.identifier
    shutil.copytree(run.path, copy)
    elsewhere = tmp_path / "elsewhere"
    (copy / name).rename(elsewhere)
    (copy / name).symlink_to(elsewhere)
    wanted = ("--out", str(tmp_path / "drawn"), "--figure", "drift", "--figure", "loss-landscape")
    assert call("figures", str(copy), *wanted, "--records", "9") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{name}: " in line
    assert "symbolic link" in line
    (copy / name).unlink()
    elsewhere.rename(copy / name)
    assert call("figures", str(copy), *wanted, "--records", "9") == 0


def test_without_a_folder_figures_go_where_the_runs_are_named_and_a_person_is_told(
    run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "copy" / f"{run.identifier}-again"
    shutil.copytree(run.path, copy)
    wanted = ("--figure", "bias-shift", "--format", "png")
    for runs, more in (((run.path,), ""), ((run.path, copy), "-and-1-more")):
        folder = f"figures/{run.identifier}{more}"
        assert call("figures", *map(str, runs), *wanted) == 0
        words = capsys.readouterr().out.split()
        assert words == ["folder", folder, "bias-shift", "private-bias-shift.png"]
        assert (tmp_path / folder / "private-bias-shift.png").read_bytes().startswith(b"\x89PNG")
        assert (tmp_path / folder / "private-bias-shift.csv").is_file()


def test_more_runs_than_can_be_told_apart_are_refused_before_any_is_opened(tmp_path, capsys):
    assert call("figures", *["none"] * 15) == 2
    assert capsys.readouterr().err.startswith("15 runs are too many for one figure, the most is 14")
    assert call("figures", *["none"] * 14) == 2
    assert "too many" not in capsys.readouterr().err
