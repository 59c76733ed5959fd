"""Which cells of a sweep are asked for: `--only` and `--shard`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dpfedadamw.cli.terminal import refuse

if TYPE_CHECKING:
    from dpfedadamw.spec.matrix import Cell, Sweep

_SHARD = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})")


def once(cells: Iterable[Cell]) -> list[Cell]:
    """Cells that mean the same run are one."""
    return list({cell.digest: cell for cell in cells}.values())


def chosen_cells(
    sweep: Sweep, only: Sequence[str], shard: str | None
) -> tuple[list[Cell], list[Cell]]:
    """The cells that are asked for.

    Returns:
        Cells, and what candidates are released as, each candidate's: the best of them is not known
        yet.
    """
    cells = list(sweep.cells)
    released = once(one for cell in cells for one in cell.released)
    found: dict[str, dict[str, None]] = {}
    for cell in (*cells, *released):
        numbered = {} if cell.seed is None else {"seed": str(cell.seed)}
        for name, label in {**cell.labels, **numbered}.items():
            found.setdefault(name, {})[label] = None
    labels = {name: tuple(known) for name, known in found.items()}
    for text in only:
        name, equals, values = text.partition("=")
        if not equals or name not in labels:
            known = ", ".join(labels) or "none: the spec has no matrix"
            refuse(f"--only {text}: write AXIS=LABEL; the axes are {known}")
        wanted = values.split("|")
        unknown = [value for value in wanted if value not in labels[name]]
        if unknown:
            refuse(f"--only {text}: {name} has no {unknown[0]}; it has {', '.join(labels[name])}")
        cells, released = (
            [cell for cell in part if _label(cell, name) in wanted] for part in (cells, released)
        )
    if not cells and not released:
        refuse("--only: no cell is left")
    return (cells, released) if shard is None else _shared(sweep, cells, released, shard)


def _shared(
    sweep: Sweep, cells: list[Cell], released: list[Cell], shard: str
) -> tuple[list[Cell], list[Cell]]:
    """One machine's share of the cells; a search stays whole, because its best is chosen there."""
    match = _SHARD.fullmatch(shard)
    if match is None or int(match[1]) > int(match[2]):
        refuse(f"--shard {shard}: write I/N, such as 1/4 for the first of four machines")
    share = slice(int(match[1]) - 1, None, int(match[2]))
    if not sweep.grids:
        cells = cells[share]
    else:
        searches = dict.fromkeys(cell.combination for cell in (*cells, *released))
        own = list(searches)[share]
        cells, released = (
            [cell for cell in part if cell.combination in own] for part in (cells, released)
        )
    if not cells and not released:
        what = "searches" if sweep.grids else "cells"
        refuse(f"--shard {shard}: there are fewer {what} than machines")
    return cells, released


def _label(cell: Cell, name: str) -> str:
    return str(cell.seed) if name == "seed" else cell.labels.get(name, "")
