"""The commands of federations, as far as they need no Flower."""

from __future__ import annotations

import importlib.util
import json

import pytest

from dpfedadamw import spec as specs
from dpfedadamw.extensions.deployment.commands import _experiment
from dpfedadamw.extensions.deployment.refusals import Refusals
from tests.dpfedadamw.extensions.deployment.conftest import SPEC
from tests.runs import call


@pytest.fixture(autouse=True)
def _keys(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(tmp_path / "keys"))


def test_a_client_that_hands_in_nothing_is_named_and_nothing_passes_for_it(
    finished, tmp_path, capsys
):
    sites = [str(finished.site(one).path) for one in (0, 1)]
    out = tmp_path / "out"
    command = ("flower", "collect", str(finished.server), *sites, "--out", str(out), "--json")
    assert call(*command) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "NOT VERIFIED"
    assert "client 2: nothing was handed in" in told["not_seen"]
    (run,) = (one for one in out.iterdir() if not one.is_symlink())
    assert (run / "report.pdf").is_file()
    found = json.loads((run / "audit.json").read_bytes())["checks"]
    checks = {one["name"]: one for one in found}
    assert "client 2 handed in no ledger" in checks["integrity"]["measurement"]
    assert checks["noise-scale"]["verdict"] == "NOT VERIFIED"
    # A second one finds the first.
    assert call(*command) == 2
    assert "exists already" in capsys.readouterr().out


@pytest.mark.thorough
def test_what_clients_refused_is_printed_and_stands_in_the_json(copied, tmp_path, capsys):
    refusals = Refusals(copied.site(1).refusals)
    refusals.note("noise", "")
    refusals.write(now=True)
    sites = [str(copied.site(one).path) for one in range(3)]
    command = ("flower", "collect", str(copied.server), *sites, "--out", str(tmp_path / "out"))
    assert call(*command, "--json") == 0
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    (line,) = told["refused"]
    assert line.startswith("client 1 refused 1 messages: ")
    assert told["not_seen"] == []
    assert line in printed.err


def test_new_writes_a_project_and_says_how_to_go_on(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(SPEC))
    assert call("flower", "new", str(path), str(tmp_path / "p"), "--host", "link.example.org") == 0
    printed = capsys.readouterr()
    assert "a federation of 3 clients" in printed.out
    # What each client agrees to by taking part.
    assert "after the spec's 2 rounds. At most" in printed.err
    assert "all 4 participations" in printed.err
    assert "link.example.org:9092" in (tmp_path / "p" / "README.md").read_text()


def test_new_divides_the_data_among_as_many_clients_as_it_is_told(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(SPEC))
    assert call("flower", "new", str(path), str(tmp_path / "p"), "--clients", "2") == 0
    assert "a federation of 2 clients" in capsys.readouterr().out
    assert sorted(one.name for one in (tmp_path / "p" / "clients").iterdir()) == ["00", "01"]


def test_a_spec_becomes_one_of_flower_with_the_clients_that_are_asked_for(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(SPEC))
    found = _experiment(str(path), ["federation.rounds=5"], 2)
    spec = found.spec
    assert (spec.federation.engine, spec.federation.rounds) == ("flower", 5)
    assert (spec.data.clients, spec.federation.clients_per_round) == (2, 2)
    assert found.device.type == "cpu"
    # What is said by name counts more.
    spec = _experiment(str(path), ["federation.clients_per_round=1"], 2).spec
    assert (spec.data.clients, spec.federation.clients_per_round) == (2, 1)


def test_a_host_that_no_certificate_can_name_is_refused_in_one_line(tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(specs.dump(SPEC))
    assert call("flower", "new", str(path), str(tmp_path / "p"), "--host", "münchen.example") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "münchen.example" in line
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("collect", "{0}", "{0}"), "holds no run of a federation"),
        (("new", "{0}/spec.yaml", "{0}/p"), "spec.yaml"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(command, told, tmp_path, capsys):
    assert call("flower", *(part.format(tmp_path) for part in command)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(told in line for line in lines), lines


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is here")
def test_without_flower_a_command_says_how_it_is_installed(capsys):
    assert call("flower", "poc", "quickstart") == 2
    assert "pip install 'dpfedadamw[flower]'" in capsys.readouterr().err.replace("\n", " ")


def test_the_superlink_of_a_finished_federation_says_so_and_how_to_go_on(finished, capsys):
    assert call("flower", "superlink", str(finished.server)) == 0
    assert "finished: " in (told := capsys.readouterr().out)
    assert "flower collect" in told


def test_a_service_which_starts_in_the_root_folder_names_whole_paths(finished, capsys, monkeypatch):
    monkeypatch.chdir("/")
    assert call("flower", "superlink", str(finished.server)) == 0
    told = capsys.readouterr().out
    assert f"finished: {finished.server.resolve()}/runs/" in told
    assert f"flower collect {finished.server} CLIENT" in told


def test_a_collection_with_a_folder_that_came_late_supersedes_the_first(finished, tmp_path, capsys):
    """Both are honest; signed as the first alike, one would look like an earlier state put back."""
    sites = [str(finished.site(one).path) for one in (0, 1, 2)]
    command = ("flower", "collect", str(finished.server))
    first, second = tmp_path / "first", tmp_path / "second"
    assert call(*command, *sites[:2], "--out", str(first)) == 1
    assert call("verify", str(first / "latest")) == 0
    replaced = str(first / "latest")
    assert call(*command, *sites, "--out", str(second), "--replaces", replaced) == 0
    capsys.readouterr()
    assert call("verify", str(second / "latest")) == 0
    assert "ALL HOLD" in capsys.readouterr().out
    # Whoever shows the first again shows an earlier state.
    assert call("verify", str(first / "latest")) == 1
    assert "an earlier state was put back" in " ".join(capsys.readouterr().out.split())


def test_a_collection_replaces_one_of_its_own_run_alone(finished, tmp_path, capsys):
    other = tmp_path / "runs" / "other"
    other.mkdir(parents=True)
    (other / "ledger.jsonl").touch()
    command = ("flower", "collect", str(finished.server), "--out", str(tmp_path / "out"))
    sites = [str(finished.site(0).path)]
    assert call(*command, *sites, "--replaces", str(other)) == 2
    assert "--replaces" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
