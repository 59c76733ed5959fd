"""``sweep SPEC``: run every combination of a spec."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from dpfedadamw.cli.foreign_code import handed_on, may_run_named_code
from dpfedadamw.cli.options import DeviceOption, JsonOption, SetOption, SpecArgument
from dpfedadamw.cli.terminal import err, refuse
from dpfedadamw.errors import DpfedadamwError

if TYPE_CHECKING:
    from dpfedadamw.extensions.sweeps.runner import Job

SWEEPS = Path("sweeps")


class SweepCommands(TyperGroup):
    """`sweep SPEC` runs a sweep; `sweep merge` and `sweep table` are commands of their own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let a spec stand where a command's name would."""
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["run", *args]
        return list(super().parse_args(ctx, args))


@may_run_named_code
def sweep_run(
    spec: SpecArgument,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The sweep's folder. [default: sweeps/NAME]"),
    ] = None,
    changes: SetOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="AXIS=LABEL",
            help="Run only cells with this label; AXIS=A|B for several. Repeatable: all must "
            "match.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="Runs at a time.")] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Run every N-th cell from the I-th on, for N machines; for a search with a "
            "matrix, every N-th search.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="List the cells, which are done, and the expected time."),
    ] = False,
    gpu_rate: Annotated[
        float,
        typer.Option(
            "--gpu-rate",
            metavar="TFLOPS",
            min=1e-3,
            max=1e6,
            help="With --dry-run: assumed speed of one GPU, in 10^12 operations per second. The "
            "default is an eighth of an RTX 4090's: small batches do not fill it.",
        ),
    ] = 10.0,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="Try each combination for two small rounds in a separate folder, with random "
            "records instead of published data and few parameters instead of published models.",
        ),
    ] = False,
    erase_evidence: Annotated[
        bool,
        typer.Option(
            "--erase-evidence",
            help="Erase a run's private evidence, most of its size, once its audit passed and its "
            "result is stored; also for runs already done. Nobody can audit them again.",
        ),
    ] = False,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="RESULTS",
            help="Take finished cells from the results of another folder or machine, such as a "
            "published results.csv, instead of running them. Repeatable; the first counts.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Run every combination of a spec's matrix under every seed, except those already done.

    Each cell is a run like any other: trained, audited, reported and signed. The same command
    continues an interrupted sweep. Exit code 0 if all cells are done and their audits passed.
    """
    from dpfedadamw.extensions.sweeps.commands.choice import chosen_cells, once
    from dpfedadamw.extensions.sweeps.commands.ending import tell
    from dpfedadamw.extensions.sweeps.commands.execution import run_cells
    from dpfedadamw.extensions.sweeps.commands.listing import list_cells
    from dpfedadamw.extensions.sweeps.commands.results import (
        bests_of,
        known_in,
        released,
        results_of,
        write_results,
    )
    from dpfedadamw.extensions.sweeps.folder import SweepFolder
    from dpfedadamw.extensions.sweeps.inputs import check_inputs
    from dpfedadamw.extensions.sweeps.runner import Job
    from dpfedadamw.spec.matrix import load_sweep
    from reports.errors import ReportError

    sweep = load_sweep(spec, changes or ())
    name = f"{sweep.name}-smoke" if smoke else sweep.name
    folder = SweepFolder(out_dir if out_dir is not None else SWEEPS / name)
    if sweep.tune.selection == "private":
        from dpfedadamw.extensions.sweeps.commands.selection import select

        if erase_evidence:
            refuse(
                "--erase-evidence: a private selection keeps only the winner's evidence; leave the "
                "option out, and erase that evidence later with: dpfedadamw erase"
            )
        given = {"--only": only, "--shard": shard, "--smoke": smoke, "--from": known}
        partial = [option for option, value in given.items() if value]
        select(sweep, folder.path, jobs, device, partial, dry_run, as_json)
        return
    if smoke and known:
        refuse("--from: --smoke runs other cells than a table has; leave one of the two out")
    folder = replace(folder, known=known_in(known or (), sweep))
    cells, reported = chosen_cells(sweep, only or (), shard)
    if smoke:
        from dpfedadamw.extensions.sweeps.smoke import small

        cells, replaced = small(cells, folder.path)
        sweep = replace(sweep, cells=tuple(small(sweep.cells, folder.path)[0]))
        reported = once(one for cell in cells for one in cell.released)
        if not as_json:
            err.print(Text("; ".join(["two rounds each", *replaced]), style="dim"))
    if dry_run:
        list_cells(sweep, cells, reported, folder, gpu_rate * 1e12, as_json)
        return
    wanted = [Job(cell, folder.cell(cell)) for cell in once(cells)]
    check_inputs(
        cell
        for cell in once([*cells, *(one for cell in cells for one in cell.released)])
        if folder.cell(cell).result() is None
    )
    folder.begin(sweep.text)
    for one in sweep.cells:
        for cell in (one, *one.released):
            folder.keep_known(cell)
    options = ["--device", device, *handed_on()]

    def run(part: Sequence[Job]) -> None:
        if part:
            run_cells(folder, part, min(jobs, len(part)), options, erase_evidence, as_json)

    try:
        run(wanted)
        bests = bests_of(sweep, folder)
        last = [Job(cell, folder.cell(cell)) for cell in released(bests, reported)]
        run(last)
    except BaseException as error:
        error.add_note("every run was stopped; the same command continues")
        # What stopped the sweep is said, and not that a full disk takes no results either.
        with suppress(DpfedadamwError, ReportError, OSError):
            write_results(folder, results_of(sweep, folder, bests_of(sweep, folder)))
        raise
    rows = results_of(sweep, folder, bests)
    missing = write_results(folder, rows)
    tell(sweep, folder, [*wanted, *last], bests, rows, missing, as_json)
