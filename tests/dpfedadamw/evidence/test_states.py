"""States are kept for re-execution of as many rounds as fit, and the evidence says on what ran."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import dpfedadamw
from dpfedadamw.algorithms.base import ServerState
from dpfedadamw.evidence import states
from dpfedadamw.evidence.states import StateKeeper, state_file, stride
from dpfedadamw.run.checkpoints import largest_state
from dpfedadamw.run.environment import (
    differences,
    environment,
    read_environments,
    sources,
    write_environment,
)
from dpfedadamw.rundir import RunDirectory, RunDirectoryError
from tests.runs import small_spec, train


def test_all_states_are_kept_where_they_fit_and_every_nth_where_they_do_not() -> None:
    assert stride(1000, 100) == 1
    assert stride(states.CAPACITY_BYTES // 100, 100) == 1
    assert stride(states.CAPACITY_BYTES // 100 + 1, 100) == 2
    assert stride(states.CAPACITY_BYTES, 100) == 100


def test_what_is_kept_never_exceeds_the_capacity(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(states, "CAPACITY_BYTES", 1000)
    keeper = StateKeeper(tmp_path, rounds=50)
    told = [keeper.keep(index, bytes(90), largest=90) for index in range(50)]
    kept = sorted(tmp_path.iterdir())
    assert told == [(tmp_path / state_file(index)).exists() for index in range(50)]
    assert 0 < sum(path.stat().st_size for path in kept) <= 1000
    assert kept[0].name == state_file(4)
    assert oct(kept[0].stat().st_mode)[-3:] == "600"


def test_clients_that_have_not_taken_part_are_counted_as_if_they_had() -> None:
    vector = torch.zeros(10)
    state = ServerState(vector, {"control": vector}, {3: {"own": vector}})
    assert largest_state(state, clients=5) == 4 * 10 * (2 + 5)
    assert largest_state(ServerState(vector, {}), clients=5) == 40


def test_a_run_keeps_its_states_as_the_ledger_names_them_and_commits_to_each_participation(
    tmp_path: Path,
) -> None:
    training, _ = train(small_spec("dp-scaffold", rounds=3), tmp_path)
    evidence = training.run.evidence
    rounds = training.ledger.of_kind("round")
    assert not (evidence / state_file(2)).exists()
    for entry in rounds[:2]:
        content = (evidence / state_file(entry["round"])).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["state_sha256"]
    assert len({entry["participations_sha256"] for entry in rounds}) == 3
    found = read_environments(evidence)
    assert found == {0: environment(torch.device("cpu"), "auto")}


def test_a_run_without_privacy_keeps_no_state(tmp_path: Path) -> None:
    training, _ = train(small_spec("fedavg", rounds=2), tmp_path)
    assert not list(training.run.evidence.glob("state-*"))


def test_an_environment_that_finished_no_round_is_forgotten(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.evidence.mkdir()
    for first in (0, 4, 3):
        write_environment(run, first, SimpleNamespace(device=torch.device("cpu")), f"{first}")
    found = read_environments(run.evidence)
    assert {first: one["engine"] for first, one in found.items()} == {0: "0", 3: "3"}


def test_differences_name_what_changed_then_and_here() -> None:
    then = {"torch": "1", "threads": 2}
    assert differences(then, then) == []
    assert differences(then, {"torch": "2", "threads": 2}) == ["torch: 1 then, 2 here"]


def test_another_state_of_the_same_version_is_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = environment(torch.device("cpu"), "auto")
    package = Path(dpfedadamw.__file__).parent
    assert then["sources"] == sources.__wrapped__()
    shutil.copytree(package, tmp_path / "dpfedadamw", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(dpfedadamw, "__file__", str(tmp_path / "dpfedadamw" / "__init__.py"))
    assert sources.__wrapped__() == then["sources"]
    module = tmp_path / "dpfedadamw" / "clipping" / "forms.py"
    module.write_text(module.read_text() + "# one more line\n")
    here = {**then, "sources": sources.__wrapped__()}
    assert differences(then, here) == [f"sources: {then['sources']} then, {here['sources']} here"]


def test_a_damaged_environment_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "environment-00000.json").write_text(json.dumps([1]))
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        read_environments(tmp_path)
