"""NVFlare's parent process starts the gate for each job, and nothing of the job.

The process that NVFlare starts for a job would load the job's configuration and code from the
parent's workspace, which the server fills. So it gets a workspace of its own, with the site's
identity and one configuration, whose only component is the gate. The job's app is copied next to
it, and is shown in the shards' cells alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, JobConstants
from nvflare.apis.job_launcher_spec import JobLauncherSpec, JobProcessArgs, add_launcher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.utils.job_launcher_utils import get_client_job_args, get_credential_env
from nvflare.utils.process_utils import spawn_process

from dpfedadamw.extensions.gate.nvflare.options import Options

# What the parent does for the server; all else would read this machine: its files, its packages.
ALLOWED = frozenset({
    "ClientStatusProcessor", "ScopeInfoProcessor", "AbortAppProcessor", "AbortTaskProcessor",
    "ShutdownClientProcessor", "RestartClientProcessor", "DeployProcessor",
    "DeleteRunNumberProcessor", "StartJobProcessor", "CheckResourceProcessor",
    "CancelResourceProcessor", "ReportResourcesProcessor", "ReportVersionProcessor",
    "NotifyJobStatusProcessor",
})  # fmt: skip
_EXECUTOR = "dpfedadamw.extensions.gate.nvflare.executor.GateExecutor"
_JOB = re.compile(r"[A-Za-z0-9-]{1,64}")
# Of the submitted meta.json: what the process needs to find its server.
_META = ("job_id", "job_clients")

# NVFlare's own log files go to the server; its warnings go to the operator's terminal alone.
_LOG = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"terminal": {"class": "logging.StreamHandler"}},
    "root": {"level": "WARNING", "handlers": ["terminal"]},
}


class GateLauncher(JobLauncherSpec):
    """Starts the gate's process for each job.

    Args:
        options: Those of `Options`, by name.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = Options(**options)
        close_commands()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Be the site's launcher. NVFlare starts no job if there is a second one."""
        if event_type == EventType.BEFORE_JOB_LAUNCH:
            add_launcher(self, fl_ctx)

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> Any:
        """Start the gate's process for a job."""
        job = str(job_meta.get(JobConstants.JOB_ID))
        if not _JOB.fullmatch(job):
            raise RuntimeError("the job's identifier is not 1 to 64 letters, digits and hyphens")
        found = fl_ctx.get_prop(FLContextKey.WORKSPACE_OBJECT)
        kit, submitted = Path(found.get_root_dir()), Path(found.get_app_dir(job))
        home = Path(tempfile.mkdtemp(prefix="gate-nvflare-"))
        try:
            write_workspace(home, kit, submitted, job_meta, self._options)
            args = dict(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS))
            args[JobProcessArgs.WORKSPACE] = (args[JobProcessArgs.WORKSPACE][0], str(home))
            args[JobProcessArgs.STARTUP_DIR] = (
                args[JobProcessArgs.STARTUP_DIR][0], str(home / "startup"),
            )  # fmt: skip
            environment = {**os.environ, **get_credential_env(args)}
            return _Handle(spawn_process(command(args), environment), home)
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise


class _Handle(ProcessHandle):
    """The gate's process; its workspace is removed when it has ended."""

    def __init__(self, adapter: Any, home: Path) -> None:
        super().__init__(process_adapter=adapter)
        self._home = home

    def wait(self) -> None:
        super().wait()
        shutil.rmtree(self._home, ignore_errors=True)


def close_commands() -> None:
    """Take away the parent's commands that are not `ALLOWED`, such as those that read any file.

    NVFlare asks for a right to them only where the server says so.
    """
    known = ClientRequestProcessors.request_processors
    known[:] = [one for one in known if type(one).__name__ in ALLOWED]


def command(args: dict[str, Any]) -> list[str]:
    """The command of NVFlare's process for a job; it imports nothing from where it starts."""
    found = [sys.executable, "-P"]
    for name in get_client_job_args():
        if name in args:
            option, value = args[name]
            # The parent's own options are words; a path is one word, whatever is in it.
            words = value.split() if name == JobProcessArgs.OPTIONS else [str(value)]
            found += [option, *words]
    return found


def write_workspace(
    home: Path, kit: Path, submitted: Path, job_meta: dict[str, Any], options: Options
) -> None:
    """Write a workspace with the gate as its only component.

    Args:
        home: An empty folder.
        kit: The site's startup kit.
        submitted: The job's app in the parent's workspace.
        job_meta: The job's meta.json.
        options: The gate's.
    """
    app, run = home / "submitted", home / str(job_meta["job_id"])
    shutil.copytree(submitted, app, symlinks=True)
    config = run / submitted.name / "config"
    config.mkdir(parents=True)
    for name in ("startup", "local"):
        (home / name).mkdir()
    # NVFlare looks for its files in folders, and follows no link to one.
    for file in (kit / "startup").iterdir():
        (home / "startup" / file.name).symlink_to(file)
    _write(home / "local" / "resources.json", {"format_version": 2, "client": {}, "components": []})
    _write(home / "local" / "log_config.json", _LOG)
    # NVFlare's list of allowed classes is for jobs; this one class is the site's own.
    _write(run / "meta.json", {**{key: job_meta.get(key) for key in _META}, "byoc": True})
    _write(home / "options.json", options.to_json())
    args = {"options": str(home / "options.json"), "app": str(app), "site": str(kit)}
    executor = {"tasks": ["*"], "executor": {"path": _EXECUTOR, "args": args}}
    _write(
        config / "config_fed_client.json",
        {"format_version": 2, "executors": [executor], "task_data_filters": [],
         "task_result_filters": [], "components": []},
    )  # fmt: skip


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
