"""What a sweep shows while it runs: a live table, and a line for each cell that ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dpfedadamw.extensions.sweeps.runner import Job

_MINUTE, _HOUR = 60, 3600


def line_of(job: Job, jobs: Sequence[Job]) -> Text:
    """One line on a cell that ended."""
    from reports.run_rows import judged

    done = sum(other.state == "done" for other in jobs)
    head = f"{done}/{len(jobs)}  {job.cell.label}: "
    if job.state == "done":
        row = job.folder.result() or {}
        accuracy, error = row.get("test_accuracy"), row.get("test_rmse")
        said = "no accuracy" if accuracy is None else f"{accuracy:.1%}"
        if accuracy is None and isinstance(error, int | float):
            said = f"RMSE {error:.4g}"
        return Text(f"{head}{said}, audit {judged(row)}, {duration(job.seconds)}")
    if job.state == "elsewhere":
        return Text(f"{head}another sweep is running it; waiting", style="dim")
    return Text(f"{head}{job.state}: {job.said}", style="red")


def progress(jobs: Sequence[Job], earlier: int, processes: int) -> Table:
    """What runs now, and when all may be done."""
    table = Table.grid(padding=(0, 2, 0, 0))
    # A long label is wrapped between words; the changing numbers next to it are not.
    table.add_column(overflow="fold")
    for _ in range(3):
        table.add_column(no_wrap=True)
    for job in jobs:
        if job.state == "running":
            rounds = job.cell.spec.federation.rounds
            completed, accuracy = job.folder.completed_rounds()
            said = "" if accuracy is None else f"accuracy {accuracy:.1%}"
            at = f"round {completed} of {rounds}" if completed < rounds else "audit and report"
            table.add_row(job.cell.label, at, said, duration(job.seconds))
    ended = [job for job in jobs if job.state == "done" and job.seconds]
    left = sum(job.state in ("waiting", "running", "elsewhere") for job in jobs)
    text = f"{len(ended) + earlier} of {len(jobs)} cells done"
    if ended:
        mean = sum(job.seconds for job in ended) / len(ended)
        text += f"; the rest in about {duration(mean * left / processes)}"
    table.add_row(Text(text, style="bold"))
    return table


def duration(seconds: float) -> str:
    """A span of time in words."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.1f} h"
