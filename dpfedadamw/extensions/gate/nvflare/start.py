"""The gate with its cells, from options: tried when it is installed, opened for each job."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dpfedadamw.extensions.gate.cells import SOCKET, Cell, Cells, check, folders_of
from dpfedadamw.extensions.gate.door import Gate
from dpfedadamw.extensions.gate.nvflare.install import KitError, install
from dpfedadamw.extensions.gate.nvflare.options import Options
from dpfedadamw.extensions.gate.windows import Windows, refuse_short

_TRAINER = "dpfedadamw.extensions.gate.nvflare.trainer"
APP = "/job"
"""Where a shard's cell has the job's app."""


def ready(kit: Path, options: Options) -> Path:
    """Try everything that a job will need, and install the gate.

    Returns:
        The resources.json that was written.

    Raises:
        DpfedadamwError: If settings, ledger, key, data or kit are not what they should be, or this
            machine cannot isolate shards.
    """
    if importlib.util.find_spec("nvflare") is None:
        raise KitError("NVFlare is not installed here; install with: pip install nvflare==2.9.0")
    with _prepared(options, kit) as (gate, _, private):
        refuse_short(options.reply_after, gate.release_seconds())
        folders_of(Path(options.data), gate.shards)
        return install(kit, options, private)


@contextmanager
def opened(options: Options, kit: Path, app: Path) -> Iterator[tuple[Gate, Windows]]:
    """The gate and its windows, for one job.

    Args:
        options: The gate's.
        kit: The site's startup kit, which no job may see.
        app: The job's app, as it was submitted; the cells show it, and lie next to it.

    Raises:
        DpfedadamwError: As `ready`.
    """
    with ExitStack() as stack:
        gate, work, _ = stack.enter_context(_prepared(options, kit, app.parent))
        logs = Path(options.logs) if options.logs else None
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        made = stack.enter_context(Cells(_TRAINER))
        cells = [
            Cell(
                made,
                folder,
                work / f"{place:04d}",
                [SOCKET, APP],
                scratch=options.scratch,
                log=logs and logs / f"shard-{place:04d}.log",
                more={APP: app},
            )
            for place, folder in enumerate(folders_of(Path(options.data), gate.shards))
        ]
        release = gate.release_seconds()
        yield gate, stack.enter_context(Windows(cells, gate.model, options.at_once, release))


@contextmanager
def _prepared(
    options: Options, kit: Path, within: Path | None = None
) -> Iterator[tuple[Gate, Path, list[Path]]]:
    """The gate, a folder for cells, and what no job may see."""
    os.environ["DPFEDADAMW_KEYS"] = options.keys
    settings = Path(options.settings)
    with (
        tempfile.TemporaryDirectory(prefix="gate-", dir=within) as made,
        Gate.open(settings, "nvflare") as gate,
    ):
        work, told = Path(made), gate.settings
        private = [settings, told.ledger, told.anchor, Path(options.keys), Path(options.data)]
        private += [Path(options.logs)] if options.logs else []
        check([*private, kit, work], work)
        yield gate, work, private
