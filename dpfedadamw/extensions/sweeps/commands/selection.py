"""A private selection as `sweep` runs it: foretold, run, and shown once there is a winner.

Nothing printed reveals how many trials there were, or how any but the winner did: logs are read by
the people the claim must hold against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import handed_on
from dpfedadamw.cli.terminal import (
    EXIT_NOT_PASSED,
    err,
    out,
    print_json,
    refuse,
    relative,
    status,
)

if TYPE_CHECKING:
    from dpfedadamw.extensions.sweeps.selection import Selection
    from dpfedadamw.rundir import RunDirectory
    from dpfedadamw.spec.matrix import Sweep
    from dpfedadamw.units.plan import RunPlan


def select(
    sweep: Sweep,
    path: Path,
    jobs: int,
    device: str,
    partial: Sequence[str],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a private selection, or say what it would cost.

    Args:
        sweep: The candidates.
        path: The sweep's folder.
        jobs: Trials at a time.
        device: Where they are run.
        partial: Options that run a part of a sweep, as they were given.
        dry_run: Whether nothing is run.
        as_json: Whether JSON is printed.
    """
    from dpfedadamw.extensions.sweeps import selection

    if partial:
        refuse(f"{partial[0]}: a private selection is run as a whole; leave it out")
    with status("accounting", quiet=as_json):
        plan = selection.planned(sweep)
    if dry_run:
        foretell(sweep, plan, plan.expected_claim(1), as_json)
        return
    assert plan.trials is not None
    with selection.held(path):
        winner = selection.finished(path, sweep)
        if winner is None:
            winner = _run(selection.drawn(path, sweep, plan.trials), jobs, device, as_json)
    _show(sweep, winner, as_json)


def _run(begun: Selection, jobs: int, device: str, quiet: bool) -> RunDirectory:
    """Run the trials that are not over, and publish the best."""
    from dpfedadamw.extensions.sweeps.commands.processes import starting
    from dpfedadamw.extensions.sweeps.runner import Job, Runner

    begun.begin()
    wanted = [Job(cell, begun.folder.cell(cell)) for cell in begun.cells()]
    for job in wanted:
        job.state = "done" if job.folder.result() is not None else "waiting"
    waiting = [job for job in wanted if job.state != "done"]

    def keep(job: Job) -> None:
        begun.keep_score(job.folder)

    processes = min(jobs, len(wanted))
    options = ["--device", device, *handed_on()]
    runner = Runner(begun.folder, processes, starting(processes), keep, options)
    try:
        with status("running trials; their number is secret", quiet=quiet):
            for _ in runner.run(waiting):
                pass
    except BaseException as error:
        error.add_note("every trial was stopped; the same command continues")
        raise
    failed = [job for job in wanted if job.state != "done"]
    if failed:
        text = (
            f"error: a trial has not finished: {failed[0].said}; nothing is published before all "
            "have; the same command continues"
        )
        err.print(Text(text), soft_wrap=True)
        raise typer.Exit(EXIT_NOT_PASSED)
    return begun.publish()


def foretell_alone(
    sweep: Sweep, expected: Callable[[RunPlan], Mapping[str, Any]], as_json: bool
) -> Mapping[str, Any]:
    """Say what a private selection will cost, for `epsilon`; return its claim, by `expected`."""
    from dpfedadamw.extensions.sweeps.selection import planned

    with status("accounting", quiet=as_json):
        plan = planned(sweep)
        claim = expected(plan)
    foretell(sweep, plan, claim, as_json)
    return claim


def foretell(sweep: Sweep, plan: RunPlan, claim: Mapping[str, Any], as_json: bool) -> None:
    """Say what a private selection will cost, before anything is drawn."""
    assert plan.trials is not None
    quantiles = {share: plan.trials.quantile(share) for share in (0.5, 0.99)}
    if as_json:
        shown = {key: value for key, value in claim.items() if key not in ("server", "profile")}
        law = {"mean": plan.trials.mean, "shape": plan.trials.shape}
        print_json(
            {
                **shown, "noise_multiplier": plan.noise_multiplier, "trials": law,
                "candidates": len(sweep.cells),
            }
        )  # fmt: skip
        return
    summary, _ = display.cost(sweep.name, plan, claim)
    out.print(summary)
    text = (
        f"{plan.trials.mean:g} trials of {len(sweep.cells)} candidates are expected; half of all "
        f"selections have at most {quantiles[0.5]}, and one in a hundred has more than "
        f"{quantiles[0.99]}"
    )
    out.print(Text(text), soft_wrap=True)


def _show(sweep: Sweep, winner: RunDirectory, as_json: bool) -> None:
    """Say which run is published, and end by its verdict."""
    from reports import run_rows

    row: dict[str, Any] = dict(run_rows.row_of(winner.path))
    if as_json:
        print_json({"winner": str(winner.path), "candidates": len(sweep.cells), "result": row})
    else:
        accuracy = row["test_accuracy"]
        facts = [
            ("test accuracy", "no accuracy" if accuracy is None else f"{accuracy:.1%}"),
            ("ε of the selection", f"{display.epsilon_text(row['epsilon_third_party'])} against a "
             "third party, who sees only the winner"),
            ("audit", run_rows.judged(row)),
            ("winner", str(relative(winner.path))),
            ("other trials", "erased; the server saw what was spent on them"),
        ]  # fmt: skip
        out.print(display.facts(facts))
    if row["audit"] != "PASS":
        raise typer.Exit(EXIT_NOT_PASSED)
