"""A sweep as its file says it: axes, seeds, searches, and all cells that they mean."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import overrides, reading
from dpfedadamw.spec.document import SWEEP_KEYS, TUNE, Document
from dpfedadamw.spec.matrix import printed
from dpfedadamw.spec.matrix.axes import Axis, axes_of
from dpfedadamw.spec.matrix.cells import MATRIX, Cell, cells_of
from dpfedadamw.spec.matrix.search import check_equal_effort
from dpfedadamw.spec.matrix.seeds import SEEDS, search_seeds_of, seeds_of
from dpfedadamw.spec.sections import NotTuned, TuneSpec
from dpfedadamw.spec.yamltext import write


@dataclass(frozen=True)
class Sweep:
    """A spec with all that it means.

    Attributes:
        name: The spec's name.
        description: The spec's description.
        axes: What varies, in the order of the file.
        seeds: The numbers of the repetitions; empty where there are none.
        vary: The axes of randomness that the numbers are given to.
        cells: Every combination, or the trials of its search; the seeds vary fastest, then the
            last axis.
        text: The sweep's file, with overrides applied, as it was understood.
        tune: How the best candidate is chosen, and what accounts for it.
        grids: The axes of the search in each combination of the matrix, by the labels of that.
        expected: What a paper prints for the cells, one table for each measure.
        readings: What the paper does not say, by the field that is set here in its place.
    """

    name: str
    description: str
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    vary: tuple[str, ...]
    cells: tuple[Cell, ...]
    text: str = field(repr=False)
    tune: TuneSpec = field(default_factory=NotTuned)
    grids: Mapping[tuple[str, ...], tuple[Axis, ...]] = field(default_factory=dict)
    expected: tuple[printed.PrintedTable, ...] = ()
    readings: Mapping[str, str] = field(default_factory=dict)

    @property
    def searches(self) -> dict[tuple[str, ...], list[Cell]]:
        """The cells of each search, by the labels of the matrix; none without a grid."""
        found: dict[tuple[str, ...], list[Cell]] = {}
        for cell in self.cells if self.grids else ():
            found.setdefault(cell.combination, []).append(cell)
        return found


def load_sweep(path_or_name: str | Path, changes: Sequence[str] = ()) -> Sweep:
    """Read a sweep from a file, or a shipped one by name; a plain spec is a sweep of one cell.

    Args:
        path_or_name: As in `load`.
        changes: `dotted.path=value` each, applied to every cell before its own values.

    Raises:
        SpecError: With all that is wrong, in the sweep itself or in any of its cells.
    """
    document = reading.read(path_or_name)
    overrides.apply(document, changes)
    problems: list[SpecProblem] = []
    axes = axes_of(document, (MATRIX,), problems)
    seeds = seeds_of(document, problems)
    own = search_seeds_of(document, seeds, problems)
    expected = printed.expected(document, {axis.name: axis.labels for axis in axes}, problems)
    changed = [change for axis in axes for each in axis.changes for change in each]
    readings = printed.readings(document, changed, problems)
    if problems:
        raise SpecError(problems)
    if not isinstance(document.value, dict):
        # A file that holds no keys at all is refused as a spec is.
        reading.specified(document)
    text = write(document.value)
    base = _without(document)
    grids: dict[tuple[str, ...], tuple[Axis, ...]] = {}
    cells = tuple(cells_of(base, axes, seeds, own, grids))
    check_equal_effort(document, grids)
    first = cells[0].spec
    name, tune = first.name, first.tune
    if tune.selection == "private" and (axes or seeds.numbers):
        path = (MATRIX,) if axes else SEEDS
        message = (
            "a private selection is for one spec; leave out the matrix, and write one file for "
            "each spec"
        )
        raise SpecError([document.place(path, key=True).problem(path, message)])
    return Sweep(
        name, first.description, axes, seeds.numbers, seeds.vary, cells, text, tune, grids,
        expected, readings,
    )  # fmt: skip


def load_private_selection(path_or_name: str | Path, changes: Sequence[str] = ()) -> Sweep | None:
    """Read a private selection as `load_sweep` does; None for what is none.

    Raises:
        SpecError: If it cannot be read, or is wrong.
    """
    document = reading.read(path_or_name)
    overrides.apply(document, changes)
    section = document.at((TUNE,))
    if not isinstance(section, dict) or section.get("grid") is None:
        return None
    if section.get("selection") != "private":
        return None
    return load_sweep(path_or_name, changes)


def _without(document: Document) -> Document:
    """The document's spec alone."""
    base = copy.copy(document)
    if isinstance(document.value, dict):
        base.value = {key: value for key, value in document.value.items() if key not in SWEEP_KEYS}
    return base
