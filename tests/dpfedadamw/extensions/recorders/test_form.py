"""The form of ledger and evidence: each fault is one line, and what the writer writes has none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from audit.evidence import faults
from audit.evidence.schema import NAMES, path, text
from dpfedadamw import cli
from tests.audit.corruptions import attest
from tests.audit.synthetic_run import Settings, build_run, rewrite_ledger
from tests.dpfedadamw.extensions.recorders import numpy_loop


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return numpy_loop.train(tmp_path / "run", seed=5)


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_in_the_folder_is_the_one_that_is_made(name: str) -> None:
    assert path(name).read_text("utf-8") == text(name)


@pytest.mark.parametrize("name", NAMES)
def test_no_schema_has_all_pairs_of_a_list_compared(name: str) -> None:
    """Some thousand coordinates of two types took `evidence check` minutes, and more took hours."""
    assert "uniqueItems" not in text(name)


def test_a_coordinate_that_is_sampled_twice_is_named(run: Path) -> None:
    layout = json.loads((run / "evidence" / "layout.json").read_text())
    layout["sample_coordinates"][1] = layout["sample_coordinates"][0]
    (run / "evidence" / "layout.json").write_text(json.dumps(layout))
    assert "evidence/layout.json: sample_coordinates has a coordinate twice" in faults(run)


def test_what_the_writer_writes_has_no_fault(run: Path) -> None:
    assert faults(run) == []


def test_a_run_of_the_engine_can_be_checked_too(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Settings())
    assert faults(run) == []
    (run / "evidence" / "round-00002.npz").unlink()
    assert faults(run) == ["evidence/round-00002.npz: is missing"]


@pytest.mark.parametrize(
    ("entry", "change", "said"),
    [
        (0, {"clients": 2, "records": [1, 1]}, "clients: 1 was expected"),
        (0, {"sampling": "random"}, "sampling: 'random' is not one of"),
        (1, {"noise_multiplier": 0}, "noise_multiplier"),
        (1, {"note": "x"}, "Additional properties"),
        (-1, {"server": {"epsilon": {"pld": -1}}}, "server.epsilon.pld"),
    ],
)
def test_a_line_that_leaves_the_schema_is_named(run: Path, entry: int, change, said: str) -> None:
    rewrite_ledger(run, lambda entries: entries[entry].update(change))
    lines = len((run / "ledger.jsonl").read_bytes().splitlines())
    found = [fault for fault in faults(run) if said in fault]
    assert found
    assert found[0].startswith(f"ledger.jsonl:{entry % lines + 1} ")


def test_every_fault_of_the_arrays_and_the_layout_is_one_line(run: Path) -> None:
    with np.load(run / "evidence" / "round-00001.npz") as file:
        arrays = {name: file[name] for name in file.files}
    arrays["settings"] = arrays["settings"][:, :, :5]
    np.savez(run / "evidence" / "round-00001.npz", **arrays)
    (run / "evidence" / "end.npz").unlink()
    layout = json.loads((run / "evidence" / "layout.json").read_text())
    layout["per_round_files"] = 9
    (run / "evidence" / "layout.json").write_text(json.dumps(layout))
    found = faults(run)
    assert len(found) == 3
    assert any("per_round_files is 9" in one for one in found)
    assert any("settings" in one for one in found)
    assert all("\n" not in one for one in found)


def _call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_command_prints_a_line_a_fault_and_ends_with_2(run: Path, capsys) -> None:
    assert _call("evidence", "check", run) == 0
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    capsys.readouterr()
    assert _call("evidence", "check", run, "--json") == 2
    assert "there is no claim" in json.loads(capsys.readouterr().out)["faults"][0]
    assert _call("evidence", "check", run) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_that_is_none_is_refused(tmp_path: Path, capsys) -> None:
    assert _call("evidence", "check", tmp_path / "nowhere") == 2
    assert capsys.readouterr().err.count("\n") == 1


def _clients(folder: Path, *noises: float) -> list[Path]:
    return [
        attest(numpy_loop.train(folder / f"client-{place}", seed=10 + place, charged=noise))
        for place, noise in enumerate(noises)
    ]


def test_the_largest_epsilon_of_clients_holds_for_all_of_them(tmp_path: Path, capsys) -> None:
    folders = _clients(tmp_path, numpy_loop.NOISE, numpy_loop.NOISE)
    # They have no probe, and so are NOT VERIFIED.
    assert _call("evidence", "merge", *folders, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "NOT VERIFIED"
    assert found["reasons"] == []
    assert found["epsilon"] == max(one["epsilon"] for one in found["clients"])
    assert "no record is held by two clients" in found["qualifications"][0]


def test_a_client_that_fails_fails_all_of_them(tmp_path: Path, capsys) -> None:
    folders = _clients(tmp_path, numpy_loop.NOISE, 2.0)
    assert _call("evidence", "merge", *folders) == 1
    printed = capsys.readouterr().out
    assert "client-1: FAIL" in printed
    assert "noise-scale" in printed
    assert "overall: FAIL" in printed


def test_folders_of_no_one_training_fail(tmp_path: Path, capsys) -> None:
    folder = _clients(tmp_path, numpy_loop.NOISE)[0]
    assert _call("evidence", "merge", folder, folder, "--json") == 1
    assert "twice" in json.loads(capsys.readouterr().out)["reasons"][0]


def test_commands_that_run_a_spec_again_refuse_a_recorded_loop(run: Path, capsys) -> None:
    assert _call("figures", run) == 2
    said = capsys.readouterr().err
    assert "recorded training loop of another program" in said
    assert said.count("\n") == 1
