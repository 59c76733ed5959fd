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

A search's cells are *trials*. Where what is reported is not these, because the search is on other
records or under seeds of its own (`tune.seeds`), the best candidate is *released* as further cells,
on `data` and under `seeds`.

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
    dotted,
)
from dpfedadamw.spec.sections import BudgetSpec, ReportSpec, Spec
from dpfedadamw.spec.seeds import SEARCH_SEEDS, SEEDS, Seeds, search_seeds_of, seeds_of
from dpfedadamw.spec.tune_section import NotTuned, TuneSpec
from dpfedadamw.spec.yamlwriter import write, write_value

MATRIX = SWEEP_KEYS[0]
_GRID, _PUBLIC_DATA = ((TUNE, key) for key in TUNE_KEYS[:2])
_SELECTIONS = "private, public or unaccounted"
MOST_CELLS = 10_000
_LABEL = "label"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


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
        seed: The number that its seeds have; None where there are none.
        spec: What is run.
        digest: SHA-256, in hexadecimal digits, of what is run: of the resolved spec without its
            name, its texts and its budget and, where nothing reproduces a run, with the number of
            its repetition.
        candidate: The label of each axis of the search, by the axis's name; empty without one.
        released: The cells that the candidate is reported as, if it is the best; empty where it is
            reported as its trials themselves.
    """

    values: Mapping[str, str]
    seed: int | None
    spec: Spec
    digest: str
    candidate: Mapping[str, str] = field(default_factory=dict)
    released: tuple[Cell, ...] = field(default=(), repr=False)

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
    seeds = seeds_of(document, problems)
    own = search_seeds_of(document, seeds, problems)
    expected = printed.expected(document, {axis.name: axis.labels for axis in axes}, problems)
    changed = [change for axis in axes for each in axis.changes for change in each]
    readings = printed.readings(document, changed, problems)
    if problems:
        raise SpecError(problems)
    text = write(document.value)
    base = _without(document)
    many = len(seeds.repetitions)
    for axis in axes:
        many *= len(axis.labels)
    _not_too_many(document, many)
    grids: dict[tuple[str, ...], tuple[Axis, ...]] = {}
    cells = tuple(_cells(base, axes, seeds, own, grids))
    _equal_effort(document, grids)
    first = cells[0].spec
    name, tune = first.name, first.tune
    if tune.selection == "private" and (axes or seeds.numbers):
        path = (MATRIX,) if axes else SEEDS
        message = "a private selection is of one spec; give tune.grid alone, and a file each"
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
    selection = section.get("selection")

    def refuse(path: KeyPath, message: str, key: bool = False) -> None:
        problems.append(document.place(path, key=key).problem(path, message))

    if section.get("grid") is None:
        # A trial's own spec has none, and is a sweep of one run.
        for path in (_PUBLIC_DATA, SEARCH_SEEDS):
            if section.get(path[-1]) is not None:
                message = (
                    "belongs to a search over tune.grid, which is missing; give it, or remove "
                    f"{dotted(path)}"
                )
                refuse(path, message, key=True)
        return
    if selection is None or selection == "none":
        refuse(
            (TUNE, "selection"),
            f"missing; say by what the search is accounted for: {_SELECTIONS}; a search that only "
            "compares, and whose best is not picked, is a matrix",
        )
    elif selection == "public" and not isinstance(section.get("data"), dict):
        refuse(
            _PUBLIC_DATA,
            "missing; give the section data of the public records that are searched on, such as "
            "data: {dataset: mnist, clients: 10}",
        )
    elif selection != "public" and section.get("data") is not None:
        message = f"is searched on where selection is public, not {selection}; remove it"
        refuse(_PUBLIC_DATA, message, key=True)
    if selection == "private" and section.get("seeds") is not None:
        refuse(
            SEARCH_SEEDS,
            "the ε of a private selection is that of publishing the winning trial itself; to run "
            "the winner anew would cost more than it says; remove tune.seeds",
            key=True,
        )


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


def _section(document: Document, name: str) -> Any:
    return document.value.get(name) if isinstance(document.value, dict) else None


def _without(document: Document) -> Document:
    """The document's spec alone."""
    base = copy.copy(document)
    if isinstance(document.value, dict):
        base.value = {key: value for key, value in document.value.items() if key not in SWEEP_KEYS}
    return base


@dataclass(frozen=True)
class _Search:
    """One combination of the matrix, and how it is searched.

    Attributes:
        document: The combination, without its search.
        values: The label of each axis of the matrix.
        grid: The axes of the search; none where there is no search.
        data: What is searched on, where that is other than what is reported on.
        seeds: What is reported.
        own: The seeds of the search's own, where it has some.
    """

    document: Document
    values: Mapping[str, str]
    grid: tuple[Axis, ...]
    data: overrides.Change | None
    seeds: Seeds
    own: Seeds

    @property
    def releases(self) -> bool:
        """Whether what is reported is other than what the best is chosen by."""
        return self.data is not None or bool(self.own.numbers)

    @property
    def tried(self) -> Seeds:
        """The seeds under which candidates are tried."""
        return self.own if self.own.numbers else self.seeds

    @property
    def runs(self) -> int:
        """How many there are, once the best is chosen."""
        reported = len(self.seeds.repetitions) if self.releases else 0
        return _size(self.grid) * len(self.tried.repetitions) + reported


def _cells(
    base: Document,
    axes: Sequence[Axis],
    seeds: Seeds,
    own: Seeds,
    grids: dict[tuple[str, ...], tuple[Axis, ...]],
) -> Iterator[Cell]:
    """Every combination as a spec of its own; what is wrong in several of them is said once.

    The axes of each search are put into `grids`, by the labels of the matrix.
    """
    problems: dict[SpecProblem, None] = {}
    found: list[Cell] = []
    many = 0
    for chosen in itertools.product(*(range(len(axis.labels)) for axis in axes)):
        pairs = list(zip(axes, chosen, strict=True))
        changes = [change for axis, index in pairs for change in axis.changes[index]]
        values = {axis.name: axis.labels[index] for axis, index in pairs}
        search = _Search(*_searched(base, changes, values), seeds, own)
        many += search.runs
        if search.grid:
            grids[tuple(values.values())] = search.grid
            _not_too_many(base, many)
        for tried in itertools.product(*(range(len(axis.labels)) for axis in search.grid)):
            try:
                found += _candidate(search, tried)
            except SpecError as error:
                problems.update(dict.fromkeys(error.problems))
    if problems:
        raise SpecError(list(problems))
    yield from found


def _candidate(search: _Search, tried: Sequence[int]) -> list[Cell]:
    """One candidate, or one combination without a search, under every seed."""
    pairs = list(zip(search.grid, tried, strict=True))
    changes = [change for axis, index in pairs for change in axis.changes[index]]
    candidate = {axis.name: axis.labels[index] for axis, index in pairs}

    def cell(seed: int | None, spec: Spec, released: tuple[Cell, ...] = ()) -> Cell:
        return Cell(search.values, seed, spec, _digest(spec, seed), candidate, released)

    elsewhere = [] if search.data is None else [search.data]
    trials = _repeated(search.document, [*changes, *elsewhere], search.tried)
    if search.data is not None:
        trials = {
            seed: spec.replace(tune=spec.tune.replace(dataset=spec.data.dataset))
            for seed, spec in trials.items()
        }
    released: tuple[Cell, ...] = ()
    if search.releases:
        tune = next(iter(trials.values())).tune.replace(search_seeds=search.own.numbers)
        reported = _repeated(search.document, changes, search.seeds)
        released = tuple(cell(seed, spec.replace(tune=tune)) for seed, spec in reported.items())
    return [cell(seed, spec, released) for seed, spec in trials.items()]


def _searched(
    base: Document, changes: Sequence[overrides.Change], values: Mapping[str, str]
) -> tuple[Document, Mapping[str, str], tuple[Axis, ...], overrides.Change | None]:
    """A combination without its search, its labels, and the search's axes and data."""
    document = base.copy()
    overrides.apply_changes(document, changes)
    problems: list[SpecProblem] = []
    _search(document, problems)
    grid = _axes(document, _GRID, problems)
    for change in changes:
        if change.path[: len(SEARCH_SEEDS)] == SEARCH_SEEDS:
            message = "every search has the same seeds; give tune.seeds outside the matrix"
            problems.append(change.place.problem(SEARCH_SEEDS, message))
    if problems:
        raise SpecError(problems)
    tune = _section(document, TUNE)
    if not isinstance(tune, dict):
        return document, values, (), None
    data = None
    if tune.get("data") is not None:
        data = overrides.Change(("data",), tune["data"], document.place(_PUBLIC_DATA))
    document.value[TUNE] = {key: value for key, value in tune.items() if key not in TUNE_KEYS}
    return document, values, grid, data


def _repeated(
    base: Document, changes: Sequence[overrides.Change], seeds: Seeds
) -> dict[int | None, Spec]:
    """The spec of each repetition, by its number."""
    found = {}
    for number in seeds.repetitions:
        document = base.copy()
        overrides.apply_changes(document, changes)
        overrides.apply_changes(document, seeds.changes(number, document.value))
        found[number] = reading.specified(document)
    return found


def _digest(spec: Spec, seed: int | None) -> str:
    same = spec.replace(name="cell", description="", report=ReportSpec(), budget=BudgetSpec())
    mapping = same.to_mapping()
    # Cells that are no trials keep the digests that they had before there were searches.
    if same.tune == NotTuned():
        del mapping[TUNE]
    # Nor do trials change theirs by a key that is of what is run after them.
    elif not same.tune.search_seeds:
        mapping[TUNE].pop("search_seeds", None)
    said = write(mapping)
    # What nothing reproduces is repeated by its number alone.
    if spec.randomness.seed is None:
        said += f"repetition: {seed}\n"
    return hashlib.sha256(said.encode()).hexdigest()
