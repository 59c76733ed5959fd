"""The results of a sweep: a row for each cell that is done, and which candidates are best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedadamw.cli.terminal import refuse, status
from dpfedadamw.extensions.sweeps.commands.choice import once

if TYPE_CHECKING:
    from dpfedadamw.extensions.sweeps.folder import SweepFolder
    from dpfedadamw.extensions.sweeps.search import Best
    from dpfedadamw.spec.matrix import Cell, Sweep


def known_in(tables: Sequence[Path], sweep: Sweep) -> dict[str, dict[str, Any]]:
    """What tables of results say of finished cells of the sweep: their runs' own columns."""
    from dpfedadamw.extensions.sweeps.folder import named
    from reports import run_rows

    ours = {named(one) for cell in sweep.cells for one in (cell, *cell.released)}
    # A run's own row has these also where they are empty.
    always = (*run_rows.COLUMNS, *run_rows.MACHINE)
    found: dict[str, dict[str, Any]] = {}
    for path in tables:
        rows = read_results(path, "--from ")
        taken = {str(row["cell"]): row for row in rows if row["cell"] in ours}
        if not taken:
            refuse(
                f"--from {path}: none of its {len(rows)} cells is one of this sweep; give results "
                "of the same specs, paths of the data included"
            )
        for digest, row in taken.items():
            own = {
                name: row.get(name)
                for name in run_rows.OF_THE_RUN
                if row.get(name) is not None or name in always
            }
            found.setdefault(digest, own)
    return found


def read_results(path: Path, option: str = "") -> list[dict[str, Any]]:
    """The rows of a sweep's folder or of its results.csv."""
    from reports import run_rows
    from reports.errors import ReportError

    with status("reading results", quiet=False):
        try:
            return run_rows.read_csv(path / "results.csv" if path.is_dir() else path)
        except ReportError as error:
            refuse(f"error: {option}{error}")


def bests_of(sweep: Sweep, folder: SweepFolder) -> dict[tuple[str, ...], Best]:
    """The best candidate of every search whose cells are all done."""
    from dpfedadamw.extensions.sweeps.search import best_of

    found = {}
    for labels, cells in sweep.searches.items():
        scores: dict[str, float] = {}
        for cell in cells:
            row = folder.cell(cell).result() or {}
            measure = str(row.get("tune_score"))
            score = row.get(measure)
            if isinstance(score, int | float):
                # Of losses the lowest is best.
                scores[cell.digest] = -float(score) if measure.endswith("_loss") else float(score)
            elif score is None and "tune_score" in row:
                # A finished run has none where a loss is not finite, or training diverged.
                scores[cell.digest] = -math.inf
        best = best_of(cells, sweep.grids[labels], scores)
        if best is not None:
            found[labels] = best
    return found


def released(
    bests: Mapping[tuple[str, ...], Best], asked: Iterable[Cell] | None = None
) -> list[Cell]:
    """The runs that release the best candidates, not their trials; of the requested cells."""
    cells = [cell for best in bests.values() for cell in best.cells[0].released]
    digests = None if asked is None else {cell.digest for cell in asked}
    return [cell for cell in once(cells) if digests is None or cell.digest in digests]


def results_of(
    sweep: Sweep, folder: SweepFolder, bests: Mapping[tuple[str, ...], Best]
) -> list[dict[str, Any]]:
    """The rows of all cells of the sweep that are done, in its order."""
    from dpfedadamw.extensions.sweeps.folder import named

    rows = []
    for cell in (*sweep.cells, *released(bests)):
        row = folder.cell(cell).result()
        if row is not None:
            labels = {"cell": named(cell), **_columns(cell), "seed": cell.seed}
            chosen = _chosen_as(cell, sweep, bests)
            rows.append({**labels, **row, **chosen, **_beside(sweep, cell)})
    return rows


def _columns(cell: Cell) -> dict[str, str]:
    """A cell's labels by what its axes are called in the results, where no name is taken twice."""
    from reports import run_rows

    known = run_rows.columns_of([dict.fromkeys((*run_rows.SEARCH, *run_rows.SOMETIMES), "")])
    return {
        (run_rows.AXIS + name if name in known else name): label
        for name, label in cell.labels.items()
    }


def _beside(sweep: Sweep, cell: Cell) -> dict[str, Any]:
    """What a paper prints for a cell, and which fields of the sweep it does not state."""
    from reports import run_rows

    found: dict[str, Any] = {}
    for table in sweep.expected:
        number = table.of(cell.values)
        if number is not None:
            name = f"{run_rows.EXPECTED}{table.measure}"
            found |= {name: number.value, f"{name}{run_rows.DEVIATION}": number.deviation}
            found[run_rows.SOURCE] = table.source
    if sweep.readings:
        found[run_rows.READINGS] = ", ".join(sweep.readings)
    return found


def _chosen_as(
    cell: Cell, sweep: Sweep, bests: Mapping[tuple[str, ...], Best]
) -> dict[str, str | int]:
    """What the results say of a cell of a search: nothing of any other cell."""
    from reports import run_rows

    if not sweep.grids:
        return {}
    best = bests.get(cell.combination)
    found: dict[str, str | int] = {} if best is None else {"candidates": best.candidates}
    if cell.released:
        found["selected"] = run_rows.TRIAL
    elif best is not None and cell.digest in {one.digest for one in best.reported}:
        found["selected"] = run_rows.SELECTED
        found["on_the_grids_edge"] = ", ".join(best.edges)
    return found


def write_results(folder: SweepFolder, rows: Sequence[dict[str, Any]]) -> str | None:
    """Write the results; returns why there is no Parquet, or None."""
    from reports import run_rows
    from reports.errors import ReportError
    from reports.files import write_atomic

    write_atomic(folder.csv, run_rows.as_csv(rows).encode(), 0o644)
    try:
        write_atomic(folder.parquet, run_rows.as_parquet(rows), 0o644)
    except ReportError as error:
        return str(error)
    return None
