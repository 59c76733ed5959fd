"""``figures``: what happened inside finished runs, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dpfedadamw.cli import display
from dpfedadamw.cli.foreign_code import may_run_named_code
from dpfedadamw.cli.options import DeviceOption, EscrowOption, JsonOption
from dpfedadamw.cli.terminal import (
    EXIT_WRONG_INPUT,
    err,
    out,
    print_json,
    progress_bar,
    refuse,
)
from dpfedadamw.rundir import RunDirectory, open_existing

if TYPE_CHECKING:
    from dpfedadamw.extensions.figures.drawing import Style
    from dpfedadamw.extensions.figures.gallery import Composed, Gallery
    from dpfedadamw.extensions.figures.reading import FinishedRun
    from dpfedadamw.reexecution.rounds import Rerun

_MOST_RUNS = 14
# The package's own, for the help text: to look them up takes as long as to load torch.
NAMES = (
    "second-moment-variance, drift, moments, bias-shift, update-norms, loss-landscape, hessian, "
    "iterations"
)


class PictureFormat(StrEnum):
    """As what a figure is written."""

    svg = "svg"
    pdf = "pdf"
    png = "png"


@may_run_named_code
def figures(
    run_dirs: Annotated[
        list[Path], typer.Argument(metavar="RUN_DIR...", help="Finished runs' folders.")
    ],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder for the figures, not inside a run; figures/RUN if left out.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--figure", metavar="NAME", help=f"{NAMES}; all if left out. Repeatable."),
    ] = None,
    kind: Annotated[PictureFormat, typer.Option("--format", help="svg, pdf or png.")] = (
        PictureFormat.svg
    ),
    escrow: EscrowOption = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where the runs' data lie, if not where specs say."),
    ] = None,
    device: DeviceOption = "auto",
    seed: Annotated[
        int, typer.Option(min=0, help="Of the landscape's plane and the Hessian's probe vectors.")
    ] = 0,
    records: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Use the first N test records for landscape and Hessian; all if left out.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Draw what happened inside finished runs: moments, drift, norms, curvature.

    Several runs share a figure. Values that a run does not store are recomputed bit for bit from
    its data and its seed (or `--escrow FILE`). A figure from private evidence says so, is called
    private-…, and is readable by you alone. Next to each figure are its numbers (CSV). A run that
    lacks what a figure needs is named with the reason; exit code 2 if nothing can be drawn.
    """
    from dpfedadamw.extensions.figures.gallery import collect
    from dpfedadamw.extensions.figures.publication import check_folder, open_folder
    from dpfedadamw.extensions.figures.registry import FIGURES, Settings

    unknown = [name for name in names or [] if name not in FIGURES]
    if unknown:
        refuse(f"--figure {unknown[0]}: unknown; use one of {', '.join(FIGURES)}")
    if len(run_dirs) > _MOST_RUNS:
        refuse(f"{len(run_dirs)} runs are too many for one figure, the most is {_MOST_RUNS}")
    wanted = [one for name, one in FIGURES.items() if not names or name in names]
    runs = [open_existing(path) for path in run_dirs]
    twice = next((run for at, run in enumerate(runs) if run in runs[:at]), None)
    if twice is not None:
        refuse(f"{twice.path}: is given twice")
    folder = out_dir if out_dir is not None else _folder(runs)
    check_folder(folder)
    finished = [_open(run, escrow or [], data, device) for run in runs]
    with _progress(quiet=as_json) as working:
        gallery = collect(wanted, finished, Settings(seed=seed, records=records), working)
        for one in gallery.left_out:
            err.print(Text(f"{one.figure}: {one.run}: {one.reason}"), soft_wrap=True)
        if not gallery.composed:
            if as_json:
                print_json(_as_dict(gallery, []))
            raise typer.Exit(EXIT_WRONG_INPUT)
        open_folder(folder)
        written = [_write(one, folder, kind.value) for one in gallery.composed]
    if as_json:
        print_json(_as_dict(gallery, written))
        return
    # Names alone, which fit into a line of a narrow terminal.
    rows = [
        (one.figure.name, paths[0].name)
        for one, paths in zip(gallery.composed, written, strict=True)
    ]
    out.print(display.facts([("folder", str(folder)), *rows]))


def _folder(runs: list[RunDirectory]) -> Path:
    more = f"-and-{len(runs) - 1}-more" if len(runs) > 1 else ""
    return Path("figures") / f"{runs[0].identifier}{more}"


def _open(run: RunDirectory, escrow: list[Path], data: Path | None, device: str) -> FinishedRun:
    from dpfedadamw.cli.replaying import keys_of
    from dpfedadamw.extensions.figures.reading import FinishedRun
    from dpfedadamw.reexecution.history import PastLedger
    from dpfedadamw.reexecution.rounds import Rerun
    from dpfedadamw.run.environment import device_of

    chosen = device_of(run.evidence, device)

    def rerun(directory: RunDirectory, place: Path | None) -> Rerun:
        keys = keys_of(PastLedger(directory.ledger).header, escrow)
        return Rerun(directory, keys, chosen, place)

    return FinishedRun(run, rerun, chosen, data)


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """Shows what is being done, and how much of how much is done."""
    with progress_bar(quiet=quiet) as progress:
        task = progress.add_task("reading runs", total=None)
        yield lambda what, done, total: progress.update(
            task, description=what, completed=done, total=total
        )


def _write(one: Composed, folder: Path, kind: str) -> list[Path]:
    from dpfedadamw.extensions.figures.drawing import draw
    from dpfedadamw.extensions.figures.publication import write
    from reports.figures import FigureData, as_csv

    exposure, table = one.figure.exposure, one.drawing.table
    rows = tuple((*row, exposure.made_from) for row in table.rows)
    contents = {
        kind: draw(one.drawing.chart, exposure, _style(), kind),
        "csv": as_csv(FigureData((*table.head, "made_from"), rows)),
    }
    return write(folder, one.figure.name, exposure, contents)


def _style() -> Style:
    """The house's style; the engine does not know the reports."""
    from dpfedadamw.extensions.figures.drawing import Style
    from reports import figures

    return Style(
        settings=figures.STANDALONE,
        looks=figures.LOOKS,
        ink=figures.INK,
        muted=figures.MUTED,
        warning=figures.ORANGE,
        metadata=figures.METADATA,
        ticks=figures.whole_ticks,
        apart=figures.tell_apart,
    )


def _as_dict(gallery: Gallery, written: list[list[Path]]) -> dict[str, Any]:
    return {
        "figures": [
            {
                "figure": one.figure.name,
                "file": str(paths[0]),
                "numbers": str(paths[1]),
                "runs": list(one.runs),
                "private": one.figure.exposure.private,
                "made_from": one.figure.exposure.made_from,
            }
            for one, paths in zip(gallery.composed, written, strict=True)
        ],
        "left_out": [vars(one) for one in gallery.left_out],
    }
