"""What runs in a shard's cell: one task of the job, by NVFlare's own runner of a job's client.

The job's configuration, filters and components are loaded here and nowhere else at the site. There
is no server: the job's messages and events reach nobody. `exchange` says what it reads and sends
back.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.hci.server.authz import AuthorizationService
from nvflare.fuel.sec.audit import AuditService
from nvflare.fuel.utils.config_service import ConfigService
from nvflare.private.fed.client.client_runner import TaskAssignment
from nvflare.private.fed.simulator.simulator_app_runner import SimulatorClientAppRunner
from nvflare.private.fed.simulator.simulator_audit import SimulatorAuditor
from nvflare.private.fed.utils.fed_utils import fobs_initialize
from nvflare.security.security import EmptyAuthorizer

from dpfedadamw.extensions.gate.exchange import Question, answer

_HOME = Path("/tmp/site")
# The root of the cell's own messages, which training in a process of its own needs.
_ROOT = "tcp://127.0.0.1:8002"


def run(words: Sequence[str]) -> None:
    """Answer one question.

    Args:
        words: The gate's socket, and the job's app.
    """
    place, app = words
    answer(place, lambda asked: trained(asked, Path(app), _HOME))


def trained(question: Question, app: Path, home: Path) -> bytes:
    """The parameters after the job's task, as one array after the other.

    Args:
        question: The task, and the arrays of the broadcast.
        app: The job's app, as NVFlare deployed it.
        home: A folder for NVFlare's files.
    """
    told = question.told
    arrays = {
        name: np.frombuffer(part, kind).reshape(shape)
        for (name, kind, shape), part in zip(told["arrays"], question.parts, strict=True)
    }
    runner = _runner(told, app, home)
    sent = DXO(DataKind.WEIGHTS, data={name: one.copy() for name, one in arrays.items()})
    sent.meta.update(told["meta"])
    task = sent.to_shareable()
    for name, value in told["headers"].items():
        task.set_header(name, value)
    server = FLContext()
    server.set_prop(ReservedKey.RUN_NUM, told["job"], private=False)
    with runner.engine.new_context() as context:
        context.set_prop(FLContextKey.APP_ROOT, str(app), private=True, sticky=True)
        context.set_prop(
            ReservedKey.RUN_ABORT_SIGNAL, runner.run_abort_signal, private=True, sticky=True
        )
        runner.fire_event(EventType.ABOUT_TO_START_RUN, context)
        runner.fire_event(EventType.START_RUN, context)
        context.set_peer_context(server)
        found = from_shareable(
            runner._process_task(TaskAssignment(told["task"], told["request"], task), context)
        )
    moved = found.data_kind == DataKind.WEIGHT_DIFF
    if not moved and found.data_kind != DataKind.WEIGHTS:
        raise ValueError(f"the job answered {found.data_kind}, not parameters")
    whole = b""
    for name, before in arrays.items():
        value = np.asarray(found.data[name])
        if value.shape != before.shape:
            raise ValueError(f"the job's array {name} has the shape {value.shape}")
        after = before + value if moved else value
        whole += np.ascontiguousarray(after, dtype=before.dtype).tobytes()
    return whole


def _runner(told: Mapping[str, Any], app: Path, home: Path) -> Any:
    """NVFlare's runner of the job's client, connected to nothing."""
    job, site = told["job"], told["site"]
    run = home / job
    for folder in (home / "startup", home / "local", run):
        folder.mkdir(parents=True)
    (run / f"app_{site}").symlink_to(app)
    # Any code may run here, so NVFlare's own list of allowed classes is not asked.
    (run / "meta.json").write_text(json.dumps({"job_id": job, "byoc": True}))
    sys.path.insert(0, str(app / "custom"))
    # NVFlare else looks for its own settings in every folder below the current one.
    ConfigService.initialize({}, [str(home / "local")])
    fobs_initialize(Workspace(str(home), site), job)
    AuthorizationService.initialize(EmptyAuthorizer())
    AuditService.the_auditor = SimulatorAuditor()
    cell = Cell(f"{site}.{job}", _ROOT, secure=False, credentials={})
    client = SimpleNamespace(
        client_name=site, client_args={"client_name": site, "fqsn": site}, cell=cell
    )
    args = Namespace(
        workspace=str(home), client_name=site, job_id=job, set=[], config_folder="config",
        client_config="config/config_fed_client.json", sp_scheme="tcp", sp_target="127.0.0.1:8002",
        parent_url=None,
    )  # fmt: skip
    made = SimulatorClientAppRunner()
    runner = made.create_client_runner(str(app), args, "config", client, False)
    runner.engine.cell = cell
    return runner
