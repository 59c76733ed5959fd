"""``gate nvflare``: a site's gate on NVFlare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dpfedadamw.cli.options import JsonOption
from dpfedadamw.cli.terminal import out, print_json, relative
from dpfedadamw.extensions.gate.arguments import (
    AtOnceOption,
    DataOption,
    LogsOption,
    ReplyOption,
    ScratchOption,
    SettingsArgument,
)


def gate_nvflare(
    settings: SettingsArgument,
    kit: Annotated[
        Path, typer.Argument(metavar="SITE", help="The site's startup kit from NVFlare.")
    ],
    data: DataOption,
    task: Annotated[
        str, typer.Option(metavar="NAME", help="The server's training task; others are refused.")
    ] = "train",
    reply_after: ReplyOption = 60.0,
    at_once: AtOnceOption = 1,
    scratch: ScratchOption = "1g",
    logs: LogsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the gate into a site's startup kit: jobs train on shards, noised updates leave.

    Writes local/resources.json, whose launcher starts the gate for each job in place of the job's
    own code. Then start the site as before. The same command again changes the options.
    """
    from dpfedadamw.extensions.gate.book import key_path
    from dpfedadamw.extensions.gate.nvflare.options import Options
    from dpfedadamw.extensions.gate.nvflare.start import ready

    options = Options(
        settings=str(settings.absolute()), data=str(data.absolute()),
        keys=str(key_path().parent.absolute()), task=task, reply_after=reply_after,
        at_once=at_once, scratch=scratch, logs=str(logs.absolute()) if logs else "",
    )  # fmt: skip
    written = ready(kit, options)
    if as_json:
        print_json({"resources": str(written), "task": task, "reply_after": reply_after})
        return
    line = f"{relative(written)}: starts the gate for each job; restart the site if it runs"
    out.print(Text(line), soft_wrap=True)
