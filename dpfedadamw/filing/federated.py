"""The ServerApp of a federation's project: leads the run from the server's folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedadamw.deployment.leading import open_led
from dpfedadamw.deployment.server import Patience
from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.filing import whole
from dpfedadamw.storage.disk import PUBLIC_MODE, write_atomically

if TYPE_CHECKING:
    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp

    from dpfedadamw.federation.links import Link

# What the server tells of how it goes: a file of its folder, because Flower's log is Flower's.
STATUS = "status.json"


def server_app() -> ServerApp:
    """The app of a project: its run config names the server's folder."""
    from flwr.serverapp import ServerApp

    app = ServerApp()
    app.main()(_main)
    return app


def _main(grid: Grid, context: Context) -> None:
    from dpfedadamw.federation.flower.grid import GridLink

    config = context.run_config
    patience = Patience(
        again=float(config.get("again-seconds", 30.0)),
        answer=float(config.get("answer-seconds", 3600.0)),
        meeting=float(config.get("meeting-seconds", 600.0)),
    )
    lead(Path(str(config["home"])), GridLink(grid), patience)


def lead(home: Path, link: Link, patience: Patience) -> None:
    """Train from the first round that is missing to the claim; tell how it ended.

    Args:
        home: The server's folder.
        link: Carries messages to the clients.
        patience: How long is waited.
    """

    def tell(**values: object) -> None:
        content = json.dumps({"process": os.getpid(), **values}).encode() + b"\n"
        write_atomically(home / STATUS, content, PUBLIC_MODE, settle=False)

    tell(state="meeting")
    try:
        training = open_led(home, link, patience)
        where = str(training.run.path)
        tell(state="training", run=where, completed=training.completed)
        with training.lock:
            whole.train(
                training,
                lambda result, _: tell(state="training", run=where, completed=result.completed),
            )
        tell(state="finished", run=where)
    except DpfedadamwError as error:
        tell(state="failed", reason=str(error))
        raise
    except BaseException as error:
        tell(state="failed", reason=type(error).__name__)
        raise
