"""Sweeps: a spec with `matrix` and `seeds` means many specs, one for each combination.

    matrix:
      algorithm.learning_rate: [0.02, 0.05, 0.1]
      method:
        label: [DP-FedAvg, DP-FedAdamW]
        algorithm.name: [dp-fedavg, dp-fedadamw]
    seeds: {numbers: 5, vary: [weights, run]}

An axis whose name is a field's dotted path holds that field's values. An axis of any other name
holds a mapping of fields to lists of one length, which are taken together. Every combination of the
axes, under every seed, is a *cell*: a spec like any other, held to all that a spec is held to.

A search for hyper-parameters has its axes in `tune.grid`, written alike. Every combination of these
is a *candidate*, and each combination of the matrix is searched by itself, over as many candidates.

    tune:
      selection: private
      grid: {algorithm.learning_rate: [0.02, 0.05, 0.1]}

What a paper prints for the cells may stand beside them (`printed`).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpfedadamw.errors import SpecError, SpecProblem
from dpfedadamw.spec import overrides, printed, reading
from dpfedadamw.spec.document import (
    SWEEP_KEYS,
    TUNE,
    TUNE_KEYS,
    Document,
    KeyPath,
    Place,
    dotted,
)
from dpfedadamw.spec.sections import BudgetSpec, ReportSpec, Spec
from dpfedadamw.spec.tune_section import NotTuned, TuneSpec
from dpfedadamw.spec.yamlwriter import write, write_value

MATRIX, SEEDS = SWEEP_KEYS[:2]
_GRID, _PUBLIC_DATA = ((TUNE, key) for key in TUNE_KEYS)
_SELECTIONS = "private, public or unaccounted"
MOST_CELLS = 10_000
_MOST_SEEDS = 1_000
_LARGEST_SEED = 9_007_199_254_740_991
_LABEL = "label"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
# The field that each axis of randomness is drawn by.
SEED_FIELDS: Mapping[str, KeyPath] = {
    "data": ("data", "seed"),
    "partition": ("data", "partition", "seed"),
    "weights": ("model", "seed"),
    "run": ("randomness", "seed"),
}
_VARIED = ("weights", "run")


@dataclass(frozen=True)
class Axis:
    """What varies together.

    Attributes:
        name: The field's dotted path, or a name of its own.
        labels: Each value in short, all different.
        changes: For each value, the fields that it sets, with the place of each.
    """

    name: str
    labels: tuple[str, ...]
    changes: tuple[tuple[overrides.Change, ...], ...]


@dataclass(frozen=True)
class Cell:
    """One combination, under one seed.

    Attributes:
        values: The label of each axis, by the axis's name.
        seed: The number that the seeds of `vary` have in it; None where there are no seeds.
        spec: What is run.
        digest: SHA-256, in hexadecimal digits, of what is run: of the resolved spec without its
            name, its texts and its budget and, where nothing reproduces a run, with the number of
            its repetition.
        candidate: The label of each axis of the search, by the axis's name; empty without one.
        released: Of a search on public records, the cell that the candidate is on the private
            ones; else None.
    """

    values: Mapping[str, str]
    seed: int | None
    spec: Spec
    digest: str
    candidate: Mapping[str, str] = field(default_factory=dict)
    released: Cell | None = field(default=None, repr=False)

    @property
    def labels(self) -> dict[str, str]:
        """The label of every axis, of the matrix and of the search."""
        return {**self.values, **self.candidate}

    @property
    def label(self) -> str:
        """The cell in a few words."""
        parts = [f"{name.rpartition('.')[2]} {value}" for name, value in self.labels.items()]
        return ", ".join([*parts, *([] if self.seed is None else [f"seed {self.seed}"])]) or "only"


@dataclass(frozen=True)
class Sweep:
    """A spec with all that it means.

    Attributes:
        name: The spec's name.
        description: The spec's description.
        axes: What varies, in the order of the file.
        seeds: The numbers of the repetitions; empty where there are none.
        vary: The axes of randomness that the numbers are given to.
        cells: Every combination; the seeds vary fastest, then the last axis.
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
            found.setdefault(tuple(cell.values.values()), []).append(cell)
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
    axes = _axes(document, (MATRIX,), problems)
    seeds, vary = _seeds(document, problems)
    _search(document, problems)
    expected = printed.expected(document, {axis.name: axis.labels for axis in axes}, problems)
    changed = [change for axis in axes for each in axis.changes for change in each]
    readings = printed.readings(document, changed, problems)
    if problems:
        raise SpecError(problems)
    text = write(document.value)
    base = _without(document)
    many = len(seeds or (0,))
    for axis in axes:
        many *= len(axis.labels)
    _not_too_many(document, many)
    grids: dict[tuple[str, ...], tuple[Axis, ...]] = {}
    cells = tuple(_cells(base, axes, seeds, vary, grids))
    _equal_effort(document, grids)
    first = cells[0].spec
    name, tune = first.name, first.tune
    if tune.selection == "private" and (axes or seeds):
        key = MATRIX if axes else SEEDS
        message = "a private selection is of one spec; give tune.grid alone, and a file each"
        raise SpecError([document.place((key,), key=True).problem((key,), message)])
    return Sweep(
        name, first.description, axes, seeds, vary, cells, text, tune, grids, expected, readings
    )


def load_private_selection(path_or_name: str | Path, changes: Sequence[str] = ()) -> Sweep | None:
    """Read a private selection as `load_sweep` does; None for what is none.

    Raises:
        SpecError: If it cannot be read, or is wrong.
    """
    document = reading.read(path_or_name)
    overrides.apply(document, changes)
    section = _section(document, TUNE)
    if not isinstance(section, dict) or section.get("grid") is None:
        return None
    if section.get("selection") != "private":
        return None
    return load_sweep(path_or_name, changes)


def _not_too_many(document: Document, many: int) -> None:
    if many > MOST_CELLS:
        message = f"these are {many} runs, and at most {MOST_CELLS:,} are one sweep; split it"
        raise SpecError([document.place((MATRIX,)).problem((MATRIX,), message)])


def with_spec(cell: Cell, spec: Spec) -> Cell:
    """The cell, running another spec."""
    return replace(cell, spec=spec, digest=_digest(spec, cell.seed))


def _search(document: Document, problems: list[SpecProblem]) -> None:
    """Refuse a search that says nothing of what accounts for it."""
    section = _section(document, TUNE)
    if not isinstance(section, dict) or not section:
        return
    selection, path = section.get("selection"), (TUNE, "selection")
    if section.get("grid") is None:
        # A trial's own spec has none, and is a sweep of one run.
        if section.get("data") is not None:
            message = "tune.data is searched over tune.grid, which is missing"
            problems.append(document.place(_PUBLIC_DATA, key=True).problem(_PUBLIC_DATA, message))
    elif selection is None or selection == "none":
        message = (
            f"missing; say by what the search is accounted for: {_SELECTIONS}; a search that only "
            "compares, and whose best is not picked, is a matrix"
        )
        problems.append(document.place(path).problem(path, message))
    elif selection == "public" and not isinstance(section.get("data"), dict):
        message = (
            "missing; give the section data of the public records that are searched on, such as "
            "data: {dataset: mnist, clients: 10}"
        )
        problems.append(document.place(_PUBLIC_DATA).problem(_PUBLIC_DATA, message))
    elif selection != "public" and section.get("data") is not None:
        message = f"is searched on where selection is public, not {selection}; remove it"
        problems.append(document.place(_PUBLIC_DATA, key=True).problem(_PUBLIC_DATA, message))


def _equal_effort(document: Document, grids: Mapping[tuple[str, ...], tuple[Axis, ...]]) -> None:
    """Refuse searches of which one has more candidates than another."""
    sizes = {labels: _size(grid) for labels, grid in grids.items()}
    if len(set(sizes.values())) > 1:
        least, most = (pick(sizes, key=lambda one: sizes[one]) for pick in (min, max))
        message = (
            f"{', '.join(most)} has {sizes[most]} candidates and {', '.join(least)} has "
            f"{sizes[least]}; compare at equal effort: grids of as many candidates"
        )
        raise SpecError([document.place(_GRID).problem(_GRID, message)])


def _size(grid: Sequence[Axis]) -> int:
    many = 1
    for axis in grid:
        many *= len(axis.labels)
    return many


def _axes(document: Document, where: KeyPath, problems: list[SpecProblem]) -> tuple[Axis, ...]:
    section: Any = document.value
    for key in where:
        section = section.get(key) if isinstance(section, dict) else None
    if section is None:
        return ()
    if not isinstance(section, dict) or not section:
        message = "a section of axes is due, such as algorithm.learning_rate: [0.02, 0.05]"
        problems.append(document.place(where).problem(where, message))
        return ()
    found = []
    for name, value in section.items():
        try:
            found.append(_axis(name, value, document, where))
        except SpecError as error:
            problems += error.problems
    set_by: dict[KeyPath, str] = {}
    for axis in found:
        for change in axis.changes[0]:
            for path, other in set_by.items():
                shorter = min(len(path), len(change.path))
                if other != axis.name and path[:shorter] == change.path[:shorter]:
                    message = f"{dotted(change.path)} is set by {other} too; one axis sets a field"
                    problems.append(change.place.problem((*where, axis.name), message))
            set_by[change.path] = axis.name
    return tuple(found)


def _axis(name: str, value: Any, document: Document, where: KeyPath) -> Axis:
    here: KeyPath = (*where, name)
    if isinstance(value, list):
        columns = {name: value}
        labels = None
    elif isinstance(value, dict) and value.keys() - {_LABEL}:
        columns = {key: column for key, column in value.items() if key != _LABEL}
        labels = value.get(_LABEL)
        if not _NAME.fullmatch(name):
            message = "an axis is called by letters, digits, spaces, dots, dashes and underscores"
            raise SpecError([document.place(here, key=True).problem(here, message)])
    else:
        message = "a list of values, or a section of fields with a list each, is due"
        raise SpecError([document.place(here).problem(here, message)])
    listed = {**columns, **({} if labels is None else {_LABEL: labels})}
    for key, column in listed.items():
        path = here if columns is not value and isinstance(value, list) else (*here, key)
        if not isinstance(column, list) or not column:
            message = "a list of at least one value is due"
            raise SpecError([document.place(path).problem(path, message)])
    lengths = {len(column) for column in listed.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{key} has {len(column)}" for key, column in listed.items())
        message = f"lists that are taken together have one length; {told}"
        raise SpecError([document.place(here).problem(here, message)])
    changes = tuple(
        tuple(
            _change(key, column[index], document, here, index, plain=isinstance(value, list))
            for key, column in columns.items()
        )
        for index in range(lengths.pop())
    )
    names = _given_labels(labels, document, here) if labels is not None else _labels(changes)
    if len(set(names)) < len(names):
        twice = next(one for one in names if names.count(one) > 1)
        message = f"{twice} stands there twice; every value once, and every label"
        raise SpecError([document.place(here).problem(here, message)])
    return Axis(name, names, changes)


def _change(
    key: str, value: Any, document: Document, here: KeyPath, index: int, plain: bool
) -> overrides.Change:
    path = (*here, index) if plain else (*here, key, index)
    return overrides.Change(overrides.parse_path(key, document.place(here)), value,
                            document.place(path))  # fmt: skip


def _given_labels(labels: list[Any], document: Document, here: KeyPath) -> tuple[str, ...]:
    for index, label in enumerate(labels):
        if not isinstance(label, str) or not label.strip() or len(label) > 100:
            path = (*here, _LABEL, index)
            message = "a label is a text of 1 to 100 characters"
            raise SpecError([document.place(path).problem(path, message)])
    return tuple(labels)


def _labels(changes: Sequence[Sequence[overrides.Change]]) -> tuple[str, ...]:
    """Short words for values; sections go by their names where these tell them apart."""
    short = [", ".join(_word(change.value) for change in each) for each in changes]
    if len(set(short)) == len(short):
        return tuple(short)
    return tuple(", ".join(write_value(change.value) for change in each) for each in changes)


def _word(value: Any) -> str:
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return str(value["name"])
    return value if isinstance(value, str) else write_value(value)


def _seeds(
    document: Document, problems: list[SpecProblem]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    value = _section(document, SEEDS)
    if value is None:
        return (), _VARIED
    numbers, vary = value, list(_VARIED)
    if isinstance(value, dict):
        unknown = sorted(value.keys() - {"numbers", "vary"})
        if unknown or "numbers" not in value:
            message = f"the keys are numbers and vary, not {', '.join(unknown) or 'vary alone'}"
            problems.append(document.place((SEEDS,)).problem((SEEDS,), message))
            return (), _VARIED
        numbers, vary = value["numbers"], value.get("vary", vary)
    if isinstance(numbers, int) and not isinstance(numbers, bool) and 1 <= numbers <= _MOST_SEEDS:
        numbers = list(range(numbers))
    whole = isinstance(numbers, list) and 1 <= len(numbers) <= _MOST_SEEDS
    if not whole or not all(_is_seed(number) for number in numbers):
        message = (
            f"how many seeds, 1 to {_MOST_SEEDS:,}, or a list of their numbers, each from 0 to "
            f"{_LARGEST_SEED}"
        )
        problems.append(document.place((SEEDS,)).problem((SEEDS,), message))
    elif len(set(numbers)) < len(numbers):
        problems.append(document.place((SEEDS,)).problem((SEEDS,), "every seed once"))
    known = ", ".join(SEED_FIELDS)
    if not isinstance(vary, list) or not vary or not all(axis in SEED_FIELDS for axis in vary):
        message = f"what the seeds vary: a list of some of {known}"
        problems.append(document.place((SEEDS, "vary")).problem((SEEDS, "vary"), message))
    return ((), _VARIED) if problems else (tuple(numbers), tuple(vary))


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST_SEED


def _section(document: Document, name: str) -> Any:
    return document.value.get(name) if isinstance(document.value, dict) else None


def _without(document: Document) -> Document:
    """The document's spec alone."""
    base = copy.copy(document)
    if isinstance(document.value, dict):
        base.value = {key: value for key, value in document.value.items() if key not in SWEEP_KEYS}
    return base


def _cells(
    base: Document,
    axes: Sequence[Axis],
    seeds: tuple[int, ...],
    vary: tuple[str, ...],
    grids: dict[tuple[str, ...], tuple[Axis, ...]],
) -> Iterator[Cell]:
    """Every combination as a spec of its own; what is wrong in several of them is said once.

    The axes of each search are put into `grids`, by the labels of the matrix.
    """
    problems: dict[SpecProblem, None] = {}
    found: list[Cell] = []
    for chosen in itertools.product(*(range(len(axis.labels)) for axis in axes)):
        pairs = list(zip(axes, chosen, strict=True))
        values = {axis.name: axis.labels[index] for axis, index in pairs}
        document, grid, data = _searched(
            base, [change for axis, index in pairs for change in axis.changes[index]]
        )
        if grid:
            grids[tuple(values.values())] = grid
            _not_too_many(base, len(found) + _size(grid) * len(seeds or (0,)))
        for tried in itertools.product(*(range(len(axis.labels)) for axis in grid)):
            found += _seeded(document, values, grid, tried, data, seeds, vary, problems)
    if problems:
        raise SpecError(list(problems))
    yield from found


def _seeded(
    document: Document,
    values: Mapping[str, str],
    grid: Sequence[Axis],
    tried: Sequence[int],
    data: overrides.Change | None,
    seeds: tuple[int, ...],
    vary: tuple[str, ...],
    problems: dict[SpecProblem, None],
) -> Iterator[Cell]:
    """One candidate, or one combination without a search, under every seed."""
    pairs = list(zip(grid, tried, strict=True))
    changes = [change for axis, index in pairs for change in axis.changes[index]]
    candidate = {axis.name: axis.labels[index] for axis, index in pairs}
    for seed in seeds or (None,):
        try:
            spec, released = _spec(document, changes, seed, vary), None
            if data is not None:
                public = _spec(document, [*changes, data], seed, vary)
                searched = public.tune.replace(dataset=public.data.dataset)
                private, spec = (one.replace(tune=searched) for one in (spec, public))
                released = Cell(values, seed, private, _digest(private, seed), candidate)
        except SpecError as error:
            problems.update(dict.fromkeys(error.problems))
            break
        yield Cell(values, seed, spec, _digest(spec, seed), candidate, released)


def _searched(
    base: Document, changes: Sequence[overrides.Change]
) -> tuple[Document, tuple[Axis, ...], overrides.Change | None]:
    """A combination without its search, the axes of that, and the data that it is on."""
    document = base.copy()
    overrides.apply_changes(document, changes)
    problems: list[SpecProblem] = []
    _search(document, problems)
    grid = _axes(document, _GRID, problems)
    if problems:
        raise SpecError(problems)
    tune = _section(document, TUNE)
    if not isinstance(tune, dict):
        return document, (), None
    data = None
    if tune.get("data") is not None:
        data = overrides.Change(("data",), tune["data"], document.place(_PUBLIC_DATA))
    document.value[TUNE] = {key: value for key, value in tune.items() if key not in TUNE_KEYS}
    return document, grid, data


def _spec(
    base: Document, changes: Sequence[overrides.Change], seed: int | None, vary: Sequence[str]
) -> Spec:
    document = base.copy()
    overrides.apply_changes(document, changes)
    if seed is not None:
        place = Place("seeds")
        reproducible = _is_reproducible(document.value)
        given = [
            overrides.Change(SEED_FIELDS[axis], seed, place)
            for axis in vary
            if axis != "run" or reproducible
        ]
        overrides.apply_changes(document, given)
    return reading.specified(document)


def _is_reproducible(value: Any) -> bool:
    mode = value.get("randomness") if isinstance(value, dict) else None
    return (mode.get("mode") if isinstance(mode, dict) else mode) == "reproducible"


def _digest(spec: Spec, seed: int | None) -> str:
    same = spec.replace(name="cell", description="", report=ReportSpec(), budget=BudgetSpec())
    mapping = same.to_mapping()
    # Cells that are no trials keep the digests that they had before there were searches.
    if same.tune == NotTuned():
        del mapping[TUNE]
    said = write(mapping)
    # What nothing reproduces is repeated by its number alone.
    if spec.randomness.seed is None:
        said += f"repetition: {seed}\n"
    return hashlib.sha256(said.encode()).hexdigest()
