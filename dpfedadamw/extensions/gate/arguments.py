"""Arguments and options that the gate's commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SettingsArgument = Annotated[Path, typer.Argument(metavar="GATE.YAML", help="The gate's settings.")]
DataOption = Annotated[
    Path, typer.Option(metavar="DIR", help="A folder with one folder a shard, as split.")
]
ReplyOption = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="Time from a request to its reply, the same always."),
]
AtOnceOption = Annotated[
    int, typer.Option(metavar="N", min=1, help="Shards that train at the same time.")
]
ScratchOption = Annotated[
    str, typer.Option(metavar="SIZE", help="Memory that a shard's files may take.")
]
LogsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep what jobs write; it may hold records."),
]
