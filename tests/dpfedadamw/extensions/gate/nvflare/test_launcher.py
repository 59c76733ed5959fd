"""What NVFlare's processes at a site get in place of a job, and what they answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare has an environment of its own: tox run -e nvflare")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from dpfedadamw.extensions.gate.errors import REFUSAL
from dpfedadamw.extensions.gate.nvflare import executor, launcher
from dpfedadamw.extensions.gate.nvflare.options import Options, read_options
from dpfedadamw.extensions.gate.windows import FAILED
from tests.dpfedadamw.extensions.gate.nvflare.poc import APP

pytestmark = pytest.mark.nvflare

OPTIONS = Options(settings="/srv/gate.yaml", data="/srv/shards", keys="/srv/keys")
META = {"job_id": "job-1", "job_clients": [], "scope": "public", "launcher_spec": {"docker": {}}}


@pytest.fixture
def home(tmp_path):
    (tmp_path / "kit" / "startup").mkdir(parents=True)
    (tmp_path / "kit" / "startup" / "fed_client.json").write_text("{}")
    (tmp_path / "home").mkdir()
    launcher.write_workspace(tmp_path / "home", tmp_path / "kit", APP, META, OPTIONS)
    return tmp_path / "home"


def test_the_gates_process_finds_one_component_and_no_file_of_the_job(home):
    run = home / "job-1"
    files = {str(one.relative_to(run)) for one in run.rglob("*") if one.is_file()}
    assert files == {"meta.json", f"{APP.name}/config/config_fed_client.json"}
    found = json.loads((run / APP.name / "config" / "config_fed_client.json").read_text())
    (only,) = found["executors"]
    assert only["executor"]["path"].endswith("executor.GateExecutor")
    # NVFlare calls its constructor with these.
    assert only["executor"]["args"] == {
        "options": str(home / "options.json"),
        "app": str(home / "submitted"),
        "site": str(home.parent / "kit"),
    }
    assert executor.GateExecutor(**only["executor"]["args"])
    assert [found[key] for key in ("task_data_filters", "task_result_filters", "components")] == [
        [], [], [],
    ]  # fmt: skip
    # Neither the job's scope nor its launcher is asked.
    assert set(json.loads((run / "meta.json").read_text())) == {"job_id", "job_clients", "byoc"}
    assert (home / "submitted" / "custom" / "gated_client.py").is_file()
    assert read_options(home / "options.json") == OPTIONS


def test_a_server_that_deploys_a_job_again_changes_nothing_of_the_one_that_runs(tmp_path):
    for name in ("kit/startup", "home", "again"):
        (tmp_path / name).mkdir(parents=True)
    app = tmp_path / "kit" / "job-1" / "app_site-1"
    (app / "custom").mkdir(parents=True)
    (app / "custom" / "train.py").write_text("first")
    launcher.write_workspace(tmp_path / "home", tmp_path / "kit", app, META, OPTIONS)
    (app / "custom" / "train.py").write_text("second")
    launcher.write_workspace(tmp_path / "again", tmp_path / "kit", app, META, OPTIONS)
    found = [tmp_path / name / "submitted/custom/train.py" for name in ("home", "again")]
    assert [one.read_text() for one in found] == ["first", "second"]


def test_nvflares_process_imports_nothing_from_where_it_starts_and_a_path_is_one_word():
    args = {
        JobProcessArgs.EXE_MODULE: ("-m", "nvflare.private.fed.app.client.worker_process"),
        JobProcessArgs.WORKSPACE: ("-m", "/tmp/a b"),
        JobProcessArgs.OPTIONS: ("--set", " secure_train=true print_conf=True"),
        JobProcessArgs.AUTH_TOKEN: ("-t", "token"),
    }
    _, *words = launcher.command(args)
    assert words == [
        "-P", "-m", "nvflare.private.fed.app.client.worker_process", "-m", "/tmp/a b", "--set",
        "secure_train=true", "print_conf=True",
    ]  # fmt: skip


def test_commands_that_read_the_sites_machine_are_taken_away(monkeypatch):
    known = list(ClientRequestProcessors.request_processors)
    monkeypatch.setattr(ClientRequestProcessors, "request_processors", known)
    launcher.close_commands()
    left = {type(one).__name__ for one in known}
    assert left == launcher.ALLOWED
    assert not left & {"ShellCommandProcessor", "SysInfoProcessor", "ClientInfoProcessor"}


def test_what_is_released_leaves_with_one_constant():
    reply = executor.reply_to({"bias": np.ones(2)})
    found = from_shareable(reply)
    assert found.data_kind == DataKind.WEIGHTS
    assert found.meta == {"NUM_STEPS_CURRENT_ROUND": 1}
    assert list(found.data) == ["bias"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (executor.NOT_TRAIN, "TASK_UNSUPPORTED"),
        (executor.NOT_MODEL, "BAD_TASK_DATA"),
        (REFUSAL, "SERVICE_UNAVAILABLE"),
        (FAILED, "SERVICE_UNAVAILABLE"),
    ],
)
def test_a_refusal_has_a_fixed_code_and_text(text, code):
    refusal = executor.reply_to(text)
    assert (refusal.get_return_code(), refusal.get_header("gate")) == (code, text)
    assert set(refusal) == {"__headers__"}


def test_a_gate_that_did_not_open_refuses_each_task_and_tells_its_operator_alone(home, capfd):
    one = executor.GateExecutor(str(home / "options.json"), str(home / "submitted"), "/srv/site")
    one.handle_event("_start_run", FLContext())
    task = DXO(DataKind.WEIGHTS, data={"bias": np.ones(2)}).to_shareable()
    reply = one.execute("train", task, FLContext(), None)
    assert reply.get_header("gate") == FAILED
    assert "/srv/gate.yaml" in capfd.readouterr().err
    assert "/srv" not in json.dumps(reply, default=str)


def test_of_a_task_the_shards_get_plain_values_and_nothing_else():
    told = {"round": 3, "rate": 0.1, "deep": {"names": ["a", object()]}, "object": object(), 7: 1}
    assert executor.plain(told) == {"round": 3, "rate": 0.1, "deep": {"names": ["a", None]}}
    assert executor.plain(object()) == {}
