"""What `gate nvflare` writes into a startup kit, and the kits that it refuses."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict

import pytest

from dpfedadamw.extensions.gate.nvflare.commands import gate_nvflare
from dpfedadamw.extensions.gate.nvflare.install import LAUNCHER, KitError, install
from dpfedadamw.extensions.gate.nvflare.options import Options, read_options
from tests.runs import call

OPTIONS = Options(settings="/srv/gate.yaml", data="/srv/shards", keys="/srv/keys")
# As NVFlare provisions them, in short.
PROVISIONED = {
    "format_version": 2,
    "client": {"retry_timeout": 30},
    "components": [
        {"id": "resource_manager", "path": "nvflare.…GPUResourceManager", "args": {}},
        {
            "id": "process_launcher",
            "path": "nvflare.….client_process_launcher.ClientProcessJobLauncher",
            "args": {},
        },
    ],
}


@pytest.fixture
def kit(tmp_path):
    for name in ("startup", "local"):
        (tmp_path / "site" / name).mkdir(parents=True)
    (tmp_path / "site/startup/fed_client.json").write_text("{}")
    (tmp_path / "site/local/resources.json.default").write_text(json.dumps(PROVISIONED))
    return tmp_path / "site"


def test_the_gates_launcher_stands_in_place_of_nvflares_and_all_else_stays(kit):
    path = install(kit, OPTIONS, [])
    found = json.loads(path.read_text())
    *others, gate = found["components"]
    assert path == kit / "local" / "resources.json"
    assert others == PROVISIONED["components"][:1]
    assert gate == {"id": "gate_launcher", "path": LAUNCHER, "args": OPTIONS.to_json()}
    assert found["client"] == PROVISIONED["client"]
    assert json.loads((kit / "local/resources.json.default").read_text()) == PROVISIONED


# Of a kit that was written before there were further options.
DEFAULTS = {"task": "train", "reply_after": 60.0, "at_once": 1, "scratch": "1g"}


def test_what_nobody_chose_is_the_same_by_the_command_and_in_a_kits_file(tmp_path):
    needed = {"settings": "/srv/gate.yaml", "data": "/srv/shards", "keys": "/srv/keys"}
    (tmp_path / "options.json").write_text(json.dumps(needed))
    assert asdict(read_options(tmp_path / "options.json")) == {**needed, **DEFAULTS, "logs": ""}
    given = inspect.signature(gate_nvflare).parameters
    assert {name: given[name].default for name in DEFAULTS} == DEFAULTS
    assert given["logs"].default is None


def test_a_second_time_changes_the_options_and_adds_no_second_launcher(kit):
    install(kit, OPTIONS, [])
    path = install(kit, Options(**{**OPTIONS.to_json(), "at_once": 4}), [])
    found = json.loads(path.read_text())["components"]
    assert [one["args"].get("at_once") for one in found if one["path"] == LAUNCHER] == [4]


@pytest.mark.parametrize("folder", ["startup", "local"])
def test_a_launcher_in_another_file_that_nvflare_reads_is_refused(folder, kit):
    more = kit / folder / "docker__p_resources.json"
    more.write_text(json.dumps({"components": [{"id": "a", "path": "x.DockerJobLauncher"}]}))
    with pytest.raises(KitError, match=f"{more}: starts jobs in another way"):
        install(kit, OPTIONS, [])
    assert not (kit / "local" / "resources.json").exists()


def test_what_is_private_may_not_lie_where_the_server_writes(kit):
    private = kit / "data"
    with pytest.raises(KitError, match=f"{private}: lies in {kit}, which the server writes to"):
        install(kit, OPTIONS, [private])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[]", "is no mapping"),
        ('{"components": [1]}', "components: is no list of mappings"),
    ],
)
def test_resources_that_are_none_are_refused_in_one_line(text, said, kit):
    path = kit / "local" / "resources.json.default"
    path.write_text(text)
    with pytest.raises(KitError, match=f"{path}: {said}"):
        install(kit, OPTIONS, [])


def test_a_folder_that_is_no_clients_kit_is_refused(tmp_path):
    with pytest.raises(KitError, match="has no startup/fed_client"):
        install(tmp_path, OPTIONS, [])


def test_without_nvflare_the_command_says_how_to_install_it(kit, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    code = call("gate", "nvflare", "gate.yaml", str(kit), "--data", str(kit.parent / "shards"))
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert code == 2
    assert line.endswith("NVFlare is not installed here; install with: pip install nvflare==2.9.0")


@pytest.fixture
def readied(monkeypatch, kit):
    """The options that the command would install into the kit."""
    options = []

    def ready(where, one):
        assert where == kit
        options.append(one)
        return kit / "local" / "resources.json"

    monkeypatch.setattr("dpfedadamw.extensions.gate.nvflare.start.ready", ready)
    monkeypatch.setenv("DPFEDADAMW_KEYS", str(kit.parent / "keys"))
    monkeypatch.chdir(kit.parent)
    return options


def test_what_is_typed_reaches_the_kit_with_paths_that_hold_in_every_folder(readied, kit):
    typed = ("--data", "shards", "--task", "fit", "--reply-after", "9.5", "--at-once", "3")
    where = kit.parent
    assert call("gate", "nvflare", "gate.yaml", str(kit), *typed, "--scratch", "2g") == 0
    assert call("gate", "nvflare", "gate.yaml", str(kit), "--data", "shards", "--logs", "logs") == 0
    paths = {"settings": "gate.yaml", "data": "shards", "keys": "keys"}
    needed = {name: str(where / path) for name, path in paths.items()}
    chosen = {"task": "fit", "reply_after": 9.5, "at_once": 3, "scratch": "2g", "logs": ""}
    assert list(map(asdict, readied)) == [
        {**needed, **chosen},
        {**needed, **DEFAULTS, "logs": str(where / "logs")},
    ]


def test_the_command_says_what_it_wrote_and_that_the_site_must_be_restarted(readied, kit, capsys):
    command = ("gate", "nvflare", "gate.yaml", str(kit), "--data", "shards")
    assert call(*command) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("site/local/resources.json: ")
    assert "restart the site" in line
    assert call(*command, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "resources": str(kit / "local" / "resources.json"), "task": "train", "reply_after": 60.0,
    }  # fmt: skip
