"""Leads a federation's run from the server's folder, and says in a file how it goes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedadamw.errors import DpfedadamwError
from dpfedadamw.extensions.deployment.leading import open_led, train_led
from dpfedadamw.extensions.deployment.server import Patience
from dpfedadamw.storage.disk import PUBLIC_MODE, write_atomically

if TYPE_CHECKING:
    from dpfedadamw.federation.links import Link

# How it goes, in the server's folder: for its operator, and for `flower poc`.
STATUS = "status.json"


def lead(home: Path, link: Link, patience: Patience) -> Path:
    """Train from the first round that is missing to the claim; tell how it ended.

    Args:
        home: The server's folder.
        link: Carries messages to the clients.
        patience: How long is waited.

    Returns:
        The run's folder.
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
            train_led(
                training,
                lambda result, _: tell(state="training", run=where, completed=result.completed),
            )
        tell(state="finished", run=where)
        return training.run.path
    except DpfedadamwError as error:
        tell(state="failed", reason=str(error))
        raise
    except BaseException as error:
        tell(state="failed", reason=type(error).__name__)
        raise
