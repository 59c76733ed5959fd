"""``gate supernode``: a site's gate on Flower."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from dpfedadamw.cli.terminal import out
from dpfedadamw.extensions.gate.arguments import (
    AtOnceOption,
    DataOption,
    LogsOption,
    ReplyOption,
    ScratchOption,
    SettingsArgument,
)


def gate_supernode(
    settings: SettingsArgument,
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink's Fleet API.")],
    data: DataOption,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Speak to the SuperLink without TLS.")
    ] = False,
    root_certificates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Certificate that signs the SuperLink's; else the system's."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Private key by which the SuperLink knows this site."),
    ] = None,
    reply_after: ReplyOption = 60.0,
    at_once: AtOnceOption = 1,
    scratch: ScratchOption = "1g",
    node_config: Annotated[
        str,
        typer.Option(metavar="WORDS", help="Flower's node configuration; data is set to /data."),
    ] = "",
    logs: LogsOption = None,
) -> None:
    """Take part in Flower runs through the gate: jobs train on shards, noised updates leave.

    To the SuperLink this is one SuperNode. The job's app runs once for each shard and message, in a
    cell without a network. Runs until it is ended.
    """
    from dpfedadamw.extensions.gate.flower.link import Address
    from dpfedadamw.extensions.gate.flower.start import Options, supernode

    address = Address(superlink=superlink, insecure=insecure, authority=root_certificates, key=key)
    options = Options(
        data=data, address=address, reply_after=reply_after, at_once=at_once, scratch=scratch,
        node_config=node_config, logs=logs,
    )  # fmt: skip
    # So that the cells' folders are removed.
    signal.signal(signal.SIGTERM, _end)
    try:
        supernode(settings, options, lambda line: out.print(Text(line), soft_wrap=True))
    except _Ended:
        out.print("ended")


class _Ended(BaseException):
    """SIGTERM came; no error, so that nothing that goes on after errors goes on after this."""


def _end(*_: object) -> None:
    raise _Ended
