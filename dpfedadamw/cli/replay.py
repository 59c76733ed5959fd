"""``replay``: the whole run again, and which of its public files differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import RUNS, DeviceOption, EscrowOption, JsonOption, OutOption
from dpfedadamw.cli.terminal import (
    EXIT_NOT_PASSED,
    find_run,
    out,
    print_json,
    progress_bar,
    status,
)


@may_run_named_code
def replay(
    run_dir: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_DIR", help="A run's folder; the newest run if left out."),
    ] = None,
    out_dir: OutOption = RUNS,
    escrow: EscrowOption = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where the run's data are, if not where its spec says."),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Run a finished run again, from its data and its key or seed, and compare its public files.

    Nothing is written, charged or signed. Spec, model and its configuration are compared byte for
    byte, metrics except for their times, and the ledger by its charges, digests and claim. On the
    same processor with the same versions everything is the same. Otherwise the differences in
    processor and versions are listed as a possible reason. Exit code 0 where all is the same, 1
    where something differs.
    """
    from dpfedadamw.cli.replaying import keys_of
    from dpfedadamw.reexecution.history import PastLedger
    from dpfedadamw.reexecution.rounds import Rerun
    from dpfedadamw.reexecution.whole import replay as replay_whole
    from dpfedadamw.run.environment import device_of

    run = find_run(run_dir, out_dir)
    with status("reading the data and dividing them among clients", quiet=as_json):
        keys = keys_of(PastLedger(run.ledger).header, escrow or [])
        rerun = Rerun(run, keys, device_of(run.evidence, device), data)
    with progress_bar(quiet=as_json) as progress:
        task = progress.add_task("running again", total=None)
        found = replay_whole(
            rerun,
            run,
            lambda done, rounds: progress.update(task, completed=done, total=rounds),
        )
    if as_json:
        print_json(
            {
                "run": run.identifier,
                "same": found.same,
                "files": [vars(one) for one in found.compared],
                "environment": list(found.differences),
            }
        )
    else:
        out.print(Text(f"run {run.identifier}, {found.rounds} rounds run again", style="bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in ("file", "", "what was compared"):
            table.add_column(heading, no_wrap=heading != "what was compared")
        for one in found.compared:
            mark = Text("same", "green") if one.same else Text("DIFFERS", "bold red")
            table.add_row(one.file, mark, one.note)
        out.print(table)
        if not found.same:
            out.print(Text(_why(found.differences), style="yellow"))
    if not found.same:
        raise typer.Exit(EXIT_NOT_PASSED)


def _why(differences: tuple[str, ...]) -> str:
    """What may explain a difference."""
    if not differences:
        return (
            "machine and versions are the same as in training, so they do not explain the "
            "difference: the run is not what its spec, data and key produce"
        )
    return (
        f"machine or versions differ ({'; '.join(differences)}), so rounding differs, and with it "
        "every digest; compare on the processor and versions of the training"
    )
