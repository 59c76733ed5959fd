"""What a sweep says once it is over, and the exit code that it ends with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import typer

from dpfedadamw.cli import display
from dpfedadamw.cli.terminal import EXIT_NOT_PASSED, out, print_json, relative
from dpfedadamw.extensions.sweeps.alarms import shared_noise

if TYPE_CHECKING:
    from dpfedadamw.extensions.sweeps.folder import SweepFolder
    from dpfedadamw.extensions.sweeps.runner import Job
    from dpfedadamw.extensions.sweeps.search import Best
    from dpfedadamw.spec.matrix import Sweep


def tell(
    sweep: Sweep,
    folder: SweepFolder,
    jobs: Sequence[Job],
    bests: Mapping[tuple[str, ...], Best],
    rows: Sequence[dict[str, Any]],
    missing: str | None,
    as_json: bool,
) -> None:
    """Say what came of it, and end by it."""
    from reports import run_rows

    failed = [job for job in jobs if job.state == "failed"]
    later = {cell.combination: len(cell.released) for cell in sweep.cells}
    many = len(sweep.cells) + sum(later.values())
    refused = [row for row in rows if row["audit"] not in run_rows.PASSED]
    clustered = shared_noise(rows)
    if as_json:
        failures = {job.cell.digest: job.said for job in failed}
        print_json(
            {
                "folder": str(folder.path), "cells": many, "done": len(rows),
                "failed": failures, "not_passed": [row["run"] for row in refused], "results": rows,
            }
        )  # fmt: skip
    else:
        facts = [
            ("sweep", f"{len(rows)} of {many} cells are done"),
            *_told_of_searches(sweep, folder, bests, {job.cell.combination for job in jobs}),
            *([("failed", f"{len(failed)}; the same command retries them")] if failed else []),
            *([("not passed", f"the audit of {len(refused)} says FAIL or NOT VERIFIED")]
              if refused else []),
            *([("alarms", clustered)] if clustered else []),
            *([("privacy", "each run claims its own ε; all of them together spend more")]
              if sum(row["unit"] != "none" for row in rows) > 1 else []),
            ("results", str(relative(folder.csv.resolve()))),
            *([("", missing)] if missing else [("", str(relative(folder.parquet.resolve())))]),
            ("table", f"dpfedadamw sweep table {relative(folder.csv.resolve())} --rows AXIS"),
        ]  # fmt: skip
        out.print(display.facts(facts))
    if failed or refused:
        raise typer.Exit(EXIT_NOT_PASSED)


def _told_of_searches(
    sweep: Sweep,
    folder: SweepFolder,
    bests: Mapping[tuple[str, ...], Best],
    asked: Set[tuple[str, ...]],
) -> list[tuple[str, str]]:
    """The best candidates of the searches that were asked for, and what is to be said of them."""
    if not sweep.grids:
        return []
    facts = []
    known = {labels: best for labels, best in bests.items() if labels in asked}
    for labels, best in known.items():
        cell = best.cells[0]
        settings = ", ".join(f"{name} {label}" for name, label in cell.candidate.items())
        name = f"best, {', '.join(labels)}" if labels else "best"
        score = cell.spec.tune.score or "score"
        found = f"{-best.score:.4g}" if score.endswith("_loss") else f"{best.score:.1%}"
        said = f"{settings}: {score} {found}, of {best.candidates}"
        if not math.isfinite(best.score):
            said = f"{settings}, the first of {best.candidates}: none has a {score} in all its runs"
        facts.append((name, said))
        run = folder.cell(best.reported[0]).newest_run()
        facts += [("", str(relative(run.path)))] if run is not None else []
        facts += [
            ("warning", f"the best {axis} is at the edge of its grid; widen the grid and continue")
            for axis in best.edges
        ]
    missing = len(asked) - len(known)
    if missing:
        of = "one search" if missing == 1 else f"{missing} searches"
        facts.append(("no best", f"of {of} yet: not all cells are done"))
    if sweep.tune.selection == "unaccounted" and sweep.cells[0].spec.privacy.unit != "none":
        said = "the choice used the private records, and no ε covers it; the reports say so"
        facts.append(("privacy", said))
    return facts
