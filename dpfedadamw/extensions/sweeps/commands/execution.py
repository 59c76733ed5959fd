"""Runs the cells of a sweep, and keeps of each what its results are made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text

from dpfedadamw.cli.terminal import err, status
from dpfedadamw.extensions.sweeps.commands.progress import line_of, progress

if TYPE_CHECKING:
    from dpfedadamw.extensions.sweeps.folder import SweepFolder
    from dpfedadamw.extensions.sweeps.runner import Job

_ERASED = "the results of the sweep are kept, and the evidence is not needed any more"


def run_cells(
    folder: SweepFolder,
    jobs: Sequence[Job],
    processes: int,
    options: Sequence[str],
    erase: bool,
    quiet: bool,
) -> None:
    """Run what is to do, with a live table on a terminal and a line a cell elsewhere."""
    from dpfedadamw.extensions.sweeps.commands.processes import starting
    from dpfedadamw.extensions.sweeps.runner import Runner

    for job in jobs:
        if job.folder.result() is not None:
            job.state = "done"
    waiting = [job for job in jobs if job.state != "done"]
    earlier = len(jobs) - len(waiting)
    if earlier and not quiet:
        err.print(Text(f"{earlier} of {len(jobs)} cells were done before", style="dim"))
    if erase and earlier:
        with status("erasing evidence", quiet):
            for job in jobs:
                if job.state == "done":
                    _erase(job)

    def finished(job: Job) -> None:
        _keep(job)
        if erase:
            _erase(job)

    runner = Runner(folder, processes, starting(processes), finished, options)
    live = err.is_terminal and not quiet
    with Live(console=err, transient=True, auto_refresh=False) if live else nullcontext() as shown:
        for ended in runner.run(waiting):
            if shown is not None:
                shown.update(progress(jobs, earlier, processes), refresh=True)
            if ended is not None and not quiet:
                err.print(line_of(ended, jobs), soft_wrap=True)


def _keep(job: Job) -> None:
    """Keep what a finished run says of itself to everybody, and on what it was computed."""
    from dpfedadamw.extensions.sweeps.folder import SweepError, machine_of
    from reports import run_rows
    from reports.errors import ReportError

    run = job.folder.newest_run()
    assert run is not None
    try:
        row = run_rows.row_of(run.path)
    except ReportError as error:
        raise SweepError(str(error)) from error
    machine = machine_of(run)
    job.folder.write_result({**row, **{name: machine.get(name) for name in run_rows.MACHINE}})


def _erase(job: Job) -> None:
    """Erase the evidence of a finished run whose audit passed and whose result is kept.

    A run that another process holds is left to it, as to a sweep of another machine that erases.
    """
    from dpfedadamw.errors import DpfedadamwError
    from dpfedadamw.extensions.sweeps.folder import SweepError
    from dpfedadamw.filing import after_training, erasure
    from dpfedadamw.storage.lock import HeldError
    from reports import run_rows
    from reports.errors import ReportError
    from reports.signatures import copies

    run, row = job.folder.newest_run(), job.folder.result()
    if run is None or row is None or row.get("run") != run.identifier:
        return
    if row.get("audit") not in run_rows.PASSED or row.get("signatures") != "holds":
        return
    try:
        key = after_training.load_key("auditor", None, [])
        # A reason that is recorded already stands.
        begun = copies.erased_at(run.path) is not None
        erasure.erase(run, key, None if begun else _ERASED)
    except HeldError:
        return
    except (ReportError, DpfedadamwError) as error:
        raise SweepError(f"--erase-evidence: {error}") from error
