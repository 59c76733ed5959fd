"""A site's gate on Flower from its settings: cells made, the gate opened, messages carried."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dpfedadamw.extensions.gate.cells import DATA, SOCKET, Cell, Cells, check, folders_of
from dpfedadamw.extensions.gate.flower.link import Address
from dpfedadamw.extensions.gate.flower.relay import serve
from dpfedadamw.extensions.gate.windows import Windows, refuse_short
from dpfedadamw.federation.flower.required import require

_TRAINER = "dpfedadamw.extensions.gate.flower.trainer"


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a site takes part.

    Attributes:
        data: A folder with one folder a shard.
        address: The SuperLink's.
        reply_after: Seconds from a message's arrival to the reply's departure.
        at_once: Shards that train at the same time. With more than 1, a shard that takes all
            processors can make others late.
        scratch: Memory that a shard's files may take, as ``mount`` has it: ``1g``.
        node_config: Flower's node configuration, as ``key=value`` words; ``data`` is set here.
        logs: Folder for what SuperNodes and jobs write; None keeps nothing.
    """

    data: Path
    address: Address
    reply_after: float = 60.0
    at_once: int = 1
    scratch: str = "1g"
    node_config: str = ""
    logs: Path | None = None


def supernode(settings: Path, options: Options, tell: Callable[[str], None]) -> None:
    """Take part in the SuperLink's runs without an end.

    Args:
        settings: The gate.yaml.
        options: How.
        tell: Called with a line for the operator when something happens.

    Raises:
        DpfedadamwError: If the settings, the data or the key are not what they should be, or this
            machine cannot isolate shards.
        FlowerError: If Flower is not installed.
    """
    from dpfedadamw.extensions.gate.book import key_path
    from dpfedadamw.extensions.gate.door import Gate
    from dpfedadamw.extensions.gate.settings import read

    require()
    told = read(settings)
    folders = folders_of(options.data, told.shards)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gate-")))
        private = [settings, told.ledger, told.anchor, key_path(), options.data, work]
        private += [one for one in (options.address.key, options.logs) if one]
        check(private, work)
        gate = stack.enter_context(Gate.open(settings, "flower"))
        release = gate.release_seconds()
        refuse_short(options.reply_after, release)
        if options.logs is not None:
            options.logs.mkdir(parents=True, exist_ok=True)
        node_config = f'{options.node_config} data="{DATA}"'.strip()
        made = stack.enter_context(Cells(_TRAINER))
        cells = [
            Cell(
                made,
                folder,
                work / f"{place:04d}",
                [SOCKET, node_config],
                options.scratch,
                options.logs and options.logs / f"shard-{place:04d}.log",
            )
            for place, folder in enumerate(folders)
        ]
        site = stack.enter_context(Windows(cells, gate.model, options.at_once, release))
        tell(f"{len(cells)} shards, each in a cell of its own for each message")
        serve(gate, site, options.address, options.reply_after, tell)
